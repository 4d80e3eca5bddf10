"""The requests of a mount as they happen, for whoever reads them. Without a reader nothing is noted."""

import errno
import os
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

from speedwell.fuse_mount.door import FINDS, REQUESTS, Caller

MOST_RECORDS = 16384
"""That a reader may be behind; what comes then is lost to it."""

TOLD = frozenset(("inode", "name", "target", "to", "to_name", "mode", "size", "offset", "length", "whence", "lookups",
                  "inodes"))
"""Arguments of requests (`speedwell.fuse_mount.door`) that are more than an address or a flag."""
RESULTS = {**dict.fromkeys(FINDS, "found"), **dict.fromkeys(("read", "write"), "bytes")}
"""What their results are called."""

Record = dict[str, Any]


class Reader:
    """What one reader has not taken yet. Thread-safe."""

    def __init__(self, most: int = MOST_RECORDS) -> None:
        self._most = most
        self._records: deque[Record] = deque()
        self._lost = 0
        self._lock = threading.Lock()

    def put(self, record: Record) -> None:
        """Never waits for the reader."""
        if len(self._records) < self._most:
            self._records.append(record)
        else:
            with self._lock:
                self._lost += 1

    def take(self, most: int) -> tuple[list[Record], int]:
        """The next records, and how many were lost after them."""
        records = [self._records.popleft() for _ in range(min(most, len(self._records)))]
        if self._records:
            return records, 0
        with self._lock:
            lost, self._lost = self._lost, 0
        return records, lost


class AccessLog:
    """Of one mount."""

    def __init__(self) -> None:
        self.readers: tuple[Reader, ...] = ()
        self._lock = threading.Lock()

    def add(self, reader: Reader) -> None:
        with self._lock:
            self.readers = (*self.readers, reader)

    def remove(self, reader: Reader) -> None:
        with self._lock:
            self.readers = tuple(each for each in self.readers if each is not reader)

    def note(self, time_ns: int, took_ns: int, caller: Caller, operation: str, arguments: Sequence[Any], error: int,
             result: int) -> None:
        """A request that began at `time_ns` since 1970. `error` is 0, or the errno it was answered; `result` is the
        inode that was found, or how many bytes were moved."""
        record = {"time_ns": time_ns, "uid": caller.uid, "gid": caller.gid, "pid": caller.process,
                  "operation": operation,
                  **{name: os.fsdecode(value) if isinstance(value, bytes) else value
                     for name, value in zip(REQUESTS[operation], arguments, strict=False) if name in TOLD}}
        if not error and operation in RESULTS:
            record[RESULTS[operation]] = result
        record["result"] = errno.errorcode.get(error, str(error)) if error else "OK"
        record["seconds"] = took_ns / 1e9
        for reader in self.readers:
            reader.put(record)
