"""Who changed what: one line of JSON for each change that was asked for, and for each request that was refused.

Requests leave a note; a thread of its own writes. Notes that it cannot keep up with are counted, in the log too.
"""

import json
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import IO, Any, NamedTuple

from google.protobuf.message import DecodeError, Message
from prometheus_client import Counter

from speedwell.fs.errors import StorageFailed
from speedwell.fs.identity.scope import NOBODY
from speedwell.fs.nameserver.service.dispatch import CHANGES
from speedwell.fs.proto import speedwell_pb2 as pb

log = logging.getLogger(__name__)

AUDITED = frozenset({*CHANGES, "Commit", "SetQuota", "SetTrash", "SetDraining", "RemoveDataserver", "Balance",
                     "Repair", "Adopt", "Authorize", "Dump", "Load"})
MOST_NOTES = 65536
MOST_BYTES = 64 << 20
"""Of the requests that are noted and not written yet."""

FILE_BYTES = 64 << 20
FILES = 8
"""Older ones beside the one that is written: FILE.1 is the newest of them."""

PAUSE_SECONDS = 0.1
NOTES_AT_ONCE = 256
_quoted = json.JSONEncoder(ensure_ascii=False).encode
_SHOWN = ("path", "source", "destination", "inode", "uid", "gid", "mode", "size", "dataserver_id", "max_bytes",
          "max_files", "keep_ns")


class Note(NamedTuple):
    """`result` is `ok` or the name of an error; times in seconds since 1970. `squashed`: its root is nobody."""

    at: float
    who: str
    source: str
    method: str
    request: bytes
    result: str
    squashed: bool = False


class Audit:
    """The log in `path`. Thread-safe."""

    def __init__(self, path: Path, most: int = MOST_NOTES) -> None:
        """Raises StorageFailed."""
        self.lost = Counter("speedwell_nameserver_audit_lost", "Requests that are missing in the audit log.",
                            registry=None)
        try:
            self._file = _PrivateFile(path, maxBytes=FILE_BYTES, backupCount=FILES)
        except OSError as error:
            raise StorageFailed(f"--audit-log: cannot write to {path}: {error.strerror}") from None
        self._notes: deque[Note] = deque()
        self._most = most
        self._bytes = 0
        self._lost = 0
        self._counting = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="audit", daemon=True)
        self._thread.start()

    def note(self, note: Note) -> None:
        """Have it written soon."""
        with self._counting:
            fits = len(self._notes) < self._most and self._bytes + len(note.request) <= MOST_BYTES
            if fits:
                self._bytes += len(note.request)
                self._notes.append(note)
        if not fits:
            self._count_lost(1)

    def close(self) -> None:
        """Write what is left."""
        self._stopping.set()
        self._thread.join()
        with suppress(OSError):
            self._file.close()

    # ------------------------------------------------------------------ private

    def _run(self) -> None:
        while not self._stopping.wait(PAUSE_SECONDS):
            self._write()
        self._write()

    def _write(self) -> None:
        failed = 0
        while self._notes:
            notes = [self._notes.popleft() for _ in range(min(len(self._notes), NOTES_AT_ONCE))]
            with self._counting:
                self._bytes -= sum(len(note.request) for note in notes)
            if not self._emit(map(_line, notes)):
                failed += len(notes)
        if failed:
            log.error("the audit log cannot be written: %d lines are lost", failed)
            self._count_lost(failed)
        elif self._lost:
            with self._counting:
                lost, self._lost = self._lost, 0
            self._emit([f'{{"time": "{_time(time.time())}", "lost": {lost}}}'])

    def _count_lost(self, count: int) -> None:
        with self._counting:
            self._lost += count
        self.lost.inc(count)

    def _emit(self, lines: Iterable[str]) -> bool:
        """Whether they are written."""
        self._file.failed = False
        self._file.emit(logging.makeLogRecord({"msg": "\n".join(lines)}))
        return not self._file.failed


class _PrivateFile(RotatingFileHandler):
    failed = False

    def _open(self) -> IO[str]:  # type: ignore[override]
        return open(self.baseFilename, "a", encoding="utf-8",
                    opener=lambda path, flags: os.open(path, flags | os.O_CLOEXEC, 0o600))

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        self.failed = True


def _line(note: Note) -> str:
    words = {"time": _time(note.at), "who": note.who, "from": note.source, "what": note.method[:60],
             "result": note.result} | _named(note)
    said = ", ".join([f'"{name}": {_quoted(value) if isinstance(value, str) else value}'
                      for name, value in words.items()])
    return f"{{{said}}}"


def _named(note: Note) -> dict[str, str | int]:
    """What the request says of what it changes."""
    kind, has_user = _kind(note.method)
    try:
        request = None if kind is None else kind.FromString(note.request)
    except DecodeError:
        request = None
    values: dict[str, Any] = {} if request is None else {field.name: value for field, value in request.ListFields()}
    if has_user:
        values.setdefault("uid", 0)     # whoever makes something is somebody
    if note.squashed and note.method != "SetAttributes":    # which says whose it is to be
        values |= {name: values[name] or NOBODY for name in ("uid", "gid") if name in values}
    return {name: _text(value) if isinstance(value, bytes) else value
            for name, value in values.items() if name in _SHOWN}


@lru_cache(maxsize=128)     # strangers may name what there is not
def _kind(method: str) -> tuple[type[Message] | None, bool]:
    """Of its requests, and whether they all are a user's."""
    kind: type[Message] | None = getattr(pb, f"{method}Request", None)
    uid = None if kind is None else kind.DESCRIPTOR.fields_by_name.get("uid")
    return kind, uid is not None and not uid.has_presence and method in CHANGES


def _text(path: bytes) -> str:
    return path.decode("utf-8", "backslashreplace").replace("/\0", "inode ", 1)


def _time(seconds: float) -> str:
    thousandths = int(seconds * 1000)
    return f"{_second(thousandths // 1000)}.{thousandths % 1000:03}+00:00"


@lru_cache(maxsize=2)
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
