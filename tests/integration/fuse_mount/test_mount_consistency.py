"""Two mounts of one filesystem: what one closed, the next open of the other sees."""

# ruff: noqa: PTH208 (the names as the system call lists them)

import os
from pathlib import Path

import pytest

from tests.integration.fuse_mount.mounting import Mounted
from tests.local_cluster import LocalCluster
from tests.waiting import wait_until

pytestmark = pytest.mark.root


def test_appends_are_seen_by_the_next_open_of_the_other_mount(here: Path, there: Path) -> None:
    (here / "log").write_bytes(b"")
    expected = b""
    for number in range(40):
        line = b"line %d\n" % number
        with (here / "log").open("ab") as log:
            log.write(line)
        expected += line
        descriptor = os.open(there / "log", os.O_RDONLY)
        try:
            assert os.fstat(descriptor).st_size == len(expected)
            assert os.read(descriptor, 1 << 20) == expected
        finally:
            os.close(descriptor)


def test_two_mounts_append_in_turns(here: Path, there: Path) -> None:
    expected = b""
    for number in range(20):
        for directory in (here, there):
            line = b"%d from %s\n" % (number, os.fsencode(directory))
            with (directory / "log").open("ab") as log:
                log.write(line)
            expected += line
            assert (directory / "log").stat().st_size == len(expected)
    assert (here / "log").read_bytes() == expected
    assert (there / "log").read_bytes() == expected


def test_a_stat_just_before_does_not_hide_an_append_from_open(here: Path, there: Path) -> None:
    (here / "log").write_bytes(b"x")
    for length in range(2, 30):
        (there / "log").stat()  # fills every cache on the way
        with (here / "log").open("ab") as log:
            log.write(b"x")
        with (there / "log").open("rb", buffering=0) as log:
            assert os.fstat(log.fileno()).st_size == length
            assert len(log.readall()) == length


def test_an_open_handle_reads_on_into_what_the_other_mount_appends(here: Path, there: Path) -> None:
    (here / "log").write_bytes(b"first")
    reader = os.open(there / "log", os.O_RDONLY)
    try:
        assert os.read(reader, 100) == b"first"
        with (here / "log").open("ab") as log:
            log.write(b"second")
        os.close(os.open(there / "log", os.O_RDONLY))  # an open of anybody there brings the news
        assert os.read(reader, 100) == b"second"
    finally:
        os.close(reader)


def test_a_file_rewritten_with_the_same_length_is_not_read_from_old_pages(here: Path, there: Path) -> None:
    for content in (b"a" * 8192, b"b" * 8192, b"c" * 8192):
        (here / "file").write_bytes(content)
        os.utime(here / "file", ns=(10**18, 10**18))
        assert (there / "file").read_bytes() == content
        assert (there / "file").read_bytes() == content


def test_a_file_replaced_by_rename_is_not_read_from_old_pages(here: Path, there: Path) -> None:
    for letter in (b"a", b"b", b"c"):
        (here / "new").write_bytes(letter * 8192)
        os.utime(here / "new", ns=(10**18, 10**18))
        (here / "new").rename(here / "file")
        assert (there / "file").read_bytes() == letter * 8192


def test_a_handle_on_the_replaced_content_does_not_mix_with_one_on_the_new(here: Path, there: Path) -> None:
    (here / "file").write_bytes(b"a" * 65536)
    with (there / "file").open("rb", buffering=0) as old:
        assert old.read(10) == b"a" * 10
        (here / "new").write_bytes(b"b" * 65536)
        (here / "new").rename(here / "file")
        with (there / "file").open("rb", buffering=0) as new:
            old.seek(4096)
            assert old.read(65536) == b"a" * (65536 - 4096)
            assert new.read(65536) == b"b" * 65536


def test_a_new_name_is_seen_at_once_and_a_removed_one_cannot_be_opened(here: Path, there: Path) -> None:
    for number in range(10):
        path = there / f"file{number}"
        assert not path.exists()
        (here / path.name).write_bytes(b"x")
        assert path.read_bytes() == b"x"
        (here / path.name).unlink()
        with pytest.raises(FileNotFoundError):
            path.open("rb")


def test_a_listing_is_never_old(here: Path, there: Path) -> None:
    assert os.listdir(there) == []
    for number in range(10):
        (here / f"file{number}").touch()
        assert len(os.listdir(there)) == number + 1


def test_pages_of_an_unchanged_file_stay_in_the_kernel(here: Path) -> None:
    (here / "file").write_bytes(b"x" * (1 << 20))
    assert len((here / "file").read_bytes()) == 1 << 20
    assert _cached_pages(here / "file") > 200


def _cached_pages(path: Path) -> int:
    """How many pages of `path` are in the page cache right after opening it (mincore of a mapping)."""
    import ctypes
    import mmap

    libc = ctypes.CDLL(None, use_errno=True)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ, flags=mmap.MAP_PRIVATE) as mapped:
        resident = (ctypes.c_ubyte * (len(mapped) // mmap.PAGESIZE))()
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int,
                              ctypes.c_long]
        address = libc.mmap(None, len(mapped), mmap.PROT_READ, mmap.MAP_PRIVATE, file.fileno(), 0)
        assert libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(len(mapped)), resident) == 0
        libc.munmap(ctypes.c_void_p(address), ctypes.c_size_t(len(mapped)))
        return sum(page & 1 for page in resident)


def test_a_file_that_was_found_under_its_new_name_is_not_opened_by_its_old_one(here: Path, there: Path) -> None:
    (here / "old").write_text("first")
    assert (there / "old").read_text() == "first"
    (here / "old").rename(here / "new")
    assert (there / "new").read_text() == "first"
    with pytest.raises(FileNotFoundError):
        (there / "old").read_text()
    (here / "old").write_text("second")
    assert ((there / "old").read_text(), (there / "new").read_text()) == ("second", "first")
    (here / "old").rename(here / "third")
    assert (there / "third").read_text() == "second"
    (here / "new").rename(here / "old")
    assert (there / "old").read_text() == "first"


def test_a_moved_directory_is_found_under_its_old_path_no_longer_than_the_cache_time(
        here: Path, there: Path, cluster: LocalCluster, tmp_path: Path) -> None:
    uncached = Mounted(tmp_path / "uncached", cluster.nameserver.address, "--cache-seconds", "0")
    try:
        directories = there, uncached.path / here.name
        (here / "old").mkdir()
        (here / "old" / "file").write_text("first")
        assert [(directory / "old" / "file").read_text() for directory in directories] == ["first"] * 2
        (here / "old").rename(here / "new")
        (here / "old").mkdir()
        (here / "old" / "file").write_text("second")
        assert (uncached.path / here.name / "old" / "file").read_text() == "second"
        assert [(directory / "new" / "file").read_text() for directory in directories] == ["first"] * 2
        wait_until(lambda: (there / "old" / "file").read_text() == "second", 10, "it is never found anew")
    finally:
        uncached.clean_up()
