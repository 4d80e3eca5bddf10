"""Names and attributes as POSIX has them, on a mount and seen from another."""

# ruff: noqa: PTH115, PTH208, PTH211 (the system calls by their names)

import ctypes
import errno
import os
import socket
import stat
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.waiting import wait_until

pytestmark = pytest.mark.root

NOBODY = 65534
RENAME_EXCHANGE = 2
RENAME_WHITEOUT = 4
RENAME_NOREPLACE = 1
AT_FDCWD = -100
SEEN_SECONDS = 3.0  # attributes that another mount looked up before may be a second old

libc = ctypes.CDLL(None, use_errno=True)


def renameat2(source: Path, destination: Path, flags: int) -> None:
    if libc.renameat2(AT_FDCWD, os.fsencode(source), AT_FDCWD, os.fsencode(destination), flags):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def as_nobody(directory: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Run Python inside `directory`, whose own parents need not let that user in."""
    return subprocess.run(["/usr/bin/python3", "-c", "import os\n" + code], cwd=directory, user=NOBODY, group=NOBODY,
                          extra_groups=[], capture_output=True, text=True, timeout=30, check=False)


def test_a_symbolic_link_leads_to_its_target_on_both_mounts(here: Path, there: Path) -> None:
    (here / "file").write_text("content")
    (here / "link").symlink_to("file")
    (here / "loop").symlink_to("loop")
    assert (there / "link").read_text() == "content"
    assert os.readlink(there / "link") == "file"
    assert (there / "link").lstat().st_size == len("file")
    assert stat.S_ISLNK((there / "link").lstat().st_mode)
    with pytest.raises(OSError) as caught:
        (there / "loop").read_text()
    assert caught.value.errno == errno.ELOOP


def test_a_symbolic_links_target_can_be_any_bytes_up_to_4095(here: Path) -> None:
    target = bytes(number for number in range(1, 256)) + b"/x" * 1920
    assert len(target) == 4095
    os.symlink(target, here / "link")
    assert os.readlink(os.fsencode(here / "link")) == target


def test_hard_links_are_one_file_with_several_names(here: Path, there: Path) -> None:
    first, second = here / "first", here / "second"
    first.write_text("one")
    os.link(first, second)
    assert first.stat().st_ino == second.stat().st_ino
    assert [first.stat().st_nlink, second.stat().st_nlink] == [2, 2]
    second.chmod(0o600)
    assert stat.S_IMODE(first.stat().st_mode) == 0o600
    with second.open("a") as file:
        file.write(" two")
    assert first.read_text() == (there / "second").read_text() == "one two"
    first.unlink()
    assert second.stat().st_nlink == 1
    assert second.read_text() == "one two"
    assert not (there / "first").exists()


def test_a_removed_file_lives_in_its_descriptor_and_nowhere_else(here: Path, there: Path) -> None:
    path = here / "file"
    path.write_text("before")
    with path.open("rb") as reader, path.open("ab", buffering=0) as writer:
        path.unlink()
        assert os.fstat(writer.fileno()).st_nlink == 0
        assert os.listdir(here) == os.listdir(there) == []
        writer.write(b" after")
        os.fsync(writer.fileno())
        assert reader.read() == b"before after"
        os.fchmod(writer.fileno(), 0o600)
        assert stat.S_IMODE(os.fstat(reader.fileno()).st_mode) == 0o600
        path.write_text("another")
        assert os.fstat(writer.fileno()).st_size == len("before after")
    assert os.listdir(there) == ["file"]
    assert (there / "file").read_text() == "another"
    path.unlink()
    here.rmdir()


def test_a_file_that_is_replaced_while_open_stays_readable(here: Path, there: Path) -> None:
    (here / "old").write_text("old")
    (here / "new").write_text("new")
    with (here / "old").open() as reader:
        (here / "new").rename(here / "old")
        assert os.listdir(there) == ["old"]
        assert (there / "old").read_text() == "new"
        assert reader.read() == "old"
        assert os.fstat(reader.fileno()).st_nlink == 0


@pytest.mark.parametrize("how", ["removed", "replaced"])
def test_an_open_directory_that_goes_has_no_links_any_more(here: Path, how: str) -> None:
    (here / "d").mkdir()
    (here / "other").mkdir()
    descriptor = os.open(here / "d", os.O_RDONLY)
    try:
        if how == "removed":
            (here / "d").rmdir()
        else:
            (here / "other").rename(here / "d")
        assert os.fstat(descriptor).st_nlink == 0
        time.sleep(1.1)     # the kernel asks again
        status = os.fstat(descriptor)
        assert (status.st_nlink, stat.S_ISDIR(status.st_mode)) == (0, True)
        with pytest.raises(FileNotFoundError):
            os.mkdir("x", dir_fd=descriptor)
    finally:
        os.close(descriptor)


def test_a_file_that_another_mount_removes_or_replaces_is_read_to_its_end(here: Path, there: Path) -> None:
    (here / "removed").write_bytes(b"content")
    (here / "replaced").write_bytes(b"content")
    with (there / "removed").open("rb", buffering=0) as removed, \
            (there / "replaced").open("rb", buffering=0) as replaced:
        (here / "removed").unlink()
        (here / "new").write_bytes(b"something else")
        (here / "new").rename(here / "replaced")
        wait_until(lambda: not (there / "removed").exists(), SEEN_SECONDS, "the other mount still sees the name")
        for reader in (removed, replaced):
            assert reader.read(100) == b"content"   # more than there is: the kernel asks how long the file is by now
            assert reader.read(100) == b""
            assert os.lseek(reader.fileno(), 0, os.SEEK_END) == len(b"content")


def test_a_file_removed_under_one_name_keeps_the_other_while_it_is_open(here: Path) -> None:
    (here / "first").write_text("x")
    os.link(here / "first", here / "second")
    with (here / "first").open() as reader:
        (here / "first").unlink()
        assert os.fstat(reader.fileno()).st_nlink == 1
        (here / "second").unlink()
        assert os.fstat(reader.fileno()).st_nlink == 0
        assert reader.read() == "x"
    assert os.listdir(here) == []


def test_rename_exchanges_two_names_and_can_refuse_to_replace(here: Path, there: Path) -> None:
    (here / "file").write_text("file")
    (here / "directory").mkdir()
    (here / "directory" / "inner").write_text("inner")
    renameat2(here / "file", here / "directory", RENAME_EXCHANGE)
    assert (there / "directory").read_text() == "file"
    assert (there / "file" / "inner").read_text() == "inner"
    with pytest.raises(FileExistsError):
        renameat2(here / "directory", here / "file", RENAME_NOREPLACE)
    for refused in (lambda: (here / "file").rename(here / "file" / "below"),
                    lambda: renameat2(here / "directory", here / "new", RENAME_WHITEOUT)):
        with pytest.raises(OSError) as caught:
            refused()
        assert caught.value.errno == errno.EINVAL
    assert (there / "directory").read_text() == "file"


def test_fifos_sockets_and_devices_are_what_they_are_and_a_fifo_works(here: Path, there: Path) -> None:
    os.mkfifo(here / "fifo", 0o640)
    os.mknod(here / "device", stat.S_IFCHR | 0o600, os.makedev(240, 12345))
    with socket.socket(socket.AF_UNIX) as listener:
        directory = os.open(here, os.O_RDONLY)
        listener.bind(f"/proc/self/fd/{directory}/socket")
        os.close(directory)
    kinds = {name: stat.S_IFMT((there / name).lstat().st_mode) for name in os.listdir(there)}
    assert kinds == {"fifo": stat.S_IFIFO, "device": stat.S_IFCHR, "socket": stat.S_IFSOCK}
    assert (there / "device").stat().st_rdev == os.makedev(240, 12345)
    reader = os.open(here / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    writer = os.open(here / "fifo", os.O_WRONLY)
    os.write(writer, b"through")
    assert os.read(reader, 100) == b"through"
    os.close(reader)
    os.close(writer)


def test_extended_attributes_are_seen_on_both_mounts_with_the_right_errors(here: Path, there: Path) -> None:
    path = here / "file"
    path.write_text("x")
    assert os.listxattr(path) == []
    os.setxattr(path, "user.name", b"\0value", os.XATTR_CREATE)
    os.setxattr(path, "trusted.secret", b"")
    os.setxattr(path, "security.mine", b"z" * 65536)
    wait_until(lambda: os.listxattr(there / "file") != [], SEEN_SECONDS, "the attributes are not seen")
    assert sorted(os.listxattr(there / "file")) == ["security.mine", "trusted.secret", "user.name"]
    assert os.getxattr(there / "file", "user.name") == b"\0value"
    assert len(os.getxattr(there / "file", "security.mine")) == 65536
    failures = {
        errno.EEXIST: lambda: os.setxattr(path, "user.name", b"", os.XATTR_CREATE),
        errno.ENODATA: lambda: os.setxattr(path, "user.other", b"", os.XATTR_REPLACE),
        errno.EOPNOTSUPP: lambda: os.setxattr(path, "other.name", b""),
        errno.EINVAL: lambda: os.setxattr(path, "user.", b""),
        errno.ENOSPC: lambda: os.setxattr(path, "user.large", b"z" * 65536),
        errno.E2BIG: lambda: os.setxattr(path, "user.large", b"z" * 65537),
        errno.ERANGE: lambda: os.setxattr(path, "user." + "n" * 251, b""),
    }
    for number, action in failures.items():
        with pytest.raises(OSError) as caught:
            action()
        assert caught.value.errno == number
    os.removexattr(path, "user.name")
    with pytest.raises(OSError) as caught:
        os.getxattr(path, "user.name")
    assert caught.value.errno == errno.ENODATA


def test_another_user_has_the_rights_that_the_modes_say(here: Path) -> None:
    here.chmod(0o755)
    (here / "private").write_text("x")
    (here / "private").chmod(0o600)
    shared = here / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    (shared / "of-root").write_text("x")
    assert "PermissionError" in as_nobody(here, "open('private')").stderr
    assert "PermissionError" in as_nobody(here, "open('new', 'w')").stderr
    assert "PermissionError" in as_nobody(shared, "os.unlink('of-root')").stderr
    made = as_nobody(shared, "os.umask(0o027); open('own', 'w').write('x'); os.mkdir('ownd')")
    assert made.returncode == 0, made.stderr
    own = (shared / "own").stat()
    assert (own.st_uid, own.st_gid, stat.S_IMODE(own.st_mode)) == (NOBODY, NOBODY, 0o640)
    assert stat.S_IMODE((shared / "ownd").stat().st_mode) == 0o750


def test_a_write_of_another_user_takes_the_set_id_bits(here: Path) -> None:
    here.chmod(0o755)
    path = here / "program"
    path.write_text("x")
    path.chmod(0o6777)
    with path.open("a") as file:
        file.write("root may")
    assert stat.S_IMODE(path.stat().st_mode) == 0o6777
    assert as_nobody(here, "open('program', 'a').write('x')").returncode == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o777


def test_another_user_who_empties_a_file_takes_the_set_id_bits(here: Path) -> None:
    here.chmod(0o755)
    path = here / "program"
    path.write_text("x")
    path.chmod(0o6777)
    assert as_nobody(here, "os.close(os.open('program', os.O_WRONLY | os.O_TRUNC))").returncode == 0
    assert (stat.S_IMODE(path.stat().st_mode), path.stat().st_size) == (0o777, 0)


def test_a_write_of_another_user_takes_set_id_bits_that_another_mount_has_set_meanwhile(here: Path, there: Path
                                                                                      ) -> None:
    here.chmod(0o755)
    (here / "program").write_text("old")
    (here / "program").chmod(0o777)
    script = "f = open('program', 'r+'); print('opened', flush=True); sys.stdin.readline(); f.write('new'); f.close()"
    with subprocess.Popen(["/usr/bin/python3", "-c", f"import sys; {script}"], cwd=here, user=NOBODY, group=NOBODY,
                          extra_groups=[], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdin is not None and program.stdout is not None
        assert program.stdout.readline() == "opened\n"
        (there / "program").chmod(0o6777)
        program.communicate("\n", timeout=30)
    assert program.returncode == 0 and (there / "program").read_text() == "new"
    wait_until(lambda: stat.S_IMODE((there / "program").stat().st_mode) == 0o777, 10, "the bits stay")


def test_who_writes_and_then_sets_set_id_bits_has_them_after_close(here: Path) -> None:
    here.chmod(0o777)
    write = "f = os.open('program', os.O_CREAT | os.O_WRONLY); os.write(f, b'x'); os.fchmod(f, 0o4755)"
    done = as_nobody(here, write)
    assert done.returncode == 0, done.stderr
    assert stat.S_IMODE((here / "program").stat().st_mode) == 0o4755


@pytest.mark.parametrize("change", ["os.write(f, b'x')", "os.posix_fallocate(f, 0, 1)"])
@pytest.mark.parametrize(("before", "after"), [(0o6777, 0o777), (0o2666, 0o666)])
def test_a_write_of_another_user_to_an_empty_file_takes_the_set_id_bits_at_once(here: Path, before: int, after: int,
                                                                                change: str) -> None:
    """As chmod/12.t of pjdfstest's C suite has it: the program that wrote looks itself; and 683 of xfstests."""
    here.chmod(0o755)
    (here / "program").touch()
    (here / "program").chmod(before)
    look = f"f = os.open('program', os.O_WRONLY); {change}; print('%o' % (os.fstat(f).st_mode & 0o7777))"
    done = as_nobody(here, look)
    assert (done.stdout, done.stderr) == (f"{after:o}\n", "")
    assert stat.S_IMODE((here / "program").stat().st_mode) == after


def test_a_create_that_another_mount_overtakes_opens_nothing_that_the_caller_may_not(here: Path, there: Path
                                                                                  ) -> None:
    here.chmod(0o777)
    race = ("import time\n"
            "for number in range(150):\n"
            "    while not os.path.exists(f'go{number}'): pass\n"
            "    try:\n"
            "        made = os.open(f'file{number}', os.O_CREAT | os.O_RDWR | os.O_TRUNC, 0o600)\n"
            "        assert os.fstat(made).st_uid == os.getuid(), number\n"
            "    except PermissionError: pass\n")
    program = subprocess.Popen(["/usr/bin/python3", "-c", "import os\n" + race], cwd=there, user=NOBODY, group=NOBODY,
                               extra_groups=[], stderr=subprocess.PIPE, text=True)
    for number in range(150):
        (here / f"go{number}").touch()
        for _ in range(number % 10):
            (here / "go0").stat()
        with suppress(FileExistsError):
            os.close(os.open(here / f"file{number}", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    assert program.communicate(timeout=60)[1] == ""


def test_bits_that_another_mount_set_go_with_a_write_here(here: Path, there: Path) -> None:
    here.chmod(0o755)
    (there / "program").touch()
    (there / "program").chmod(0o6777)
    look = "f = os.open('program', os.O_WRONLY); os.write(f, b'x'); print('%o' % (os.fstat(f).st_mode & 0o7777))"
    assert as_nobody(here, look).stdout == "777\n"


def test_changes_move_the_times_that_posix_names(here: Path) -> None:
    path = here / "file"
    path.write_text("x")
    os.utime(path, ns=(1_000_000_001, -5))
    first, directory = path.stat(), here.stat()
    assert (first.st_atime_ns, first.st_mtime_ns) == (1_000_000_001, -5)
    time.sleep(0.002)  # so that a change cannot have the same time
    path.chmod(0o600)
    second = path.stat()
    assert second.st_ctime_ns > first.st_ctime_ns
    assert second.st_mtime_ns == -5
    assert here.stat().st_mtime_ns == directory.st_mtime_ns
    os.link(path, here / "other")
    assert path.stat().st_ctime_ns > second.st_ctime_ns
    assert here.stat().st_mtime_ns > directory.st_mtime_ns


def test_a_file_cut_to_the_length_it_has_counts_as_changed(here: Path) -> None:
    path = here / "file"
    path.write_text("four")

    def is_seen_to_change(cut: object, *arguments: object) -> bool:
        os.utime(path, ns=(7, 7))
        cut(*arguments)  # type: ignore[operator]
        return path.stat().st_mtime_ns > 7

    with path.open("r+") as file:
        assert is_seen_to_change(os.truncate, path, 4)
        assert is_seen_to_change(os.ftruncate, file.fileno(), 4)
    assert is_seen_to_change(os.truncate, path, 4)
    path.write_text("")
    assert is_seen_to_change(os.truncate, path, 0)
    assert path.stat().st_size == 0


def test_times_beyond_those_that_can_be_kept_become_the_last_that_can(here: Path) -> None:
    path = here / "file"
    path.touch()
    os.utime(path, (2**34, 2**34))
    assert path.stat().st_mtime_ns == 2**63 - 1
    os.utime(path, (5, -2**40))
    assert path.stat().st_mtime_ns == 1 - 2**63
    assert path.stat().st_atime_ns == 5 * 10**9


def test_names_have_up_to_255_bytes_and_paths_up_to_4096(here: Path) -> None:
    (here / ("n" * 255)).touch()
    with pytest.raises(OSError) as caught:
        (here / ("n" * 256)).touch()
    assert caught.value.errno == errno.ENAMETOOLONG
    assert os.statvfs(here).f_namemax == 255
    assert os.statvfs(here).f_ffree > 0
