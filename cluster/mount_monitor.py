"""What mounts say of themselves at their local sockets (`fuse_mount.monitor`), and what becomes of it in a while."""

from __future__ import annotations

import errno
import json
import math
import select
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from speedwell.cluster.errors import NotRunning
from speedwell.fs.mount_table import Mount
from speedwell.fs.wire.local_sockets import user_of
from speedwell.fuse_mount.measures import BOUNDS_SECONDS, WAITS_FOR_OTHERS, Operation, quantile
from speedwell.fuse_mount.monitor import VERSION, socket_path

ANSWER_SECONDS = 1.0
ORDINARY = {errno.ENOENT, errno.ENODATA, errno.ESTALE, errno.EAGAIN}
"""Answers that tell a program, or the kernel, no more than that something is not there, has moved or is taken."""
OTHER_VERSION = "other version"
_RECEIVED_BYTES = 1 << 16

_MOST_BYTES = 1 << 20
"""Of an answer: another user's mount may say anything."""


class OtherVersion(ValueError):
    """A mount of another release answers in another version of the protocol; the message says which side to
    upgrade."""


def _read(line: bytes) -> Any:
    """What a mount says. Raises ValueError for what is no JSON, OtherVersion."""
    try:
        said = json.loads(line)
    except RecursionError:
        raise ValueError("too deep") from None
    theirs = said.get("version", 1) if isinstance(said, dict) else 1
    if theirs != VERSION:
        newer = isinstance(theirs, int) and theirs > VERSION
        raise OtherVersion(f"speaks version {theirs} of the protocol, this command version {VERSION}: "
                           f"{'upgrade this command' if newer else 'mount it again'} (docs/upgrades.md)")
    return said


@dataclass(frozen=True)
class Statistics:
    """What a mount answers; numbers since it began, `clock_seconds` by its own clock."""

    clock_seconds: float
    operations: Mapping[str, Operation]
    read_bytes: int
    written_bytes: int
    errors: int
    open_files: int

    @classmethod
    def parse(cls, line: bytes) -> Statistics:
        """Raises ValueError for what is no answer, OtherVersion."""
        try:
            said = _read(line)
            operations = {str(name): Operation(tuple(map(int, done["buckets"])), _finite(done["seconds"]))
                          for name, done in said["operations"].items()}
            if any(len(done.buckets) != len(BOUNDS_SECONDS) + 1 for done in operations.values()):
                raise ValueError("other buckets")
            return cls(_finite(said["clock_seconds"]), operations, int(said["read_bytes"]),
                       int(said["written_bytes"]),
                       sum(int(count) for _, number, count in said["errors"] if number not in ORDINARY),
                       int(said["open_files"]))
        except (KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"not an answer: {error}") from None


def _finite(value: Any) -> float:
    if not math.isfinite(number := float(value)):
        raise ValueError("not a number")
    return number


@dataclass(frozen=True)
class Activity:
    """Of one mount in a while: `operations`, `errors`, `read_bytes` and `written_bytes` are a second, latencies in
    seconds and without what waits for another program's lock, 0 without operations."""

    operations: float
    mean_seconds: float
    p99_seconds: float
    read_bytes: float
    written_bytes: float
    errors: float
    open_files: int


def activity(before: Statistics, now: Statistics) -> Activity:
    """Between two answers of one mount."""
    seconds = max(now.clock_seconds - before.clock_seconds, 1e-3)
    done = {name: _since(each, before.operations.get(name)) for name, each in now.operations.items()}
    timed = [each for name, each in done.items() if name not in WAITS_FOR_OTHERS]
    buckets = [sum(column) for column in zip(*(each.buckets for each in timed), strict=True)]
    return Activity(sum(each.count for each in done.values()) / seconds,
                    sum(each.seconds for each in timed) / max(sum(buckets), 1), quantile(buckets, 0.99),
                    (now.read_bytes - before.read_bytes) / seconds,
                    (now.written_bytes - before.written_bytes) / seconds,
                    (now.errors - before.errors) / seconds, now.open_files)


def _since(now: Operation, before: Operation | None) -> Operation:
    if before is None:
        return now
    return Operation(tuple(count - then for count, then in zip(now.buckets, before.buckets, strict=True)),
                     now.seconds - before.seconds)


class Source:
    """The socket of one mount. `problem` says why it is not heard: `no answer`, `not yours`, `other version`; else it
    is empty."""

    def __init__(self, mount: Mount) -> None:
        self.mount = mount
        self.problem = ""
        self.statistics: Statistics | None = None
        self.before: Statistics | None = None
        self.connection: socket.socket | None = None
        self.is_awaited = False
        self._received = b""

    def ask(self) -> None:
        """Unless it has not answered the last time yet."""
        if self.is_awaited:
            return
        try:
            if self.connection is None:
                self.connection = connect(self.mount)
            self.connection.sendall(b"statistics\n")
            self.is_awaited = True
        except PermissionError:
            self.close("not yours")
        except OSError:
            self.close("no answer")

    def hear(self) -> None:
        """Take what has come."""
        assert self.connection is not None
        try:
            received = self.connection.recv(_RECEIVED_BYTES)
        except OSError:
            received = b""
        if not received:
            self.close("no answer")
            return
        self._received += received
        line, end, rest = self._received.partition(b"\n")
        try:
            if end:
                self.before, self.statistics, self._received = self.statistics, Statistics.parse(line), rest
                self.is_awaited, self.problem = False, ""
            elif len(self._received) > _MOST_BYTES:
                raise ValueError("too long")
        except OtherVersion:
            self.close(OTHER_VERSION)
        except ValueError:
            self.close("no answer")

    def close(self, problem: str = "") -> None:
        if self.connection is not None:
            self.connection.close()
        self.connection, self.is_awaited, self._received, self.problem = None, False, b"", problem
        self.before = self.statistics = None


class Mounts:
    """All that are watched, whatever comes and goes."""

    def __init__(self) -> None:
        self._sources: dict[Mount, Source] = {}

    def look(self, mounts: Sequence[Mount], seconds: float = ANSWER_SECONDS) -> list[Source]:
        """Ask all, and hear who answers within `seconds`. Who is still asked from before keeps nobody waiting."""
        for gone in self._sources.keys() - set(mounts):
            self._sources.pop(gone).close()
        sources = [self._sources.setdefault(mount, Source(mount)) for mount in mounts]
        late = [source for source in sources if source.is_awaited]
        for source in sources:
            source.ask()
        deadline = time.monotonic() + seconds
        while awaited := {source.connection: source for source in sources if source.is_awaited}:
            may_wait = deadline - time.monotonic() if any(each not in late for each in awaited.values()) else 0
            readable, _, _ = select.select(list(awaited), [], [], max(0.0, may_wait))
            if not readable:
                break
            for connection in readable:
                awaited[connection].hear()
        for source in sources:
            if source.is_awaited:
                source.problem = "no answer"
        return sources


def connect(mount: Mount) -> socket.socket:
    """A connection to the mount's process. Raises OSError; PermissionError if the mount is another user's."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(ANSWER_SECONDS)
    try:
        connection.connect(str(socket_path(mount.owner, mount.device)))
        if user_of(connection) != mount.owner:     # who may have put a link to root's there
            raise PermissionError(errno.EACCES, "the socket is somebody else's")
    except BaseException:
        connection.close()
        raise
    return connection


def follow(mount: Mount) -> Iterator[dict[str, Any]]:
    """Each request to the mount from now on, as `speedwell.fuse_mount.access_log` tells it, until the mount ends.

    Raises NotRunning if it does not answer, is another user's, or answers in another version of the protocol.
    """
    try:
        connection = connect(mount)
    except PermissionError:
        raise NotRunning(f"{mount.mountpoint} is another user's mount: only its owner and root may see it") from None
    except OSError as error:
        raise NotRunning(f"the mount at {mount.mountpoint} does not answer: {error.strerror or error}") from None
    with connection, suppress(ConnectionError):
        connection.sendall(b"accesslog\n")
        with connection.makefile("rb") as lines:
            try:
                begun = lines.readline()
            except TimeoutError:
                begun = b""
            if not begun:
                raise NotRunning(f"the mount at {mount.mountpoint} does not answer")
            try:
                _read(begun)
            except OtherVersion as error:
                raise NotRunning(f"the mount at {mount.mountpoint} {error}") from None
            connection.settimeout(None)
            while line := lines.readline(_MOST_BYTES):
                yield json.loads(line)
