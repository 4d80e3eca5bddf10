"""What a certificate says of whom its holder may act for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speedwell.fs.errors import IdentityError
from speedwell.fs.identity.scope import MAX_ID, NOBODY, Scope, parsed, ranges

spans = st.lists(st.tuples(st.integers(1, MAX_ID), st.integers(1, MAX_ID)).map(lambda pair: (min(pair), max(pair))),
                 min_size=1, max_size=4).map(tuple)
names = st.lists(st.binary(min_size=1, max_size=9).filter(
    lambda name: name not in (b".", b"..") and not set(name) & set(b"/\0")), max_size=3)


@given(uids=spans, gids=spans, below=names, root=st.booleans())
def test_a_scope_is_read_as_it_was_written(uids: tuple[tuple[int, int], ...], gids: tuple[tuple[int, int], ...],
                                           below: list[bytes], root: bool) -> None:
    scope = Scope(uids, gids, b"/" + b"/".join(below), root)
    assert parsed(str(scope)) == scope
    assert str(scope).isascii()


@pytest.mark.parametrize("uri", [
    "", "speedwell:?", "speedwell:?uids=1", "speedwell:?uids=1&gids=1&subtree=%2F&root=maybe",
    "speedwell:?uids=1&gids=1&subtree=%2F&root=allowed&more=1", "speedwell:?uids=0&gids=1&subtree=%2F&root=nobody",
    "speedwell:?uids=1&uids=2&gids=1&subtree=%2F&root=nobody", "speedwell:?uids=1&gids=1&subtree=a&root=nobody"])
def test_a_scope_that_is_not_understood_is_no_scope(uri: str) -> None:
    with pytest.raises(IdentityError):
        parsed(uri)


@pytest.mark.parametrize("text", ["", "0", "a", "1-", "-1", "2-1", "1,,2", "1-4294967295", "²"])
def test_ranges_are_numbers_of_users(text: str) -> None:
    with pytest.raises(IdentityError):
        ranges(text)


def test_it_is_for_nobody_as_well_as_its_own_users() -> None:
    scope = Scope(((1000, 1001),), ((100, 100),))
    assert scope.has_user(1001) and scope.has_user(NOBODY) and not scope.has_user(0) and not scope.has_user(1002)
    assert scope.is_only({1000, 1001, 7}) and not scope.is_only({1000, 7})
