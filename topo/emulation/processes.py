"""Processes of an emulation: entering a namespace, and finding every process by the marker in its environment."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from speedwell.topo.emulation.errors import EmulationError

MARKER_VARIABLE = "SPEEDWELL_EMULATION"
COMMAND_TIMEOUT_SECONDS = 30.0
_TCP_ESTABLISHED = "01"
# Below a root that is no mount point (a chroot) propagation cannot be changed: a bind that the caller sees is undone.
_BIND_HOSTS = """\
mount --make-rslave / 2>/dev/null
mount --bind "$1" /etc/hosts
file() { stat -Lc %d:%i "$1"; }
[ "$(file /proc/$PPID/root/etc/hosts)" != "$(file "$1")" ] || umount /etc/hosts
shift
command -v "$1" > /dev/null || { echo "speedwell: there is no program $1" >&2; exit 127; }
exec "$@"
"""


def environment(marker: str, additions: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment with `additions` and the marker, which all descendants inherit."""
    path = f"{os.environ.get('PATH', os.defpath)}:/usr/local/sbin:/usr/sbin:/sbin"
    return {**os.environ, "PATH": path, **(additions or {}), MARKER_VARIABLE: marker}


def in_namespace(pid: int, argv: Sequence[str]) -> list[str]:
    """The command line that runs `argv` in the network namespace of `pid` and keeps the machine's mounts."""
    return ["nsenter", f"--net=/proc/{pid}/ns/net", "--", *argv]


def with_host_names(hosts_file: Path | str, argv: Sequence[str]) -> list[str]:
    """The command line that runs `argv` with another /etc/hosts, in mounts of its own: what is mounted there stays
    there, what the machine mounts later comes in where the machine's mounts are shared."""
    return ["unshare", "--mount", "--propagation", "unchanged", "sh", "-c", _BIND_HOSTS, "sh", str(hosts_file), *argv]


def run(argv: Sequence[str], *, env: Mapping[str, str] | None = None, standard_input: str | None = None,
        what: str, timeout_seconds: float = COMMAND_TIMEOUT_SECONDS) -> str:
    """Standard output of a command; raises `EmulationError` with `what` failed and what the command said."""
    try:
        done = subprocess.run(argv, input=standard_input, capture_output=True, text=True, errors="replace",
                              timeout=timeout_seconds, env=env, check=False)
    except subprocess.TimeoutExpired:
        raise EmulationError(f"{what} did not end within {timeout_seconds:g} s") from None
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).split()) or f"exit status {done.returncode}"
        raise EmulationError(f"{what} failed: {said}")
    return done.stdout


def kill_marked(marker: str, timeout_seconds: float = 5.0) -> None:
    """Kill every process that carries the marker, except this one; raises `EmulationError` if one survives."""
    deadline = time.monotonic() + timeout_seconds
    looks_without = 0
    while looks_without < 2:    # a process that just begins a program shows no environment for a moment
        pids = list(_marked(marker))
        looks_without = 0 if pids else looks_without + 1
        for pid in pids:
            _kill_if_marked(pid, marker)
        if pids and time.monotonic() > deadline:
            raise EmulationError(f"processes {', '.join(map(str, pids))} of the emulation do not die")
        time.sleep(0.01)


def cpu_seconds(pid: int) -> float:
    """CPU time, user and system, that a process has used; 0 for one that is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def has_tcp_connection(pid: int, address: str, port: int) -> bool:
    """Whether the namespace of `pid` has an established IPv4 connection to that address."""
    remote = f"{int.from_bytes(socket.inet_aton(address), sys.byteorder):08X}:{port:04X}"
    rows = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    return any(row[2] == remote and row[3] == _TCP_ESTABLISHED for row in rows)


def _marked(marker: str) -> Iterator[int]:
    for directory in Path("/proc").iterdir():
        if directory.name.isdigit() and int(directory.name) != os.getpid() and _has_marker(directory, marker):
            yield int(directory.name)


def _has_marker(directory: Path, marker: str) -> bool:
    try:
        return f"{MARKER_VARIABLE}={marker}".encode() in (directory / "environ").read_bytes().split(b"\0")
    except OSError:
        return False


def _kill_if_marked(pid: int, marker: str) -> None:
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        # the handle pins the process: a marker read after opening it cannot belong to a reused pid
        if _has_marker(Path(f"/proc/{pid}"), marker):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
    except ProcessLookupError:
        pass
    finally:
        os.close(handle)
