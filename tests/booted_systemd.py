"""systemd of this machine, booted in namespaces over a layer of its own above the machine's files."""

from __future__ import annotations

import os
import subprocess
from contextlib import ExitStack
from pathlib import Path

from tests.machine_state import PROPAGATION
from tests.waiting import wait_until

SYSTEMD = Path("/lib/systemd/systemd")
TIMEOUT_SECONDS = 180
_MASKED = ("tmpfiles-setup", "tmpfiles-setup-dev", "sysctl", "binfmt", "modules-load", "remount-fs", "udevd",
           "udev-trigger")
"""They would clear /tmp, or change what namespaces share with the machine."""
_BOOT = f"""set -e
mount --make-rprivate / 2>/dev/null || true    # a root that is no mount point shares nothing
mount -t tmpfs layer /mnt; mkdir /mnt/upper /mnt/work /mnt/root
mount -t overlay overlay -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work /mnt/root
cd /mnt/root
mount -t proc proc proc; mount -t sysfs sysfs sys; mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755 run run; mount --rbind /dev dev
rm -rf etc/systemd/system/*.wants
for unit in {" ".join(_MASKED)}; do ln -sf /dev/null etc/systemd/system/systemd-$unit.service; done
: > etc/machine-id
ip link set lo up
exec chroot . env -i container=lxc PATH=/usr/sbin:/usr/bin:/sbin:/bin {SYSTEMD} --system --unit=basic.target
"""


class BootedSystemd:
    """Runs until `ending` ends. Its network is its own, and has lo alone."""

    def __init__(self, ending: ExitStack) -> None:
        self._holder = subprocess.Popen(
            ["unshare", "--pid", "--mount", *PROPAGATION, "--uts", "--ipc", "--net", "--cgroup", "--fork",
             "--kill-child", "bash", "-c", _BOOT], stdout=subprocess.DEVNULL)
        ending.callback(self._holder.wait, TIMEOUT_SECONDS)
        ending.callback(self._holder.kill)
        children = Path(f"/proc/{self._holder.pid}/task/{self._holder.pid}/children")
        wait_until(lambda: children.read_text().split(), TIMEOUT_SECONDS, "systemd has no process")
        self._pid = children.read_text().split()[0]
        wait_until(lambda: self.attempt("systemctl is-system-running").stdout.strip() == "running", TIMEOUT_SECONDS,
                   lambda: f"systemd has not booted: {self.attempt('systemctl list-units --failed')}")

    def attempt(self, script: str) -> subprocess.CompletedProcess[str]:
        """What became of commands there."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SPEEDWELL_")}
        return subprocess.run(
            ["nsenter", "--target", self._pid, "--pid", "--mount", "--uts", "--ipc", "--net", "--cgroup", "--root",
             "--wd=/", "bash", "-ec", script],
            capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False, env=kept)

    def run(self, script: str) -> str:
        """Run commands there, each of which has to succeed; returns what they print."""
        done = self.attempt(script)
        if done.returncode:
            journal = self.attempt("journalctl --no-pager --lines 40").stdout
            raise AssertionError(f"{script}\n{done.stdout}{done.stderr}\n{journal}")
        return done.stdout
