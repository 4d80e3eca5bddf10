"""What is a path, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speedwell.fs import paths
from speedwell.fs.errors import InvalidName, NameTooLong

names = st.binary(min_size=1, max_size=8).filter(lambda name: not set(name) & {0, ord("/")}
                                                 and name not in (b".", b".."))


@pytest.mark.parametrize(("given_path", "expected"), [
    ("/", b"/"), ("//", b"/"), ("/a//b/", b"/a/b"), ("/ä", "/ä".encode()), (b"/\xff", b"/\xff"),
    ("/\udcff", b"/\xff"), ("/...", b"/..."), ("/" + "n" * 255, b"/" + b"n" * 255)])
def test_a_users_path_is_brought_into_wire_form(given_path: str | bytes, expected: bytes) -> None:
    assert paths.normalise(given_path) == expected


@pytest.mark.parametrize("bad", ["", "a", "a/b", "/a/../b", "/.", "/a/.", "/..", "/a\0b"])
def test_a_path_that_means_nothing_is_refused_naming_the_field(bad: str) -> None:
    with pytest.raises(InvalidName, match=r"^source: "):
        paths.normalise(bad, "source")


@pytest.mark.parametrize("bad", [b"/a/", b"//a", b"/a//b", b"//"])
def test_the_wire_form_has_no_repeated_or_trailing_slashes(bad: bytes) -> None:
    with pytest.raises(InvalidName, match="empty component"):
        paths.components(bad)


@pytest.mark.parametrize("bad", ["/" + "n" * 256, "/a/" + "n" * 300, "/ab" * 1366])
def test_names_over_255_and_paths_over_4096_bytes_are_too_long(bad: str) -> None:
    with pytest.raises(NameTooLong):
        paths.normalise(bad)


def test_a_path_of_4096_bytes_is_not_too_long() -> None:
    path = b"/" + b"/".join([b"n" * 255] * 16)
    assert len(path) == 4096
    assert paths.normalise(path) == path


@given(parts=st.lists(names, min_size=1, max_size=5))
def test_joining_and_splitting_undo_each_other(parts: list[bytes]) -> None:
    path = paths.ROOT
    for part in parts:
        path = paths.join(path, part)
    assert paths.components(path) == parts
    assert paths.join(paths.parent(path), paths.name(path)) == path
    assert paths.is_within(path, paths.parent(path))
    assert not paths.is_within(path + b"x", path)


def test_messages_show_unprintable_names_escaped() -> None:
    with pytest.raises(InvalidName) as caught:
        paths.normalise(b"a\n\x1b\xff")
    assert str(caught.value).isprintable()
