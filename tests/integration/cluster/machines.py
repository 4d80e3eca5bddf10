"""Machines as namespaces: each with a network address, processes, /run and /mnt of its own, and a disk with /srv and
/var/lib."""

from __future__ import annotations

import os
import subprocess
import tempfile
from contextlib import ExitStack
from pathlib import Path

from speedwell.cluster.processes import start_ticks
from tests.integration.cluster.executable import SCRIPTS
from tests.machine_state import PROPAGATION
from tests.waiting import wait_until

BRIDGE = "machines0"
TIMEOUT_SECONDS = 90
CHECKOUT = Path(__file__).parents[3]
"""Which may be below /tmp."""
_SET_UP = """set -e
for place in / /proc /run; do mountpoint -q $place && mount --make-rprivate $place; done
mount -t proc proc /proc
mkdir -p $0/srv $0/lib $0/checkout
mount --bind $0/srv /srv; mount --bind $0/lib /var/lib; mount --bind "$1" $0/checkout
mount -t tmpfs run /run; mount -t tmpfs mnt /mnt; mount -t tmpfs tmp /tmp
[ -d "$1" ] || { mkdir -p "$1"; mount --bind $0/checkout "$1"; }
ip link set lo up
echo ready
exec sleep infinity
"""


class Machine:
    """`name` has the address 10.0.0.`number`."""

    def __init__(self, name: str, number: int, ending: ExitStack) -> None:
        self.name = name
        self._number = number
        # in memory, as whoever else writes to the disk would decide how long etcd's fsync takes
        self.disk = ending.enter_context(tempfile.TemporaryDirectory(prefix=f"{name}-", dir="/dev/shm"))
        ending.callback(self.switch_off)
        self.switch_on()

    def switch_on(self) -> None:
        """Nothing runs on it yet, and its disk has what it had."""
        self.pid = 0
        self._holder = subprocess.Popen(
            ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount", *PROPAGATION, "--uts",
             "bash", "-c", _SET_UP, self.disk, CHECKOUT],
            stdout=subprocess.PIPE, text=True)
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == "ready\n"
        children = Path(f"/proc/{self._holder.pid}/task/{self._holder.pid}/children")
        wait_until(lambda: children.read_text().split(), TIMEOUT_SECONDS, "the machine has no process")
        self.pid = int(children.read_text().split()[0])
        ip("link", "add", f"to-{self.name}", "type", "veth", "peer", "name", "eth0", "netns", str(self.pid))
        ip("link", "set", f"to-{self.name}", "master", BRIDGE, "up")
        self.run(f"ip address add 10.0.0.{self._number}/24 dev eth0 && ip link set eth0 up")

    def run(self, script: str, typed: str = "") -> str:
        """Run commands there, each of which has to succeed; returns what they print. `typed` is their input."""
        done = self.attempt(script, typed)
        if done.returncode:
            logs = self.attempt("tail -n 20 /srv/*/logs/*.log").stdout
            raise AssertionError(f"{self.name}: {script}\n{done.stdout}{done.stderr}\n{logs}")
        return done.stdout

    def attempt(self, script: str, typed: str = "") -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SPEEDWELL_")}
        return subprocess.run(
            ["nsenter", "--target", str(self.pid), "--net", "--pid", "--mount", "--root", "--uts",
             "bash", "-ec", script],
            capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False, input=typed,
            env={**kept, "PATH": f"{SCRIPTS}:{os.environ['PATH']}"})

    def switch_off(self) -> None:
        """As if the power failed; its disk loses nothing that was written. Of what is seen outside nothing is left
        when it returns: the kernel takes its time with a namespace."""
        subprocess.run(["ip", "link", "delete", f"to-{self.name}"], capture_output=True, check=False)
        self._holder.kill()
        self._holder.wait(TIMEOUT_SECONDS)
        assert self._holder.stdout is not None
        self._holder.stdout.close()
        if self.pid:
            wait_until(lambda: start_ticks(self.pid) is None, TIMEOUT_SECONDS, f"{self.name} goes on")


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def machines(names: str, ending: ExitStack) -> dict[str, Machine]:
    """One for each letter, joined by a switch."""
    ip("link", "add", BRIDGE, "type", "bridge")
    ending.callback(ip, "link", "delete", BRIDGE)
    ip("link", "set", BRIDGE, "up")
    return {name: Machine(name, number, ending) for number, name in enumerate(names, 1)}
