"""What a dataserver knows of the order of a file's appends beside the bytes."""

import threading
from collections.abc import Callable
from dataclasses import dataclass

from speedwell.fs.dataserver.replication.append_log import AppendLog, Write
from speedwell.fs.proto.speedwell_pb2 import Attributes, Replica
from speedwell.fs.wire.channel import Channel


@dataclass(frozen=True)
class ReplicaSet:
    """The set that this server is to keep level as the primary: the `others`, as of `epoch`."""

    epoch: int
    others: tuple[Replica, ...]


class Ordering:
    """Of one file. Only the one who has the file's turn changes it."""

    def __init__(self, place: Callable[[], tuple[str, int]], write: Write) -> None:
        """`place` says in which file the appends are written down, and at which offset; `write` writes into it."""
        self.replicas: ReplicaSet | None = None
        self.level_epoch = 0        # all replicas of that epoch held all bytes when last looked at
        self.under_way: tuple[int, Channel] | None = None   # epoch and sender of the append that has the turn
        self.confirmed = (0, 0)     # term of the lease and epoch in which this server was found to be the primary
        self.successor: Attributes | None = None    # of the version made from the file that was published
        self.pinned = False         # kept though empty: the epoch must not be forgotten
        self._place = place
        self._write = write
        self._log: AppendLog | None = None
        self._loading = threading.Lock()

    def begin_log(self) -> None:
        """The file is new: no appends are written down."""
        self._log = AppendLog(self._place, self._write)

    def log(self, length: int) -> AppendLog:
        """The file's appends; `length` is its committed length. Raises StorageFailed."""
        with self._loading:
            if self._log is None:
                self._log = AppendLog(self._place, self._write, length)
            return self._log

    def interrupt(self, epoch: int) -> None:
        """End an append of an older epoch that waits for the word of its primary: that one is deposed."""
        under_way = self.under_way
        if under_way is not None and under_way[0] < epoch:
            under_way[1].interrupt()
