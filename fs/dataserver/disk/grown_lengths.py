"""Lengths of files that have grown, for the nameserver."""

import threading
import time
from collections import OrderedDict
from collections.abc import Sequence

from speedwell.fs.dataserver.disk.stored_file import StoredFile
from speedwell.fs.proto.speedwell_pb2 import FileLength

REPORTED_AGAIN_SECONDS = 60.0


class GrownLengths:
    """The newest length of each file that was not reported yet, and those of the last minute. Thread-safe."""

    def __init__(self) -> None:
        self._waiting: dict[str, FileLength] = {}
        self._reported: OrderedDict[str, tuple[float, FileLength]] = OrderedDict()
        self._lock = threading.Lock()

    def note(self, file: StoredFile) -> None:
        """Have the file's length reported with the next heartbeat."""
        if file.length:
            with self._lock:
                self._waiting[file.file_id] = FileLength(file_id=file.file_id, size=file.length, inode=file.inode)

    def take(self, limit: int) -> list[FileLength]:
        """At most `limit` lengths to report; they wait no more."""
        with self._lock:
            ids = [file_id for file_id, _ in zip(self._waiting, range(limit), strict=False)]
            taken = [self._waiting.pop(file_id) for file_id in ids]
            now = time.monotonic()
            for length in taken:
                self._reported.pop(length.file_id, None)
                self._reported[length.file_id] = now, length
            while self._reported and next(iter(self._reported.values()))[0] < now - REPORTED_AGAIN_SECONDS:
                self._reported.popitem(last=False)
            return taken

    def put_back(self, lengths: Sequence[FileLength]) -> None:
        """Lengths that could not be reported; newer ones win."""
        with self._lock:
            for length in lengths:
                self._waiting.setdefault(length.file_id, length)

    def report_again(self) -> None:
        """Have the lengths of the last minute reported once more: the nameserver may have lost them."""
        with self._lock:
            reported = [length for _, length in self._reported.values()]
        self.put_back(reported)

    def forget(self, file_id: str) -> None:
        """Of a file that is gone."""
        with self._lock:
            self._waiting.pop(file_id, None)
            self._reported.pop(file_id, None)
