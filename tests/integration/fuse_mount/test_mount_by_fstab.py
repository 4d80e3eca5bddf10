"""mount(8), /etc/fstab, umount, findmnt and df with the types `speedwell` and `fuse.speedwell`."""

import errno
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.local_cluster import LocalCluster
from tests.machine_state import PROPAGATION
from tests.waiting import wait_until

pytestmark = pytest.mark.root

HELPER = Path(sys.executable).parent / "mount.speedwell"


class Machine:
    """A mount namespace of its own whose /sbin has the helpers and whose /etc/fstab the test writes."""

    def __init__(self, directory: Path, nameserver: str, name: str = "mount point") -> None:
        self.nameserver = nameserver
        self.place = directory / name
        self.place.mkdir()
        self.fstab = directory / "fstab"
        self.fstab.touch()
        (directory / "sbin").mkdir()
        sbin = os.path.realpath("/sbin")
        self.process = subprocess.Popen(["unshare", "--mount", *PROPAGATION, "sleep", "infinity"])
        host = Path("/proc/self/ns/mnt").readlink()
        wait_until(lambda: Path(f"/proc/{self.process.pid}/ns/mnt").readlink() != host, 15, "no namespace")
        self.call("umount", "--lazy", "--all", "-t", "fuse.speedwell")  # copies, which would keep their processes
        self.run("mount", "--bind", sbin, directory / "sbin")
        self.run("mount", "-t", "tmpfs", "none", sbin)
        self.run("sh", "-c", f'ln -s "$0"/* {sbin}', directory / "sbin")
        self.run("ln", "-sf", HELPER, f"{sbin}/mount.speedwell")
        self.run("ln", "-sf", HELPER, f"{sbin}/mount.fuse.speedwell")
        self.run("mount", "--bind", self.fstab, "/etc/fstab")

    @property
    def inside(self) -> list[str]:
        """What runs the rest of a command line there."""
        return ["nsenter", "--mount", "--root", "--wd", "--target", str(self.process.pid)]

    def call(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        """Run a program there."""
        return subprocess.run([*self.inside, *map(str, command)], capture_output=True, text=True, timeout=60,
                              check=False)

    def run(self, *command: str | Path) -> str:
        """Run a program that has to succeed; returns what it printed."""
        done = self.call(*command)
        assert (done.returncode, done.stderr) == (0, ""), (command, done)
        return done.stdout

    def refusal(self, *command: str | Path) -> str:
        """What mount(8) says in one line when it cannot mount."""
        done = self.call(*command)
        assert done.returncode in (1, 32) and done.stderr.count("\n") == 1, done
        return done.stderr

    def mounts(self) -> list[str]:
        """A line for each mount on `place`: source, options."""
        return self.call("findmnt", "-rn", "-t", "fuse.speedwell", "-o", "SOURCE,OPTIONS", "--mountpoint",
                         self.place).stdout.splitlines()

    def unmount(self) -> None:
        self.run("umount", self.place)
        assert not self.mounts()

    def end(self) -> None:
        for _ in self.mounts():
            self.call("umount", "--lazy", self.place)
        self.process.kill()
        self.process.wait()


@pytest.fixture
def machine(cluster: LocalCluster, tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path, cluster.nameserver.address)
    try:
        yield machine
    finally:
        machine.end()


@pytest.fixture
def directory(cluster: LocalCluster) -> Iterator[str]:
    client = cluster.client()
    client.mkdir("/projects")
    client.mkdir("/projects/a")
    client.create("/projects/a/file")
    yield "/projects/a"
    client.remove("/projects/a/file")
    client.rmdir("/projects/a")
    client.rmdir("/projects")


@pytest.mark.parametrize("type_", ["speedwell", "fuse.speedwell"])
def test_mount_umount_findmnt_and_df_know_the_type(machine: Machine, type_: str) -> None:
    machine.run("mount", "-t", type_, machine.nameserver, machine.place, "-o", "noatime,parts=3,nofail,_netdev")
    [line] = machine.mounts()
    assert line.startswith(f"{machine.nameserver} rw,nosuid,nodev")
    assert machine.run("df", "--output=source,target", machine.place).splitlines()[1].split(maxsplit=1) \
        == [machine.nameserver, str(machine.place)]
    machine.unmount()


def test_fstab_is_mounted_once_by_mount_a_and_by_the_directory_alone(machine: Machine, directory: str) -> None:
    place = str(machine.place).replace(" ", r"\040")
    options = "defaults,ro,nofail,_netdev,x-systemd.automount,x-systemd.requires=a.target,strong,cache_seconds=0"
    machine.fstab.write_text(f"{machine.nameserver}:{directory} {place} speedwell {options} 0 0\n")
    machine.run("mount", "-a")
    first = machine.mounts()
    assert len(first) == 1 and first[0].startswith(f"{machine.nameserver}:{directory} ro,")
    machine.run("mount", "-a")
    assert machine.mounts() == first
    assert machine.run("ls", machine.place) == "file\n"
    machine.unmount()
    machine.run("mount", machine.place)
    assert machine.mounts() == first
    machine.unmount()


def test_what_nobody_knows_is_refused_by_name(machine: Machine) -> None:
    def refusal(options: str, source: str = machine.nameserver) -> str:
        return machine.refusal("mount", "-t", "speedwell", source, machine.place, "-o", options)

    assert "unknown option 'sync'" in refusal("sync") and "unknown option 'quick=1'" in refusal("rw,quick=1")
    assert "parts takes a value" in refusal("parts") and "strong takes no value" in refusal("strong=yes")
    assert "--parts" in refusal("parts=99")
    assert "'somewhere' is neither" in refusal("ro", "somewhere")
    assert "no installation was started in /nowhere" in refusal("ro", "/nowhere")
    assert "/missing" in refusal("ro", f"{machine.nameserver}:/missing")
    assert not machine.mounts()
    machine.run("mount", "-s", "-t", "speedwell", machine.nameserver, machine.place, "-o", "quick=1")
    assert "already mounted" in machine.refusal("mount", "-t", "speedwell", machine.nameserver, machine.place)


def test_remounting_changes_what_the_kernel_allows_and_refuses_the_rest_by_name(machine: Machine) -> None:
    machine.run("mount", "-t", "speedwell", machine.nameserver, machine.place, "-o", "parts=3")
    file = machine.place / "kept open"
    with machine_open(machine, file) as writing:
        assert "files are open for writing" in machine.refusal("mount", "-o", "remount,ro", machine.place)
        assert writing.poll() is None
    machine.run("mount", "-o", "remount,ro", machine.place)
    assert machine.mounts()[0].split()[1].startswith("ro,nosuid,nodev,relatime")
    for command in (("touch", machine.place / "new"), ("rm", file), ("chmod", "600", file), ("touch", "-c", file),
                    ("setfattr", "-n", "user.a", "-v", "b", file), ("mv", file, machine.place / "moved")):
        done = machine.call(*command)
        if done.returncode != 127:
            assert os.strerror(errno.EROFS) in done.stderr, done
    assert machine.run("cat", file) == "written"
    for refused in ("parts=4", "strong", "no_allow_other", "cache_seconds=7", "log=/other"):
        name = refused.partition("=")[0].removeprefix("no_")
        message = machine.refusal("mount", "-o", f"remount,{refused}", machine.place)
        assert re.search(f"cannot change {name}", message), message
    machine.run("mount", "-o", "remount,rw,noexec,parts=3", machine.place)
    assert machine.mounts()[0].split()[1].startswith("rw,nosuid,nodev,noexec,relatime")
    machine.run("rm", file)
    bound = machine.place.with_name("bound")
    bound.mkdir()
    machine.run("mount", "--bind", machine.place, bound)    # no process was told of this place
    assert "neither is its parts" in machine.refusal("mount", "-o", "remount,parts=4", bound)
    machine.run("umount", bound)
    machine.unmount()


@contextmanager
def machine_open(machine: Machine, file: Path) -> Iterator[subprocess.Popen[str]]:
    """A program there that has written to `file` and keeps it open."""
    process = subprocess.Popen([*machine.inside, "sh", "-c",
                                'exec >"$0"; printf written; echo ready >&2; exec sleep infinity', str(file)],
                               stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None and process.stderr.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()
