"""POSIX access control lists through two mounts, with the tools of Debian's package acl."""

import errno
import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.fuse_mount.mounting import Mounted, run
from tests.local_cluster import SCRIPTS, LocalCluster
from tests.waiting import wait_until

pytestmark = pytest.mark.root

SEEN_SECONDS = 5.0  # attributes that another mount looked up before may be a second old
NOBODY = 65534
DAEMON = 1


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("acls"), dataservers=1) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def mounts(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    """The second one needs no --acl, as there are lists when it is made."""
    directory = tmp_path_factory.mktemp("mounts")
    first = Mounted(directory / "first", cluster.nameserver.address, "--acl")
    try:
        run("setfacl", "--modify", f"u:{DAEMON}:x", first.path)
        first.path.chmod(0o755)
        second = Mounted(directory / "second", cluster.nameserver.address)
        try:
            yield first.path, second.path
        finally:
            second.clean_up()
    finally:
        first.clean_up()


@pytest.fixture
def here(mounts: tuple[Path, Path], request: pytest.FixtureRequest) -> Path:
    directory = mounts[0] / request.node.name
    directory.mkdir(mode=0o755)
    return directory


@pytest.fixture
def there(mounts: tuple[Path, Path], here: Path) -> Path:
    return mounts[1] / here.name


def entries(path: Path, *options: str) -> list[str]:
    return run("getfacl", "--omit-header", "--absolute-names", "--numeric", *options, path).split()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def may(user: int, directory: Path, code: str) -> bool:
    done = subprocess.run(["/usr/bin/python3", "-c", code], cwd=directory, user=user, group=user, extra_groups=[],
                          capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0 or "PermissionError" in done.stderr, done.stderr
    return done.returncode == 0


def test_a_list_lets_in_whom_it_names_and_nobody_else_on_both_mounts(here: Path, there: Path) -> None:
    (here / "file").write_text("x")
    (here / "file").chmod(0o640)
    for directory in (here, there):
        assert not may(DAEMON, directory, "open('file')")
    run("setfacl", "--modify", f"u:{DAEMON}:rw", here / "file")
    expected = ["user::rw-", f"user:{DAEMON}:rw-", "group::r--", "mask::rw-", "other::---"]
    assert entries(here / "file") == expected
    wait_until(lambda: entries(there / "file") == expected, SEEN_SECONDS, "the list is not known")
    assert mode(here / "file") == 0o660
    for directory in (here, there):
        assert may(DAEMON, directory, "open('file', 'r+')")
        assert not may(NOBODY, directory, "open('file')")
    (there / "file").chmod(0o640)
    wait_until(lambda: entries(here / "file")[-2] == "mask::r--", SEEN_SECONDS, "the mask is not known")
    assert not may(DAEMON, here, "open('file', 'r+')")
    assert may(DAEMON, here, "open('file')")
    run("setfacl", "--remove-all", there / "file")
    wait_until(lambda: entries(here / "file") == ["user::rw-", "group::r--", "other::---"], SEEN_SECONDS,
               "the list is still there")
    assert not may(DAEMON, here, "open('file')")


def test_what_is_made_inherits_the_default_list_and_ignores_the_umask(here: Path, there: Path) -> None:
    run("setfacl", "--default", "--modify", f"u:{DAEMON}:rwx,g::r-x,o::---", here)
    made = ("import os; os.umask(0o077); open('file', 'w').close(); os.mkdir('d'); os.mkfifo('fifo');"
            "open('d/file', 'w').close(); os.symlink('file', 'link')")
    assert may(0, there, made)
    for name in ("file", "fifo", "d/file"):
        assert entries(here / name) == ["user::rw-", f"user:{DAEMON}:rwx", "#effective:rw-", "group::r-x",
                                        "#effective:r--", "mask::rw-", "other::---"]
        assert mode(here / name) == 0o660
    assert entries(here / "d") == [*entries(here / "d", "--access"),
                                   *(f"default:{entry}" for entry in entries(here / "d", "--access"))]
    assert mode(here / "d") == 0o770
    assert may(DAEMON, here, "open('d/new', 'w')")
    run("setfacl", "--remove-default", here)
    assert may(0, here, "import os; os.umask(0o027); open('plain', 'w').close(); os.mkdir('pd', 0o777)")
    assert (mode(there / "plain"), mode(there / "pd")) == (0o640, 0o750)


def test_lists_stay_with_renames_and_go_along_with_copies(here: Path, there: Path, tmp_path: Path) -> None:
    (here / "d").mkdir()
    (here / "d" / "file").write_text("x")
    run("setfacl", "--modify", f"u:{DAEMON}:r,g:{DAEMON}:rw", here / "d" / "file")
    run("setfacl", "--default", "--modify", f"u:{NOBODY}:rx", here / "d")
    lists = entries(here / "d" / "file"), entries(here / "d")
    (here / "d").rename(here / "moved")
    run("cp", "--archive", there / "moved", there / "copy")
    run("tar", "--acls", "--create", "--file", tmp_path / "archive", "--directory", here, "moved")
    (here / "out").mkdir()
    run("tar", "--acls", "--extract", "--file", tmp_path / "archive", "--directory", here / "out")
    for place in (there / "moved", here / "copy", there / "out" / "moved"):
        assert (entries(place / "file"), entries(place)) == lists


def test_lists_survive_a_dump_and_a_load(here: Path, cluster: LocalCluster, tmp_path: Path) -> None:
    run("setfacl", "--modify", f"u:{DAEMON}:rwx", here)
    run("setfacl", "--default", "--modify", f"u:{NOBODY}:rx", here)
    dump = tmp_path / "dump"
    run(SCRIPTS / "speedwell", "dump", dump, "--nameserver", cluster.nameserver.address)
    with LocalCluster(tmp_path / "other", dataservers=0) as other:
        run(SCRIPTS / "speedwell", "load", dump, "--nameserver", other.nameserver.address)
        mount = Mounted(tmp_path / "mount", other.nameserver.address)
        try:
            assert entries(mount.path / here.name) == entries(here)
        finally:
            mount.clean_up()


def test_what_is_no_list_or_too_long_is_refused(here: Path) -> None:
    (here / "file").touch()
    (here / "link").symlink_to("file")
    good = b"\2\0\0\0" + b"".join(tag + b"\0\7\0\xff\xff\xff\xff" for tag in (b"\1", b"\4", b"\x20"))

    def refusal(path: Path, name: str, value: bytes, **options: bool) -> int:
        with pytest.raises(OSError) as caught:
            os.setxattr(path, name, value, **options)
        return caught.value.errno or 0

    assert refusal(here / "file", "system.posix_acl_access", good[:-1]) == errno.EINVAL
    assert refusal(here / "file", "system.posix_acl_access", good[:-8]) == errno.EINVAL
    assert refusal(here / "file", "system.posix_acl_default", good) == errno.EACCES
    assert refusal(here / "link", "system.posix_acl_access", good, follow_symlinks=False) == errno.EOPNOTSUPP
    assert refusal(here / "file", "system.other", good) == errno.EOPNOTSUPP
    users = ",".join(f"u:{number}:r" for number in range(1000, 1600))
    done = subprocess.run(["setfacl", "--modify", users, here / "file"], capture_output=True, text=True, check=False)
    assert "Argument list too long" in done.stderr
    assert entries(here / "file") == ["user::rw-", "group::r--", "other::r--"]


def test_who_is_not_in_the_group_takes_the_setgid_bit_with_a_list(here: Path) -> None:
    here.chmod(0o777)
    (here / "program").touch()
    os.chown(here / "program", NOBODY, DAEMON)
    (here / "program").chmod(0o2755)
    run("setfacl", "--modify", f"u:{DAEMON}:x", here / "program")
    assert mode(here / "program") == 0o2755
    subprocess.run(["setfacl", "--modify", f"u:{DAEMON}:rx", "program"], cwd=here, user=NOBODY, group=NOBODY,
                   extra_groups=[], check=True)
    assert mode(here / "program") == 0o755


def test_without_lists_in_the_namespace_a_mount_has_none_unless_it_is_told(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, dataservers=0) as cluster:
        mount = Mounted(tmp_path / "mount", cluster.nameserver.address)
        try:
            done = subprocess.run(["setfacl", "--modify", "u:1:r", mount.path], capture_output=True, text=True,
                                  check=False)
            assert "Operation not supported" in done.stderr
        finally:
            mount.clean_up()
