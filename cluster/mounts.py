"""FUSE mount points: what is mounted where, who uses it, and unmounting without root where possible."""

import errno
import os
import select
import shutil
import signal
import socket
import subprocess
from contextlib import suppress
from enum import Enum, auto
from pathlib import Path

from speedwell.cluster.errors import InvalidSetting, StopFailed
from speedwell.fs.mount_table import FILESYSTEM_TYPE, Mount, mounts
from speedwell.fs.mount_table import mounted_here as mounted_here

UNMOUNT_TIMEOUT_SECONDS = 15.0
ANSWER_TIMEOUT_SECONDS = 2.0
KILL_TIMEOUT_SECONDS = 5.0
NAMED_USERS = 3
PROGRAM = "speedwell-mount"


def locate(path: Path | str) -> Path:
    """`path` absolute, with the links of its parents resolved. The path itself is not touched: a mount
    whose process died answers every access with an error."""
    plain = Path(os.path.abspath(path))  # noqa: PTH100 - Path.absolute() leaves `..` in place
    return Path(os.path.realpath(plain.parent)) / plain.name if plain.name else plain


def of_installation(directory: Path | str, nameserver: str) -> list[Path]:
    """Where the filesystem of the installation in `directory`, whose nameserver is HOST:PORT (several are joined by
    commas), is mounted on this machine, in the order of mounting, whoever mounted it, by whatever name or with some
    of the addresses only, and whether or not its process lives."""
    return [mount.mountpoint for mount in of_speedwell() if is_of(mount, directory, nameserver)]


def of_speedwell() -> list[Mount]:
    """All mounts of Speedwell on this machine, in the order of mounting."""
    return [mount for mount in mounts() if mount.filesystem_type == FILESYSTEM_TYPE]


def is_of(mount: Mount, directory: Path | str, nameserver: str) -> bool:
    """Whether it is one of the installation's, as `of_installation` has it."""
    place = source_of(mount.source)[0]
    if place.startswith("/"):
        return os.path.realpath(place) == os.path.realpath(directory)
    return any(_is_same(address, each) for address in place.split(",") for each in nameserver.split(","))


def source_of(source: str) -> tuple[str, str]:
    """The installation's directory or its nameservers, and the directory in the filesystem, of what a mount shows as
    its source: PLACE or PLACE:/SUB/DIRECTORY."""
    place, separator, below = source.removeprefix("speedwell@").partition(":/")
    return place, separator[1:] + below or "/"


def _is_same(one: str, other: str) -> bool:
    (host, _, port), (other_host, _, other_port) = one.rpartition(":"), other.rpartition(":")
    return port == other_port and (host == other_host or not _resolved(host).isdisjoint(_resolved(other_host)))


def _resolved(host: str) -> set[str]:
    try:
        return {str(found[4][0]) for found in socket.getaddrinfo(host.strip("[]"), None)}
    except OSError:
        return set()


class Condition(Enum):
    """Of a mount point: it is used; nothing is mounted there; the mount's process is gone; it does not answer within
    `ANSWER_TIMEOUT_SECONDS`."""

    MOUNTED = auto()
    NOT_MOUNTED = auto()
    DEAD = auto()
    SILENT = auto()


def condition(mountpoint: Path) -> Condition:
    """Asks in a process of its own: who calls a mount that hangs, hangs with it, and cannot be killed."""
    if mounted_here(mountpoint) is None:
        return Condition.NOT_MOUNTED
    try:
        said = _error_of(["stat", "--", str(mountpoint)], ANSWER_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        return Condition.SILENT
    gone = any(os.strerror(number) in said for number in (errno.ENOTCONN, errno.ECONNABORTED))
    return Condition.DEAD if gone else Condition.MOUNTED


def is_dead(mountpoint: Path) -> bool:
    """Whether a FUSE mount is left there whose process is gone."""
    return condition(mountpoint) is Condition.DEAD


def require_usable(mountpoint: Path) -> None:
    """Check that the filesystem can be mounted there; makes the directory if there is none.

    Raises InvalidSetting saying what to change.
    """
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        raise InvalidSetting("this user cannot open /dev/fuse; load the fuse module or ask for access to it, or do "
                             "without a mount: `speedwell put`, `speedwell get`")
    if os.geteuid() != 0 and shutil.which("fusermount3") is None and shutil.which("fusermount") is None:
        raise InvalidSetting("mounting without root needs fusermount3 (Debian package fuse3)")
    there = mounted_here(mountpoint)
    if there is not None:
        raise InvalidSetting(f"{mountpoint} is already a mount point of {there.source} "
                             f"({there.filesystem_type})")
    try:
        mountpoint.mkdir(parents=True, exist_ok=True)
        occupied = any(mountpoint.iterdir())
    except FileExistsError:
        raise InvalidSetting(f"{mountpoint} is not a directory") from None
    except OSError as error:
        raise InvalidSetting(f"{mountpoint}: {error.strerror}") from error
    if occupied:
        raise InvalidSetting(f"{mountpoint} is not empty; its files would be hidden by the mount")
    if not os.access(mountpoint, os.W_OK):
        raise InvalidSetting(f"{mountpoint} is not writable for this user")


def unmount(mountpoint: Path, *, lazy: bool = False) -> None:
    """Unmount `mountpoint`; nothing mounted there is no error.

    `lazy` takes it out of the tree at once although it is in use; its users keep what they have open. A process of it
    that is stopped is killed then. Raises StopFailed naming the users of a busy mount, or the stopped process.
    """
    if mounted_here(mountpoint) is None:
        return
    stopped = stopped_process(mountpoint)
    if stopped is not None and not lazy:
        raise StopFailed(f"{mountpoint} does not answer: its process (pid {stopped}) is stopped; "
                         f"`kill -CONT {stopped}` lets it go on, --force kills it")
    failure = _detach(mountpoint, lazy)
    if stopped is not None:
        _kill(stopped, mountpoint)
        failure = _detach(mountpoint, lazy) if mounted_here(mountpoint) else ""
    if mounted_here(mountpoint) is None:
        return
    if "busy" in failure:
        names = users(mountpoint)
        by = f" by {', '.join(names[:NAMED_USERS])}" if names else ""
        more = f" and {len(names) - NAMED_USERS} more" if len(names) > NAMED_USERS else ""
        raise StopFailed(f"{mountpoint} is in use{by}{more}; leave it and try again, or use --force to "
                         "unmount it under them")
    if os.geteuid() != 0 and "not found in /etc/mtab" in failure:
        raise StopFailed(f"{mountpoint} was mounted by another user: only they or root can unmount it")
    raise StopFailed(f"cannot unmount {mountpoint}: {failure}; --force unmounts it lazily")


def _detach(mountpoint: Path, lazy: bool) -> str:
    """Why that failed, if it did."""
    tool = shutil.which("fusermount3") or shutil.which("fusermount")
    if os.geteuid() == 0 or tool is None:
        argv = ["umount", *(["-l"] if lazy else []), str(mountpoint)]
    else:
        argv = [tool, "-u", *(["-z"] if lazy else []), str(mountpoint)]
    try:
        return _error_of(argv, UNMOUNT_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        return f"{argv[0]} did not come back within {UNMOUNT_TIMEOUT_SECONDS:g} s"
    except OSError as error:
        raise StopFailed(f"cannot unmount {mountpoint}: {argv[0]}: {error.strerror}") from error


def _error_of(argv: list[str], timeout_seconds: float) -> str:
    """What a command says that fails; empty if it does not. One that does not come back is killed and left: it may
    hang in the kernel, where nothing kills it. Raises TimeoutExpired, OSError."""
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                               env={**os.environ, "LC_ALL": "C"})
    try:
        said = os.fsdecode(process.communicate(timeout=timeout_seconds)[1]).strip()
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return (said.splitlines() or [f"{argv[0]} failed"])[-1] if process.returncode else ""


def stopped_process(mountpoint: Path) -> int | None:
    """The process that serves a mount, if a signal or a debugger has stopped it: whatever asks the mount waits."""
    return next((int(process.name) for process in Path("/proc").iterdir()
                 if process.name.isdigit() and _is_stopped(process) and _arguments(process, mountpoint)), None)


def arguments(mountpoint: Path) -> list[str]:
    """Those of the `speedwell-mount` that serves a mount, as far as this user can see; empty if none does."""
    return next((found for process in Path("/proc").iterdir()
                 if process.name.isdigit() and (found := _arguments(process, mountpoint))), [])


def _is_stopped(process: Path) -> bool:
    with suppress(OSError):
        return (process / "stat").read_bytes().rpartition(b")")[2].split()[0] in (b"T", b"t")
    return False


def _arguments(process: Path, mountpoint: Path) -> list[str]:
    with suppress(OSError):
        words = os.fsdecode((process / "cmdline").read_bytes()).split("\0")[:-1]
        here = (process / "cwd").readlink()
        for index, word in enumerate(words):
            if word.endswith(PROGRAM) and any(locate(here / each) == mountpoint for each in words[index + 1:]):
                return words[index + 1:]
    return []


def _kill(pid: int, mountpoint: Path) -> None:
    try:
        handle = os.pidfd_open(pid)
        try:
            signal.pidfd_send_signal(handle, signal.SIGKILL)
            ended = select.select([handle], [], [], KILL_TIMEOUT_SECONDS)[0]
        finally:
            os.close(handle)
    except ProcessLookupError:
        return
    except OSError as error:
        raise StopFailed(f"the process of {mountpoint} (pid {pid}) is stopped and cannot be killed: "
                         f"{error.strerror}") from error
    if not ended:
        raise StopFailed(f"the process of {mountpoint} (pid {pid}) runs on after SIGKILL; look at /proc/{pid}/stack")


def users(mountpoint: Path) -> list[str]:
    """Processes with a working directory, root or open file below `mountpoint`, as "name (pid N)".

    Only those that this user may look at.
    """
    below = f"{mountpoint}/"
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and any(f"{link}/".startswith(below) for link in _links(process)):
            with suppress(OSError):
                found.append(f"{(process / 'comm').read_text().strip()} (pid {process.name})")
    return found


def _links(process: Path) -> list[str]:
    links = [process / "cwd", process / "root", process / "exe"]
    with suppress(OSError):
        links += (process / "fd").iterdir()
    targets = []
    for link in links:
        with suppress(OSError):
            targets.append(str(link.readlink()))
    return targets
