"""Starting, stopping and outliving a mount."""

# ruff: noqa: PTH208 (the names as the system call lists them)

import errno
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from speedwell.fs.mount_table import mounted_here
from tests.integration.fuse_mount.mounting import SPEEDWELL_MOUNT, Mounted, run, wait_unmounted
from tests.local_cluster import LocalCluster
from tests.waiting import wait_until

pytestmark = pytest.mark.root

MEMORY_LIMIT_MIB = 120


@pytest.fixture
def mountpoint(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "mount point"
    path.mkdir()
    yield path
    while mounted_here(path) is not None:
        subprocess.run(["umount", "--lazy", path], check=True)


def start(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(word) for word in (SPEEDWELL_MOUNT, *arguments)], capture_output=True, text=True,
                          timeout=30, check=False)


def refusal(*arguments: str | Path) -> str:
    """What the command says, in one line, when it refuses."""
    done = start(*arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    return done.stderr


def daemon_pid(mountpoint: Path) -> int:
    needle = os.fsencode(mountpoint)
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) != os.getpid():
            with suppress(FileNotFoundError, ProcessLookupError):   # it may have ended meanwhile
                words = (process / "cmdline").read_bytes().split(b"\0")
                if needle in words and any(word.endswith(b"speedwell-mount") for word in words):
                    return int(process.name)
    raise AssertionError(f"no daemon serves {mountpoint}")


def has_ended(pid: int) -> bool:
    """Gone, or a zombie that the init process of a container does not collect."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("Z")
    except FileNotFoundError:
        return True


def test_the_daemon_is_ready_when_the_command_returns_and_ends_on_sigterm(
        cluster: LocalCluster, mountpoint: Path, tmp_path: Path) -> None:
    log = tmp_path / "mount.log"
    done = start(mountpoint, "--nameserver", cluster.nameserver.address, "--log", log)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"ready {mountpoint}\n", "")
    (mountpoint / "lifecycle").write_text("works")
    (mountpoint / "lifecycle").unlink()
    pid = daemon_pid(mountpoint)
    assert os.getsid(pid) != os.getsid(0)
    os.kill(pid, signal.SIGTERM)
    wait_unmounted(mountpoint)
    wait_until(lambda: has_ended(pid), 15, "the daemon did not end")
    assert "unmounted" in log.read_text()
    assert "ERROR" not in log.read_text()


def test_unmounting_ends_the_process_with_status_0(cluster: LocalCluster, mountpoint: Path) -> None:
    mount = Mounted(mountpoint, cluster.nameserver.address)
    try:
        run("umount", mountpoint)
        assert mount.process.wait(60) == 0
    finally:
        mount.clean_up()


def test_sigterm_saves_what_open_files_have_buffered(cluster: LocalCluster, mountpoint: Path) -> None:
    mount = Mounted(mountpoint, cluster.nameserver.address)
    try:
        descriptor = os.open(mountpoint / "unfinished", os.O_WRONLY | os.O_CREAT)
        os.write(descriptor, b"not closed yet")
        assert mount.stop() == 0
        with pytest.raises(OSError):  # the program's descriptor died with the mount
            os.close(descriptor)
        client = cluster.client()
        assert client.open_read("/unfinished").read(0, 100) == b"not closed yet"
        client.remove("/unfinished")
    finally:
        mount.clean_up()


def test_a_killed_mount_is_cleared_by_the_next_start(cluster: LocalCluster, mountpoint: Path) -> None:
    first = Mounted(mountpoint, cluster.nameserver.address)
    mountpoint.stat()       # the kernel answers the next ones itself for a second
    first.kill()
    with pytest.raises(OSError) as caught:
        os.listdir(mountpoint)
    assert caught.value.errno == errno.ENOTCONN
    second = Mounted(mountpoint, cluster.nameserver.address)
    try:
        os.listdir(mountpoint)
        assert second.stop() == 0
    finally:
        first.clean_up()
        second.clean_up()


def test_a_second_mount_on_the_same_directory_is_refused(cluster: LocalCluster, mountpoint: Path) -> None:
    mount = Mounted(mountpoint, cluster.nameserver.address)
    try:
        message = refusal(mountpoint, "--nameserver", cluster.nameserver.address)
        assert "already mounted" in message
        os.listdir(mountpoint)
        assert mount.stop() == 0
    finally:
        mount.clean_up()


def test_a_bad_mountpoint_is_refused_with_one_message(cluster: LocalCluster, tmp_path: Path) -> None:
    nameserver = cluster.nameserver.address
    (tmp_path / "file").touch()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "something").touch()
    assert "does not exist" in refusal(tmp_path / "missing", "--nameserver", nameserver)
    assert "not a directory" in refusal(tmp_path / "file", "--nameserver", nameserver)
    assert "not empty" in refusal(tmp_path / "full", "--nameserver", nameserver)


def test_no_nameserver_is_one_message_and_no_mount(mountpoint: Path, tmp_path: Path) -> None:
    message = refusal(mountpoint, "--nameserver", "127.0.0.1:1", "--log", tmp_path / "log")
    assert "127.0.0.1:1" in message
    assert mounted_here(mountpoint) is None


def test_bad_flags_are_refused_with_one_message(mountpoint: Path, tmp_path: Path) -> None:
    assert "nameserver" in refusal(mountpoint, "--nameserver", "nonsense", "--log", tmp_path / "log")
    assert "cannot be written" in refusal(mountpoint, "--nameserver", "127.0.0.1:1", "--log", "/proc/no/log")
    done = start(mountpoint, "--nameserver", "127.0.0.1:1", "--cache-seconds", "-1")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_memory_stays_small_while_files_stream_through(cluster: LocalCluster, mountpoint: Path) -> None:
    mount = Mounted(mountpoint, cluster.nameserver.address)
    try:
        run("dd", "if=/dev/zero", f"of={mountpoint / 'large'}", "bs=1M", "count=64", "conv=fsync")
        run("dd", f"if={mountpoint / 'large'}", "of=/dev/null", "bs=1M")
        assert mount.memory_mib() < MEMORY_LIMIT_MIB
        (mountpoint / "large").unlink()
        assert mount.stop() == 0
    finally:
        mount.clean_up()


def test_df_shows_where_the_mount_comes_from(cluster: LocalCluster, mountpoint: Path) -> None:
    mount = Mounted(mountpoint, cluster.nameserver.address)
    try:
        here = mounted_here(mountpoint)
        assert here is not None
        assert (here.filesystem_type, here.source) == ("fuse.speedwell", f"speedwell@{cluster.nameserver.address}")
    finally:
        mount.clean_up()
