"""The local socket at which a mount tells its owner and root what it does.

A reader sends a line: `statistics` is answered by one JSON object, as often as it is sent; `accesslog` by an object a
request, without end, and `{"lost": N}` where the reader was too slow for N of them. The first object of a connection
has the `version` of what follows.
"""

import json
import logging
import os
import select
import socketserver
import stat
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from speedwell.fs.wire.local_sockets import user_of
from speedwell.fuse_mount.access_log import AccessLog, Reader

log = logging.getLogger(__name__)

VERSION = 1
"""Of what is answered: another one where a reader that ignores what is new would show something wrong
(docs/upgrades.md). An answer without one is of version 1."""

BATCH = 500
LOOK_SECONDS = 0.1
"""Between two looks for new records: whoever notes one wakes nobody."""
_MOST_LINE_BYTES = 64
_WAKE_SECONDS = 3600.0


def socket_path(owner: int, device: str) -> Path:
    """Of the mount that the user `owner` made, `device` as in the mount table: `0:45`."""
    directory = Path("/run/speedwell/monitors") if owner == 0 else Path(f"/tmp/speedwell-{owner}")
    return directory / device


class Monitor:
    """Open from `start` to `stop`."""

    def __init__(self, statistics: Callable[[], dict[str, Any]], access_log: AccessLog) -> None:
        self.statistics = statistics
        self.access_log = access_log
        self._path: Path | None = None
        self._made: tuple[int, int] | None = None

    def start(self, device: int) -> None:
        """`device` is the mount's st_dev. Raises OSError."""
        path = socket_path(os.getuid(), f"{os.major(device)}:{os.minor(device)}")
        _make_private(path.parent)
        path.unlink(missing_ok=True)    # of a mount that was killed and had this number
        server = _Server(str(path), self)
        self._path, self._made = path, _identity(path)
        threading.Thread(target=server.serve_forever, args=(_WAKE_SECONDS,), name="monitor", daemon=True).start()

    def stop(self) -> None:
        """Take the socket away; who reads goes on until the process ends. What has its place by now, of a later mount
        that got the same number, stays."""
        if self._path is not None:
            with suppress(OSError):
                if _identity(self._path) == self._made:
                    self._path.unlink()


def _identity(path: Path) -> tuple[int, int]:
    status = path.lstat()
    return status.st_ino, status.st_ctime_ns


def _make_private(directory: Path) -> None:
    """Others must not be able to put a socket of theirs there. Raises OSError."""
    if directory.parent != Path("/tmp"):
        directory.parent.mkdir(exist_ok=True)
    directory.mkdir(mode=0o700, exist_ok=True)
    status = directory.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise PermissionError(f"{directory} is somebody else's")


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, path: str, monitor: Monitor) -> None:
        self.monitor = monitor
        super().__init__(path, _Connection)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        return user_of(request) in (0, os.getuid())

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.exception("the monitor failed")


class _Connection(socketserver.StreamRequestHandler):
    server: _Server

    def handle(self) -> None:
        with suppress(ConnectionError):
            while word := self.rfile.readline(_MOST_LINE_BYTES).strip():
                if word == b"statistics":
                    self._send(self.server.monitor.statistics())
                elif word == b"accesslog":
                    self._follow()
                    return
                else:
                    self._send({"error": "ask for `statistics` or `accesslog`"})

    def _follow(self) -> None:
        reader, following = Reader(), self.server.monitor.access_log
        following.add(reader)
        try:
            self._send({"following": True, "version": VERSION})
            while True:
                records, lost = reader.take(BATCH)
                self._send(*records, *([{"lost": lost}] if lost else []))
                if not records and select.select([self.connection], [], [], LOOK_SECONDS)[0]:
                    return
        finally:
            following.remove(reader)

    def _send(self, *objects: dict[str, Any]) -> None:
        self.wfile.write(b"".join(json.dumps(each).encode() + b"\n" for each in objects))


def statistics_of(session: Any, open_files: int) -> dict[str, Any]:
    """What the answer to `statistics` has of a `Session`: numbers since the mount began, times in s."""
    measures, under_way = session.measures, session.measures.under_way_seconds()
    read_bytes, written_bytes = measures.moved_bytes()
    return {"version": VERSION, "clock_seconds": time.monotonic(), "pid": os.getpid(), "open_files": open_files,
            "read_bytes": read_bytes, "written_bytes": written_bytes,
            "under_way": len(under_way), "oldest_seconds": max(under_way, default=0.0),
            "operations": {name: {"seconds": done.seconds, "buckets": done.buckets}
                           for name, done in measures.operations().items()},
            "errors": [[operation, number, count] for (operation, number), count in measures.errors().items()]}
