"""Real mounts for the tests of this folder."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from speedwell.fs.mount_table import mounted_here
from tests.local_cluster import OWNERS_VARIABLE
from tests.waiting import wait_until

SPEEDWELL_MOUNT = Path(sys.executable).parent / "speedwell-mount"
START_SECONDS = 60.0
STOP_SECONDS = 30.0
PROGRAM_SECONDS, PROGRAM_ON_OWNERS_SECONDS = 60.0, 180.0
"""Some make or remove thousands of files: each is a transaction of etcd where several nameservers own them."""

PROGRAMS = f"{os.environ['PATH']}:{Path.home()}/.cargo/bin"
HAS_CARGO = shutil.which("cargo", path=PROGRAMS) is not None


class Mounted:
    """A `speedwell-mount --foreground` process and the directory it serves."""

    def __init__(self, mountpoint: Path, nameserver: str, *arguments: str, prefix: Sequence[str] = ()) -> None:
        self.path = mountpoint
        self.log = mountpoint.with_name(mountpoint.name + ".log")
        with suppress(FileExistsError):     # it may be one that cannot even be looked at
            mountpoint.mkdir()
        self.process = subprocess.Popen(
            [*prefix, SPEEDWELL_MOUNT, mountpoint, "--nameserver", nameserver, "--foreground", "--log", self.log,
             *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert self.process.stdout is not None
        ready = self.process.stdout.readline()
        assert ready == b"ready %b\n" % os.fsencode(mountpoint), (ready, self.process.communicate(timeout=5))

    def stop(self) -> int:
        """SIGTERM; returns the exit status, after checking that nothing stays mounted."""
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(STOP_SECONDS)
        assert mounted_here(self.path) is None
        return status

    def kill(self) -> None:
        """SIGKILL: the dead mount stays."""
        self.process.kill()
        self.process.wait()

    def memory_mib(self) -> float:
        """Resident memory of the process."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) / 1024

    def clean_up(self) -> None:
        """End the process and remove what is mounted, whatever the test left."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()
        if mounted_here(self.path) is not None:
            subprocess.run(["umount", "--lazy", self.path], check=False)


def wait_unmounted(mountpoint: Path) -> None:
    """Wait until nothing is mounted on `mountpoint`."""
    wait_until(lambda: mounted_here(mountpoint) is None, STOP_SECONDS, f"{mountpoint} is still mounted")


def run(*command: str | Path) -> str:
    """Run a program that has to succeed; returns what it printed."""
    seconds = PROGRAM_ON_OWNERS_SECONDS if os.environ.get(OWNERS_VARIABLE) else PROGRAM_SECONDS
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=seconds,
                          check=False)
    assert done.returncode == 0, f"{command} ended with {done.returncode}: {done.stderr}"
    return done.stdout
