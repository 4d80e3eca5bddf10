"""What writes through a mount mean: positions, flags, lengths, times, errors."""

# ruff: noqa: PTH208 (the names as the system call lists them)

import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from speedwell.fs.limits import MAX_FILE_BYTES
from tests.local_cluster import LocalCluster
from tests.waiting import wait_until

pytestmark = pytest.mark.root


@contextmanager
def opened(path: Path, flags: int) -> Iterator[int]:
    descriptor = os.open(path, flags, 0o644)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def errno_of(operation: object, *arguments: object) -> int | None:
    with pytest.raises(OSError) as caught:
        operation(*arguments)  # type: ignore[operator]
    return caught.value.errno


def test_stat_counts_bytes_that_are_still_buffered(here: Path) -> None:
    path = here / "file"
    with opened(path, os.O_WRONLY | os.O_CREAT) as descriptor:
        os.write(descriptor, b"x" * 1000)
        assert path.stat().st_size == 1000
        assert os.fstat(descriptor).st_size == 1000
        os.write(descriptor, b"x" * 10)
        assert path.stat().st_size == 1010
    assert path.stat().st_size == 1010


def test_o_append_ignores_the_position(here: Path) -> None:
    path = here / "file"
    path.write_bytes(b"abc")
    with opened(path, os.O_WRONLY | os.O_APPEND) as descriptor:
        os.lseek(descriptor, 0, os.SEEK_SET)
        os.write(descriptor, b"def")
    assert path.read_bytes() == b"abcdef"


def test_o_trunc_empties_a_file(here: Path, there: Path) -> None:
    path = here / "file"
    path.write_bytes(b"long content")
    with opened(path, os.O_WRONLY | os.O_TRUNC) as descriptor:
        assert os.fstat(descriptor).st_size == 0
        os.write(descriptor, b"new")
    assert path.read_bytes() == b"new"
    assert (there / "file").read_bytes() == b"new"


def test_a_running_program_can_be_neither_written_nor_emptied(here: Path) -> None:
    program = Path(shutil.copy("/usr/bin/sleep", here / "program"))     # with its permissions
    with subprocess.Popen([program, "60"]) as running:
        try:
            for flags in (os.O_WRONLY, os.O_RDWR, os.O_RDONLY | os.O_TRUNC):
                assert errno_of(os.open, program, flags) == errno.ETXTBSY
            assert program.read_bytes() == Path("/usr/bin/sleep").read_bytes() and running.poll() is None
        finally:
            running.kill()

    def emptied() -> bool:
        with suppress(OSError), opened(program, os.O_RDONLY | os.O_TRUNC):
            return True
        return False

    wait_until(emptied, 10, "it still counts as running")
    assert program.stat().st_size == 0


def test_o_excl_refuses_a_file_that_the_other_mount_made(here: Path, there: Path) -> None:
    assert errno_of(os.open, here / "file", os.O_RDONLY) == errno.ENOENT
    (there / "file").write_bytes(b"theirs")
    assert errno_of(os.open, here / "file", os.O_WRONLY | os.O_CREAT | os.O_EXCL) == errno.EEXIST
    assert (here / "file").read_bytes() == b"theirs"


def test_ftruncate_starts_an_open_file_over(here: Path, there: Path) -> None:
    path = here / "file"
    with opened(path, os.O_WRONLY | os.O_CREAT) as descriptor:
        os.write(descriptor, b"to be forgotten")
        os.ftruncate(descriptor, 15)
        os.ftruncate(descriptor, 0)
        os.lseek(descriptor, 0, os.SEEK_SET)
        os.write(descriptor, b"kept")
    assert path.read_bytes() == b"kept"
    assert (there / "file").read_bytes() == b"kept"


def test_a_reader_on_the_same_mount_sees_what_another_handle_has_written(here: Path) -> None:
    path = here / "file"
    with opened(path, os.O_WRONLY | os.O_CREAT) as writer, opened(path, os.O_RDONLY) as reader:
        for number in range(50):
            line = b"line %03d\n" % number
            os.write(writer, line)
            assert os.pread(reader, 100, 9 * number) == line


def test_one_descriptor_reads_back_what_it_wrote(here: Path) -> None:
    with opened(here / "file", os.O_RDWR | os.O_CREAT | os.O_EXCL) as descriptor:
        os.write(descriptor, b"a" * 200_000)
        assert os.pread(descriptor, 10, 199_995) == b"aaaaa"
        os.write(descriptor, b"b" * 10)
        assert os.pread(descriptor, 20, 199_995) == b"aaaaa" + b"b" * 10
        assert os.pread(descriptor, 10, 500_000) == b""


def test_several_writers_of_one_mount_append_whole_lines(here: Path, there: Path) -> None:
    path = here / "file"
    with opened(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND) as one, \
            opened(path, os.O_WRONLY | os.O_APPEND) as other:
        for number in range(100):
            os.write(one, b"one %d\n" % number)
            os.write(other, b"other %d\n" % number)
    expected = b"".join(b"one %d\nother %d\n" % (number, number) for number in range(100))
    assert path.read_bytes() == expected
    assert (there / "file").read_bytes() == expected


def test_times_set_before_close_survive_it(here: Path, there: Path) -> None:
    path = here / "file"
    with opened(path, os.O_WRONLY | os.O_CREAT) as descriptor:
        os.write(descriptor, b"x" * 100_000)
        os.utime(descriptor, ns=(10**18, 10**18 + 5))
    assert path.stat().st_mtime_ns == 10**18 + 5
    assert (there / "file").stat().st_mtime_ns == 10**18 + 5
    with opened(path, os.O_WRONLY | os.O_APPEND) as descriptor:
        os.write(descriptor, b"y")
    assert path.stat().st_mtime_ns > 10**18 + 5


def test_no_call_makes_a_file_longer_than_a_file_can_be(here: Path, there: Path) -> None:
    path = here / "file"
    path.write_bytes(b"some")
    for length in (MAX_FILE_BYTES + 1, 2**62, 2**63 - 1):
        assert errno_of(os.truncate, path, length) == errno.EFBIG
        with opened(path, os.O_RDWR) as descriptor:
            assert errno_of(os.ftruncate, descriptor, length) == errno.EFBIG
            assert errno_of(os.posix_fallocate, descriptor, length - 10, 10) == errno.EFBIG
            assert errno_of(os.pwrite, descriptor, b"x", length - 1) == errno.EFBIG
    assert (there / "file").read_bytes() == b"some"
    os.truncate(path, MAX_FILE_BYTES)
    with opened(there / "file", os.O_RDWR | os.O_APPEND) as descriptor:
        assert os.pread(descriptor, 10, MAX_FILE_BYTES - 5) == bytes(5)
        assert errno_of(os.write, descriptor, b"x") == errno.EFBIG
    os.truncate(there / "file", 4)
    assert path.read_bytes() == b"some"


def test_a_write_moves_the_modification_time(here: Path) -> None:
    path = here / "file"
    path.write_bytes(b"x")
    os.utime(path, ns=(10**18, 10**18))
    with opened(path, os.O_WRONLY | os.O_APPEND) as descriptor:
        os.write(descriptor, b"y")
        os.fsync(descriptor)
        assert path.stat().st_mtime_ns > 10**18


def test_stat_right_after_close_shows_the_time_of_the_commit(here: Path, cluster: LocalCluster) -> None:
    client = cluster.client()
    for number in range(10):
        path = here / f"file{number}"
        with opened(path, os.O_WRONLY | os.O_CREAT) as descriptor:
            os.write(descriptor, b"x")
            path.stat()  # leaves the time of the creation in the kernel
        committed = client.lookup(f"/{here.name}/{path.name}", fresh=True)
        assert path.stat().st_mtime_ns == committed.mtime_ns


def test_a_file_renamed_while_it_is_written_keeps_every_byte(here: Path, there: Path) -> None:
    with opened(here / "before", os.O_WRONLY | os.O_CREAT) as descriptor:
        os.write(descriptor, b"first ")
        (here / "before").rename(here / "after")
        os.write(descriptor, b"second")
    assert (here / "after").read_bytes() == b"first second"
    assert (there / "after").read_bytes() == b"first second"
    assert os.listdir(there) == ["after"]


def test_a_file_removed_while_it_is_written_closes_without_an_error(here: Path, there: Path) -> None:
    with opened(here / "file", os.O_WRONLY | os.O_CREAT) as descriptor:
        os.write(descriptor, b"x" * 1000)
        (here / "file").unlink()
        os.write(descriptor, b"y" * 1000)
        os.fsync(descriptor)
    assert os.listdir(here) == []
    assert os.listdir(there) == []


def test_a_file_removed_while_it_is_read_can_be_read_to_its_end(here: Path) -> None:
    content = os.urandom(3 << 20)
    (here / "file").write_bytes(content)
    with opened(here / "file", os.O_RDONLY) as descriptor:
        (here / "file").unlink()
        back = b""
        while piece := os.read(descriptor, 1 << 20):
            back += piece
    assert back == content


def test_a_reader_keeps_the_content_that_a_rename_replaces(here: Path) -> None:
    (here / "old").write_bytes(b"old" * 1000)
    (here / "new").write_bytes(b"new" * 1000)
    with opened(here / "old", os.O_RDONLY) as descriptor:
        assert os.pread(descriptor, 3, 0) == b"old"
        (here / "new").rename(here / "old")
        assert (here / "old").read_bytes() == b"new" * 1000
        assert os.pread(descriptor, 3000, 0) == b"old" * 1000


def test_rename_noreplace_refuses_an_existing_name(here: Path) -> None:
    import ctypes

    (here / "a").write_text("a")
    (here / "b").write_text("b")
    libc = ctypes.CDLL(None, use_errno=True)
    at_cwd, noreplace = -100, 1
    names = os.fsencode(here / "a"), os.fsencode(here / "b")
    assert libc.renameat2(at_cwd, names[0], at_cwd, names[1], noreplace) == -1
    assert ctypes.get_errno() == errno.EEXIST
    assert (here / "b").read_text() == "b"


def test_directories_answer_the_usual_errors(here: Path) -> None:
    (here / "d" / "inner").mkdir(parents=True)
    (here / "file").write_text("x")
    assert errno_of((here / "d").rmdir) == errno.ENOTEMPTY
    assert errno_of((here / "d").mkdir) == errno.EEXIST
    assert errno_of(os.listdir, here / "file") == errno.ENOTDIR
    assert errno_of(os.stat, here / "file" / "below") == errno.ENOTDIR
    assert errno_of(os.rename, here / "file", here / "d") == errno.EISDIR
    assert errno_of(os.unlink, here / "d") == errno.EISDIR
    assert errno_of(os.rename, here / "d", here / "d" / "inner" / "below") == errno.EINVAL


def test_a_name_of_300_bytes_is_too_long_and_one_of_255_is_not(here: Path) -> None:
    assert errno_of(os.stat, here / ("x" * 300)) == errno.ENAMETOOLONG
    assert errno_of(os.open, here / ("x" * 300), os.O_CREAT | os.O_WRONLY) == errno.ENAMETOOLONG
    assert errno_of(os.mkdir, here / ("x" * 300)) == errno.ENAMETOOLONG
    (here / ("x" * 255)).write_text("fits")
    assert os.listdir(here) == ["x" * 255]


def test_names_that_are_not_utf_8_work(here: Path, there: Path) -> None:
    name = b"caf\xe9 \xff"
    with opened(Path(os.fsdecode(os.fsencode(here) + b"/" + name)), os.O_CREAT | os.O_WRONLY):
        pass
    assert os.listdir(os.fsencode(there)) == [name]


def test_a_file_opened_for_writing_only_cannot_be_read(here: Path) -> None:
    with opened(here / "file", os.O_CREAT | os.O_WRONLY) as descriptor:
        assert errno_of(os.read, descriptor, 10) == errno.EBADF


def test_permissions_are_checked_for_other_users(here: Path) -> None:
    (here / "private").write_text("secret")
    (here / "private").chmod(0o600)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.setuid(65534)
            os.open(here / "private", os.O_RDONLY)
        except PermissionError:
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
