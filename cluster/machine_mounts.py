"""Mounting on the machine from a shell of `speedwell enter`, which has mounts of its own (names resolve there)."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from speedwell.cluster import fabric_network, mounts
from speedwell.cluster.errors import StartFailed

HOST_VARIABLE = "SPEEDWELL_HOST"
"""Has the name of the node in a shell of `speedwell enter`."""

_CLONE_NEWNS = 0x20000
_OPEN_TREE, _MOVE_MOUNT = 428, 429      # system calls, the same on every architecture
_OPEN_TREE_CLONE, _MOVE_MOUNT_F_EMPTY_PATH = 1, 4
_AT_FDCWD = -100
_OWN = Path("/proc/self/ns/mnt")


def enter() -> int | None:
    """Let what this process mounts from now on be the machine's, if it is in a shell of `speedwell enter`. Call it
    before any thread starts.

    Returns the handle of the shell's mounts for `show`; None if this process sees the machine's. Raises StartFailed
    below a root that is no mount point (a chroot), to which one cannot come back from other mounts.
    """
    supervisor = fabric_network.supervisor()
    if supervisor is None or HOST_VARIABLE not in os.environ:
        return None
    machines = Path(f"/proc/{supervisor}/ns/mnt")
    with suppress(OSError):
        if machines.stat().st_ino != _OWN.stat().st_ino:
            if mounts.mounted_here(Path("/")) is None:
                raise StartFailed("a shell of `speedwell enter` cannot mount where / is no mount point, as in a "
                                  "chroot: leave the shell and mount on the machine")
            own, here = os.open(_OWN, os.O_RDONLY), Path.cwd()
            _join(machines)
            os.chdir(here)
            return own
    return None


def show(own: int | None, mountpoint: Path) -> None:
    """Let the shell see what the machine has mounted there. Raises StartFailed."""
    if own is None:
        return
    try:
        # another process: this one has threads by now, and may not change its mounts any more
        subprocess.run([sys.executable, "-m", "speedwell.cluster.machine_mounts", str(own), mountpoint],
                       pass_fds=[own], check=True, capture_output=True, text=True)
    except subprocess.CalledProcessError as error:
        reason = (error.stderr.strip().splitlines() or ["it failed"])[-1]
        raise StartFailed(f"{mountpoint} is mounted on the machine, but cannot be seen in this shell: {reason}; "
                          "leave the shell and enter again") from None
    finally:
        os.close(own)


def _join(namespace: Path) -> None:
    with namespace.open("rb") as handle:
        _call(ctypes.CDLL(None, use_errno=True).setns, handle.fileno(), _CLONE_NEWNS)


def _show(own: int, mountpoint: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    there = os.fsencode(mountpoint)
    tree = _call(libc.syscall, _OPEN_TREE, _AT_FDCWD, there, _OPEN_TREE_CLONE)
    _call(libc.setns, own, _CLONE_NEWNS)
    if mounts.mounted_here(mountpoint) is None:
        _call(libc.syscall, _MOVE_MOUNT, tree, b"", _AT_FDCWD, there, _MOVE_MOUNT_F_EMPTY_PATH)


def _call(function: Callable[..., int], *arguments: int | bytes) -> int:
    result = function(*arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


if __name__ == "__main__":
    try:
        _show(int(sys.argv[1]), Path(sys.argv[2]))
    except OSError as failure:
        sys.exit(failure.strerror)
