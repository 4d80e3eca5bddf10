"""docs/python-api.md names what stays: all of it exists, with the arguments it says."""

import inspect
import re
from pathlib import Path

import pytest

import speedwell.fs.client
import speedwell.fs.errors

PAGE = (Path(__file__).parents[3] / "docs" / "python-api.md").read_text()
LISTS = dict(re.findall(r"^- `(\w+)`: (`.*`)$", PAGE, re.MULTILINE))


@pytest.mark.parametrize("name", ["Client", "Reader", "Appender", "Attributes", "DirectoryEntry"])
def test_what_a_class_is_said_to_keep_it_has(name: str) -> None:
    kept = re.findall(r"`(\w+)`", LISTS[name])
    assert len(kept) > 1
    kind = getattr(speedwell.fs.client, name)
    present = {*dir(kind), *(kind.DESCRIPTOR.fields_by_name if hasattr(kind, "DESCRIPTOR") else ())}
    assert [attribute for attribute in kept if attribute not in present] == []


def test_a_client_takes_the_arguments_that_are_said_to_stay() -> None:
    call = re.search(r"`Client\((.*?)\)`", LISTS["Client"])
    assert call is not None
    said = [argument.strip().removesuffix("=") for argument in call.group(1).split(",")]
    assert said == list(inspect.signature(speedwell.fs.client.Client).parameters)


def test_every_name_that_the_library_offers_is_listed() -> None:
    assert [name for name in speedwell.fs.client.__all__ if f"`{name}`" not in PAGE] == []


def test_the_errors_to_catch_exist() -> None:
    listed = re.search(r"Catch these: (.*?)\n\n", PAGE, re.DOTALL)
    assert listed is not None
    names = re.findall(r"`(\w+)`", listed.group(1))
    assert all(issubclass(getattr(speedwell.fs.errors, name), speedwell.fs.errors.SpeedwellError) for name in names)
    assert len(names) > 10


@pytest.mark.parametrize("pieces", [{-1: b"a"}, {0: b"abc", 2: b"d"}])
def test_changes_that_overlap_or_begin_before_the_file_are_refused(pieces: dict[int, bytes]) -> None:
    with pytest.raises(speedwell.fs.errors.InvalidArgument, match="pieces"):
        speedwell.fs.client.Changes.of(pieces)
