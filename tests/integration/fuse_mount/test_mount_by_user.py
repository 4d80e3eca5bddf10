"""Mounting without root: with and without fusermount3, user_allow_other and a line in /etc/fstab."""

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.fuse_mount.mounting import SPEEDWELL_MOUNT
from tests.integration.fuse_mount.test_mount_by_fstab import Machine
from tests.integration.fuse_mount.test_mount_lifecycle import daemon_pid, has_ended
from tests.local_cluster import LocalCluster
from tests.waiting import wait_until

pytestmark = pytest.mark.root

AS_NOBODY = ("setpriv", "--reuid", "nobody", "--regid", "nogroup", "--clear-groups")


@pytest.fixture
def machine(cluster: LocalCluster) -> Iterator[Machine]:
    """Whose /dev/fuse has the mode that Debian gives it (0666), in a directory that every user may enter."""
    with tempfile.TemporaryDirectory(prefix="speedwell-test-") as name:
        directory = Path(name)
        directory.chmod(0o777)
        if subprocess.run([*AS_NOBODY, SPEEDWELL_MOUNT, "--help"], capture_output=True, check=False).returncode:
            pytest.skip("this checkout cannot be read by an ordinary user")
        machine = Machine(directory, cluster.nameserver.address)
        try:
            shutil.chown(machine.place, "nobody", "nogroup")
            (directory / "dev").mkdir()
            machine.run("mount", "-t", "tmpfs", "-o", "dev", "none", directory / "dev")
            machine.run("mknod", "-m", "666", directory / "dev" / "fuse", "c", "10", "229")
            machine.run("mount", "--bind", directory / "dev" / "fuse", "/dev/fuse")
            yield machine
        finally:
            machine.end()


def mount(machine: Machine, *more: str) -> subprocess.CompletedProcess[str]:
    return as_nobody(machine, SPEEDWELL_MOUNT, machine.place, "--nameserver", machine.nameserver, "--log",
                     machine.place.with_name("log"), *more)


def as_nobody(machine: Machine, *command: str | Path) -> subprocess.CompletedProcess[str]:
    return machine.call(*AS_NOBODY, *command)


def test_a_user_mounts_with_fusermount3_for_nobody_else(machine: Machine) -> None:
    done = mount(machine, "-o", "noexec")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"ready {machine.place}\n", "")
    assert machine.mounts()[0].startswith(f"speedwell@{machine.nameserver} rw,nosuid,nodev,noexec")
    assert as_nobody(machine, "ls", machine.place).returncode == 0
    assert "Permission denied" in machine.call("ls", machine.place).stderr
    assert as_nobody(machine, "fusermount3", "-u", machine.place).returncode == 0
    assert not machine.mounts()


def test_sigterm_ends_a_users_mount_that_is_in_use(machine: Machine, cluster: LocalCluster) -> None:
    client = cluster.client()
    client.mkdir("/for-all", 0o777)
    assert mount(machine, "--subdirectory", "/for-all").returncode == 0
    with subprocess.Popen([*machine.inside, *AS_NOBODY, "sh", "-c",
                           'cd "$0"; exec 3>file; printf kept >&3; echo ready; exec sleep infinity', machine.place],
                          stdout=subprocess.PIPE) as inside:
        assert inside.stdout is not None and inside.stdout.readline() == b"ready\n"
        assert "busy" in as_nobody(machine, "fusermount3", "-u", machine.place).stderr
        pid = daemon_pid(machine.place)
        os.kill(pid, signal.SIGTERM)
        wait_until(lambda: not machine.mounts() and has_ended(pid), 60, "the mount does not end")
        inside.kill()
    assert client.open_read("/for-all/file").read(0, 100) == b"kept"
    client.remove("/for-all/file")
    client.rmdir("/for-all")


def test_allow_other_needs_user_allow_other(machine: Machine) -> None:
    done = mount(machine, "--allow-other")
    assert (done.returncode, done.stderr) == (
        1, "speedwell-mount: allow_other is for root, unless /etc/fuse.conf has the line user_allow_other\n")
    allowing = machine.place.with_name("fuse.conf")
    allowing.write_text("user_allow_other\n")
    machine.run("mount", "--bind", allowing, "/etc/fuse.conf")
    assert mount(machine, "--allow-other").returncode == 0
    assert machine.call("ls", machine.place).returncode == 0


def test_what_hinders_a_user_is_said_in_one_line(machine: Machine) -> None:
    machine.place.chmod(0o755)
    shutil.chown(machine.place, "root", "root")
    done = mount(machine)
    assert (done.returncode, done.stderr) == (1, f"speedwell-mount: {machine.place} belongs to somebody else: "
                                                 "a user other than root mounts where they may write\n")
    shutil.chown(machine.place, "nobody", "nogroup")
    fusermount = shutil.which("fusermount3")
    assert fusermount is not None
    plain = shutil.copy(fusermount, machine.place.with_name("fusermount3"))
    plain.chmod(0o755)
    machine.run("mount", "--bind", plain, fusermount)
    done = mount(machine)
    first, second = done.stderr.splitlines()
    assert "fusermount3: mount failed: Operation not permitted" in first
    assert second == (f"speedwell-mount: {machine.place} cannot be mounted (libfuse does not mount; its own message "
                      "is above)")
    machine.run("mount", "--bind", "/dev/null", fusermount)
    done = mount(machine)
    assert (done.returncode, done.stderr) == (
        1, "speedwell-mount: fusermount3 is missing: install the Debian package fuse3, or mount as root\n")
    assert not machine.mounts()


def test_a_line_of_fstab_lets_users_mount_and_unmount(machine: Machine) -> None:
    place = str(machine.place).replace(" ", r"\040")
    log = machine.place.with_name("log")
    machine.fstab.write_text(f"{machine.nameserver} {place} speedwell user,noauto,log={log} 0 0\n")
    machine.run("mount", "-a")
    assert not machine.mounts()
    done = as_nobody(machine, "mount", machine.place)
    assert (done.returncode, done.stderr) == (0, ""), done
    assert machine.mounts()[0].startswith(f"{machine.nameserver} rw,nosuid,nodev,noexec")
    assert as_nobody(machine, "ls", machine.place).returncode == 0
    done = as_nobody(machine, "umount", machine.place)
    assert (done.returncode, done.stderr) == (0, ""), done
    assert not machine.mounts()
