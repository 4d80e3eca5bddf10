"""Holes of files: what lseek(2) says of them on a mount, and that copies have them too."""

import errno
import mmap
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.integration.fuse_mount.mounting import run

pytestmark = pytest.mark.root

MIB = 1 << 20
BLOCK = 64 * 1024


def data_of(descriptor: int) -> Iterator[tuple[int, int]]:
    """The pieces that are not in holes, as cp(1) goes through them."""
    offset, size = 0, os.fstat(descriptor).st_size
    while offset < size:
        try:
            begin = os.lseek(descriptor, offset, os.SEEK_DATA)
        except OSError as error:
            assert error.errno == errno.ENXIO
            return
        end = os.lseek(descriptor, begin, os.SEEK_HOLE)
        assert offset <= begin < end <= size
        assert os.lseek(descriptor, begin, os.SEEK_DATA) == begin
        yield begin, end
        offset = end


def pieces(path: Path) -> list[tuple[int, int]]:
    with path.open("rb", buffering=0) as stream:
        return list(data_of(stream.fileno()))


def sparse(path: Path) -> bytes:
    """Make a file of 40 MiB with data in three places; returns what it holds."""
    with path.open("wb") as stream:
        stream.truncate(40 * MIB)
        for offset in (0, 10 * MIB + 5, 30 * MIB):
            os.pwrite(stream.fileno(), b"x" * 1000, offset)
    return path.read_bytes()


def test_holes_are_told_on_every_mount_and_take_no_blocks(here: Path, there: Path) -> None:
    content = sparse(here / "file")
    for path in (here / "file", there / "file"):
        assert pieces(path) == [(0, BLOCK), (10 * MIB, 10 * MIB + BLOCK), (30 * MIB, 30 * MIB + BLOCK)]
        assert path.read_bytes() == content
        assert path.stat().st_blocks * 512 == 3 * BLOCK
    with (here / "file").open("rb+", buffering=0) as stream:
        stream.truncate(10 * MIB + 1000)
        stream.truncate(20 * MIB)
    assert pieces(there / "file") == [(0, BLOCK), (10 * MIB, 10 * MIB + BLOCK)]
    with (there / "file").open("ab") as stream:
        stream.write(b"end")
    assert pieces(here / "file")[2:] == [(20 * MIB, 20 * MIB + 3)]
    assert len(content) == 40 * MIB


def test_what_is_not_published_yet_counts(here: Path) -> None:
    path = here / "file"
    path.write_bytes(b"a" * 3 * BLOCK)
    with path.open("rb+", buffering=0) as stream:
        os.pwrite(stream.fileno(), b"b", 20 * MIB)
        assert list(data_of(stream.fileno())) == [(0, 3 * BLOCK), (20 * MIB, 20 * MIB + 1)]
        assert os.fstat(stream.fileno()).st_blocks * 512 < MIB
        subprocess.run(["fallocate", "--punch-hole", "--offset", "0", "--length", str(2 * BLOCK), path], check=True)
        assert next(data_of(stream.fileno()))[0] == 2 * BLOCK
        for offset in (-1, 20 * MIB + 1, 30 * MIB):
            with pytest.raises(OSError) as caught:
                os.lseek(stream.fileno(), offset, os.SEEK_HOLE)
            assert caught.value.errno == errno.ENXIO
    assert pieces(path) == [(2 * BLOCK, 3 * BLOCK), (20 * MIB, 20 * MIB + 1)]
    with path.open("ab", buffering=0) as stream:
        stream.write(b"appended")
        assert pieces(path)[-1] == (20 * MIB, 20 * MIB + 9)


def test_what_was_written_in_a_mapping_is_no_hole(here: Path) -> None:
    with (here / "file").open("wb+") as stream:
        stream.truncate(4 * MIB)
        with mmap.mmap(stream.fileno(), 4 * MIB) as mapping:
            mapping[MIB:MIB + 5] = b"bytes"
            found = list(data_of(stream.fileno()))
            assert any(begin <= MIB and end >= MIB + 5 for begin, end in found)


@pytest.mark.parametrize("whole", [False, True], ids=["some data", "no data"])
def test_copies_and_archives_keep_the_holes(here: Path, there: Path, tmp_path: Path, whole: bool) -> None:
    if whole:
        with (here / "file").open("wb") as stream:
            stream.truncate(40 * MIB)
        content = bytes(40 * MIB)
    else:
        content = sparse(here / "file")
    run("cp", "--sparse=auto", there / "file", tmp_path / "out")
    run("cp", "--sparse=auto", tmp_path / "out", here / "back")
    run("tar", "--create", "--sparse", "--file", tmp_path / "archive", "--directory", there, "file")
    assert (tmp_path / "archive").stat().st_size < MIB
    (here / "d").mkdir()
    run("tar", "--extract", "--file", tmp_path / "archive", "--directory", here / "d")
    for path in (tmp_path / "out", here / "back", here / "d" / "file"):
        assert path.read_bytes() == content
        assert path.stat().st_blocks * 512 < MIB
    assert int(run("du", "--block-size=1", here / "back").split()[0]) < MIB


changes = st.lists(st.tuples(st.sampled_from(["write", "truncate", "punch", "close"]), st.integers(0, 40),
                             st.integers(1, 12), st.integers(0, 3)), min_size=1, max_size=12)


@settings(max_examples=25, deadline=None, derandomize=True,
          suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=changes)
def test_a_hole_holds_zeros_and_everything_else_is_told_of(here: Path, there: Path, tmp_path: Path,
                                                           steps: list[tuple[str, int, int, int]]) -> None:
    """What lseek(2) promises, whatever a file went through: a local file that went through the same has the same
    content and the same end, but its holes may be others."""
    unit = BLOCK // 2
    places = [here / "file", tmp_path / "file"]
    for place in places:
        place.write_bytes(b"")
    files = [place.open("rb+", buffering=0) for place in places]
    for kind, at, count, odd in steps:
        for index, stream in enumerate(files):
            descriptor = stream.fileno()
            if kind == "write":
                os.pwrite(descriptor, b"w" * (count * unit - odd), at * unit + odd)
            elif kind == "truncate":
                os.truncate(descriptor, at * unit + odd)
            elif kind == "punch":
                run("fallocate", "--punch-hole", "--offset", str(at * unit + odd), "--length", str(count * unit),
                    places[index])
            else:
                stream.close()
                files[index] = places[index].open("rb+", buffering=0)
        _check(files[0].fileno(), places[1].read_bytes())
    for stream in files:
        stream.close()
    for place in (here, there):
        with (place / "file").open("rb", buffering=0) as stream:
            _check(stream.fileno(), places[1].read_bytes())


def _check(descriptor: int, expected: bytes) -> None:
    done = 0
    for begin, end in [*data_of(descriptor), (len(expected), len(expected))]:
        assert expected.count(0, done, begin) == begin - done, f"there is data between {done} and {begin}"
        done = end
    assert os.pread(descriptor, len(expected) + 1, 0) == expected
    for whence in (os.SEEK_DATA, os.SEEK_HOLE):
        with pytest.raises(OSError) as caught:
            os.lseek(descriptor, len(expected), whence)
        assert caught.value.errno == errno.ENXIO
    if expected:
        assert os.lseek(descriptor, len(expected) - 1, os.SEEK_HOLE) in (len(expected) - 1, len(expected))
