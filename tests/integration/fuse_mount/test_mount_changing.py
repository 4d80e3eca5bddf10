"""Writes anywhere through a mount: what both mounts see, before and after they are published."""

import ctypes
import errno
import fcntl
import mmap
import os
import random
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.local_cluster import LocalCluster

pytestmark = pytest.mark.root

# linux/fs.h and linux/falloc.h
FICLONE, FICLONERANGE = 0x40049409, 0x4020940D
FALLOC_COLLAPSE_RANGE, FALLOC_INSERT_RANGE, FALLOC_UNSHARE_RANGE = 0x08, 0x20, 0x40

libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def opened(path: Path, flags: int = os.O_RDWR) -> Iterator[int]:
    descriptor = os.open(path, flags, 0o644)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def overwrite(path: Path, flags: int = os.O_WRONLY) -> None:
    with opened(path, flags) as descriptor:
        os.write(descriptor, b"new")


def test_a_write_anywhere_is_seen_by_the_other_mount_once_it_is_flushed(here: Path, there: Path) -> None:
    path = here / "file"
    path.write_bytes(b"0123456789")
    with opened(path) as descriptor:
        os.pwrite(descriptor, b"ab", 3)
        os.pwrite(descriptor, b"far", 100_000)
        assert path.read_bytes() == b"012ab56789" + bytes(99_990) + b"far"
        assert (there / "file").read_bytes() == b"0123456789"
        os.fsync(descriptor)
        assert (there / "file").read_bytes() == path.read_bytes()
        os.pwrite(descriptor, b"Z", 0)
    assert (there / "file").read_bytes()[:4] == b"Z12a"


def test_who_has_the_old_version_open_on_the_other_mount_keeps_it(here: Path, there: Path) -> None:
    old = random.Random(1).randbytes(1_000_000)
    (here / "file").write_bytes(old)
    with opened(there / "file", os.O_RDONLY) as reader:
        assert os.pread(reader, 10, 0) == old[:10]
        with opened(here / "file") as writer:
            os.pwrite(writer, b"new", 900_000)
        assert os.pread(reader, 100, 900_000) == old[900_000:900_100]
    assert (there / "file").read_bytes()[900_000:900_003] == b"new"


def test_another_descriptor_of_the_mount_sees_what_is_not_flushed(here: Path) -> None:
    path = here / "file"
    path.write_bytes(b"a" * 300_000)
    with opened(path, os.O_RDONLY) as before, opened(path) as writer, opened(path, os.O_WRONLY) as other:
        assert os.pread(before, 10, 200_000) == b"a" * 10
        os.pwrite(writer, b"bb", 200_000)
        os.pwrite(other, b"c", 200_001)
        assert os.pread(before, 4, 199_999) == b"abca"
        assert os.pread(writer, 4, 199_999) == b"abca"
        os.fsync(writer)
        assert os.pread(before, 4, 199_999) == b"abca"


def test_a_file_is_cut_and_extended(here: Path, there: Path) -> None:
    path = here / "file"
    path.write_bytes(b"0123456789")
    os.truncate(path, 5)
    assert (path.read_bytes(), (there / "file").read_bytes()) == (b"01234", b"01234")
    os.truncate(path, 200_000)
    assert (there / "file").read_bytes() == path.read_bytes() == b"01234" + bytes(199_995)
    with opened(path) as descriptor:
        os.ftruncate(descriptor, 3)
        assert os.fstat(descriptor).st_size == path.stat().st_size == 3
        os.pwrite(descriptor, b"x", 5)
        os.ftruncate(descriptor, 8)
        assert os.pread(descriptor, 100, 0) == b"012\0\0x\0\0"
    assert (there / "file").read_bytes() == b"012\0\0x\0\0"


def test_a_huge_sparse_file_costs_no_space(here: Path, cluster: LocalCluster) -> None:
    path = here / "sparse"
    with opened(path, os.O_RDWR | os.O_CREAT) as descriptor:
        os.pwrite(descriptor, b"end", 1 << 40)
        os.fsync(descriptor)
        assert os.fstat(descriptor).st_size == (1 << 40) + 3
        assert os.pread(descriptor, 10, (1 << 40) - 5) == bytes(5) + b"end"
        assert os.pread(descriptor, 10, 1 << 39) == bytes(10)
    used = subprocess.run(["du", "-sm", cluster.directory], capture_output=True, text=True, check=True)
    assert int(used.stdout.split()[0]) < 1024


def test_ranges_are_punched_and_zeroed_and_space_is_reserved(here: Path, there: Path) -> None:
    path = here / "file"
    path.write_bytes(b"x" * 300_000)
    for arguments in (["--punch-hole", "-o", "1000", "-l", "200000"], ["--zero-range", "-o", "290000", "-l", "20000"],
                      ["-o", "0", "-l", "320000"], ["--keep-size", "-o", "0", "-l", "1000000"]):
        subprocess.run(["fallocate", *arguments, path], check=True)
    expected = b"x" * 1000 + bytes(200_000) + b"x" * 89_000 + bytes(30_000)
    assert path.read_bytes() == expected == (there / "file").read_bytes()
    refused = subprocess.run(["fallocate", "--collapse-range", "-o", "0", "-l", "4096", path], capture_output=True,
                             check=False)
    assert refused.returncode != 0 and path.read_bytes() == expected


def test_a_file_that_its_maker_preallocates_has_all_that_is_written_to_it(here: Path, there: Path) -> None:
    path, reserved = here / "file", 16 << 20
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR)
    try:
        placed = (there / "file").stat().st_ino
        subprocess.run(["fallocate", "--keep-size", "-l", str(reserved), f"/dev/fd/{descriptor}"], check=True,
                       pass_fds=[descriptor])
        os.posix_fallocate(descriptor, 0, reserved)
        os.pwrite(descriptor, b"begin", 0)
        os.pwrite(descriptor, b"end", reserved)
        os.posix_fallocate(descriptor, 0, reserved)
        os.fsync(descriptor)
        assert os.fstat(descriptor).st_ino == placed
    finally:
        os.close(descriptor)
    expected = b"begin" + bytes(reserved - 5) + b"end"
    assert path.read_bytes() == expected == (there / "file").read_bytes()


def test_a_shared_mapping_is_written_back(here: Path, there: Path) -> None:
    path = here / "file"
    path.write_bytes(b"a" * 300_000)
    with opened(path) as descriptor, mmap.mmap(descriptor, 300_000) as mapped:
        assert mapped[:3] == b"aaa"
        mapped[100_000:100_005] = b"hello"
        mapped.flush()
        mapped[0:1] = b"Z"
        os.pwrite(descriptor, b"written", 200_000)
        assert mapped[200_000:200_007] == b"written"
    expected = bytearray(b"a" * 300_000)
    expected[100_000:100_005], expected[0:1], expected[200_000:200_007] = b"hello", b"Z", b"written"
    assert path.read_bytes() == expected == (there / "file").read_bytes()


def test_changes_of_two_mounts_to_different_places_are_both_kept(here: Path, there: Path) -> None:
    (here / "file").write_bytes(bytes(300_000))
    with opened(here / "file") as one, opened(there / "file") as other:
        os.pwrite(one, b"one", 1000)
        os.pwrite(other, b"other", 200_000)
        os.pwrite(other, b"grown", 300_000)
        os.fsync(one)
        os.fsync(other)
    for directory in (here, there):
        content = (directory / "file").read_bytes()
        assert content[1000:1003] == b"one" and content[200_000:200_005] == b"other"
        assert content[300_000:] == b"grown"


def test_an_appender_on_the_other_mount_loses_nothing_to_a_change_here(here: Path, there: Path) -> None:
    (here / "log").write_bytes(b"0" * 100)
    with opened(there / "log", os.O_WRONLY | os.O_APPEND) as log, opened(here / "log") as changer:
        for number in range(20):
            os.write(log, b"line %02d\n" % number)
            os.fsync(log)
            os.pwrite(changer, b"%02d" % number, number * 2)
            os.fsync(changer)
    expected = b"".join(b"%02d" % number for number in range(20)) + b"0" * 60
    expected += b"".join(b"line %02d\n" % number for number in range(20))
    assert (here / "log").read_bytes() == expected == (there / "log").read_bytes()


def test_a_change_then_appends_then_a_change(here: Path, there: Path) -> None:
    path = here / "file"
    expected = bytearray()
    with opened(path, os.O_RDWR | os.O_CREAT) as descriptor:
        for number in range(10):
            data = bytes([65 + number]) * 30_000
            os.pwrite(descriptor, data, len(expected))
            expected += data
            os.pwrite(descriptor, b"!", number * 1000)
            expected[number * 1000] = ord("!")
            if number % 3 == 0:
                os.fsync(descriptor)
            assert os.pread(descriptor, 1 << 20, 0) == expected
    assert path.read_bytes() == expected == (there / "file").read_bytes()


def test_random_changes_match_a_local_file(here: Path, there: Path, tmp_path: Path) -> None:
    generator = random.Random(4)
    with opened(here / "f", os.O_RDWR | os.O_CREAT) as ours, opened(tmp_path / "f", os.O_RDWR | os.O_CREAT) as plain:
        for number in range(300):
            offset, length = generator.randrange(400_000), generator.randrange(1, 100_000)
            what = generator.randrange(6)
            for descriptor in (ours, plain):
                if what < 3:
                    os.pwrite(descriptor, bytes([number % 256]) * length, offset)
                elif what == 3:
                    os.ftruncate(descriptor, offset)
            if what == 4:
                os.fsync(ours)
            assert os.fstat(ours).st_size == os.fstat(plain).st_size
            assert os.pread(ours, length, offset) == os.pread(plain, length, offset)
    assert (there / "f").read_bytes() == (tmp_path / "f").read_bytes()


def test_a_temporary_file_without_a_name_can_be_changed_anywhere(here: Path) -> None:
    with opened(here / "temporary", os.O_RDWR | os.O_CREAT) as descriptor:
        os.write(descriptor, b"0123456789")
        (here / "temporary").unlink()
        os.pwrite(descriptor, b"ab", 2)
        os.pwrite(descriptor, b"end", 10)
        assert os.pread(descriptor, 100, 0) == b"01ab456789end"
        os.fsync(descriptor)
        assert os.pread(descriptor, 100, 0) == b"01ab456789end"


def test_a_full_copy_keeps_holes(here: Path, there: Path, tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.seek(5_000_000)
        file.write(b"data")
        file.truncate(9_000_000)
    subprocess.run(["cp", "--sparse=always", tmp_path / "sparse", here / "copy"], check=True)
    subprocess.run(["cmp", tmp_path / "sparse", there / "copy"], check=True)
    subprocess.run(["cp", "--sparse=always", here / "copy", here / "again"], check=True)
    subprocess.run(["cmp", tmp_path / "sparse", there / "again"], check=True)
    shutil.copyfile(here / "again", here / "third")
    subprocess.run(["cmp", tmp_path / "sparse", there / "third"], check=True)


def test_a_range_is_copied_from_file_to_file_with_what_is_not_published(here: Path, there: Path) -> None:
    """copy_file_range(2): the kernel reads and writes."""
    content = random.Random(5).randbytes(300_000)
    (here / "source").write_bytes(content)
    with opened(here / "source") as source, opened(here / "copy", os.O_RDWR | os.O_CREAT) as copy:
        os.pwrite(source, b"staged", 1000)
        done = 0
        while done < 200_000:
            done += os.copy_file_range(source, copy, 200_000 - done, 500 + done, 10 + done)
        expected = content[:1000] + b"staged" + content[1006:]
        assert os.pread(copy, 300_000, 0) == bytes(10) + expected[500:200_500]
    assert (there / "copy").read_bytes() == bytes(10) + expected[500:200_500]


@pytest.mark.parametrize(("call", "expected"), [
    pytest.param(lambda path, other: fcntl.ioctl(other, FICLONE, path), errno.EOPNOTSUPP, id="reflink"),
    pytest.param(lambda path, other: fcntl.ioctl(other, FICLONERANGE, struct.pack("qQQQ", path, 0, 4096, 0)),
                 errno.EOPNOTSUPP, id="reflink of a range"),
    pytest.param(lambda path, other: _fallocate(path, FALLOC_COLLAPSE_RANGE), errno.EOPNOTSUPP, id="collapse"),
    pytest.param(lambda path, other: _fallocate(path, FALLOC_INSERT_RANGE), errno.EOPNOTSUPP, id="insert"),
    pytest.param(lambda path, other: _fallocate(path, FALLOC_UNSHARE_RANGE), errno.EOPNOTSUPP, id="unshare")])
def test_what_there_is_not_is_refused_and_changes_nothing(here: Path, call: Callable[[int, int], object],
                                                          expected: int) -> None:
    for name in ("file", "other"):
        (here / name).write_bytes(b"x" * 8192)
    with opened(here / "file") as file, opened(here / "other") as other, pytest.raises(OSError) as caught:
        call(file, other)
    assert caught.value.errno == expected
    assert (here / "file").read_bytes() == (here / "other").read_bytes() == b"x" * 8192


def _fallocate(descriptor: int, mode: int) -> None:
    if libc.fallocate(descriptor, mode, ctypes.c_long(0), ctypes.c_long(4096)):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def test_there_are_no_files_without_a_name_and_cp_and_tempfile_do_without(here: Path) -> None:
    with pytest.raises(OSError) as caught:
        os.open(here, os.O_TMPFILE | os.O_RDWR, 0o600)
    assert caught.value.errno == errno.EOPNOTSUPP
    with tempfile.TemporaryFile(dir=here) as stream:
        stream.write(b"x")
    (here / "file").write_bytes(b"x")
    with pytest.raises(subprocess.CalledProcessError):
        subprocess.run(["cp", "--reflink=always", here / "file", here / "clone"], stderr=subprocess.DEVNULL,
                       check=True)
    subprocess.run(["cp", "--reflink=auto", here / "file", here / "copy"], check=True)
    assert sorted(path.name for path in here.iterdir() if path.stat().st_size) == ["copy", "file"]


@pytest.mark.parametrize("change", [
    lambda path: os.chown(path, 1, 1),
    lambda path: os.truncate(path, 2),
    lambda path: os.close(os.open(path, os.O_WRONLY | os.O_TRUNC)),
    overwrite,
    lambda path: overwrite(path, os.O_WRONLY | os.O_APPEND),
], ids=["chown", "truncate", "empty", "write", "append"])
def test_who_changes_a_program_takes_its_capabilities_and_no_other_attribute(
        here: Path, there: Path, change: Callable[[Path], None]) -> None:
    (here / "program").write_bytes(b"code")
    os.setxattr(here / "program", "user.kept", b"value")
    os.setxattr(here / "program", "security.capability", struct.pack("<5I", 0x02000001, 1, 0, 0, 0))   # cap_chown+ep
    assert len(os.listxattr(there / "program")) == 2
    change(there / "program")
    assert os.listxattr(here / "program") == os.listxattr(there / "program") == ["user.kept"]
