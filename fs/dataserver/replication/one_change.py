"""One change of a file after the other, an append or a new version, and how one is refused."""

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from speedwell.fs.dataserver.disk.disk_errors import disk_error
from speedwell.fs.dataserver.disk.stored_file import StoredFile
from speedwell.fs.dataserver.replication.append_log import Record
from speedwell.fs.errors import SpeedwellError, StorageFailed
from speedwell.fs.proto.speedwell_pb2 import BUSY, Status
from speedwell.fs.wire.channel import Channel

log = logging.getLogger(__name__)

TURN_SECONDS = 20.0
"""How long a client's append waits for those before it; the client's own patience is longer."""

RELAYED_TURN_SECONDS = 5.0


class Refused(SpeedwellError):
    """The change is answered with this status; nothing of it stays."""

    def __init__(self, status: Status, message: str, file_size: int = 0) -> None:
        super().__init__(message)
        self.status = status
        self.file_size = file_size


@contextmanager
def turn(file: StoredFile, epoch: int, sender: Channel, timeout_seconds: float) -> Iterator[None]:
    """The right to change `file`. One of an older epoch that only waits has to give way.

    Raises Refused.
    """
    ordering = file.ordering
    ordering.interrupt(epoch)
    if not file.turn.acquire(timeout=timeout_seconds):
        raise Refused(BUSY, "other changes of the file take too long", file.length)
    try:
        ordering.under_way = (epoch, sender)
        yield
    finally:
        ordering.under_way = None
        file.turn.release()


def note(file: StoredFile, records: Iterable[Record], epoch: int) -> None:
    """Write down which appends are about to become part of the file. Raises NoSpace, StorageFailed."""
    try:
        file.ordering.log(file.length).note(records, epoch)
    except OSError as error:
        raise disk_error(error, f"cannot append to {file.file_id}") from None


def cut(file: StoredFile) -> None:
    """Take back the note of an append that did not become part of the file."""
    try:
        file.ordering.log(file.length).cut(file.length)
    except (OSError, StorageFailed) as error:
        log.warning("%s: an append that was called off stays noted until the next start: %s", file.file_id, error)
