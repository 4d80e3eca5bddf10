"""What an append and a new version have in common: how a replica carries one out, and how either is answered.

Two phases keep a change that fails invisible everywhere: first every live replica holds its bytes, then they all
commit, the last one of the chain first. `speedwell.fs.dataserver.replication.primary` orders the changes of a file.
"""

import logging
from collections.abc import Callable, Collection, Iterator
from typing import Protocol

from speedwell.fs.dataserver.disk.stored_file import StoredFile
from speedwell.fs.dataserver.replication.one_change import Refused
from speedwell.fs.dataserver.replication.payload import Payload
from speedwell.fs.dataserver.replication.relay import Relay
from speedwell.fs.errors import InvalidArgument, NoSpace, NoSuchFile, StaleEpoch, StorageFailed
from speedwell.fs.proto.speedwell_pb2 import (
    IO_ERROR,
    NO_SPACE,
    NOT_FOUND,
    OK,
    STALE_EPOCH,
    CommitAppend,
    DataReply,
    Replica,
)
from speedwell.fs.wire.channel import Channel

log = logging.getLogger(__name__)

MAX_RELAYS = 16
MAX_EPOCH = 2**32 - 1
COMMIT_SECONDS = 60.0
"""How long a replica waits for the primary's word: the primary may be busy with a replica that fails."""


class Writer(Protocol):
    """The bytes of a change on their way to this server's disk."""

    @property
    def digest(self) -> int:
        """Of the sums of what is new, once `prepare` has returned: replicas with the same content have the same."""

    def write(self, data: memoryview) -> None:
        """Take the next bytes. Raises NoSpace, StorageFailed."""

    def prepare(self) -> None:
        """Do what of the commit can fail. Raises NoSpace, StorageFailed."""

    def segments(self) -> Iterator[tuple[int, int, int]]:
        """Where the bytes are, once `prepare` has returned, as `StoredFile.segments`."""

    def commit(self) -> None:
        """Make the change visible. Raises StorageFailed, and it is not."""

    def abort(self) -> None:
        """Leave no trace. Never raises."""


def check_relay(relay: Collection[Replica], epoch: int) -> None:
    """Raises InvalidArgument, naming the field."""
    if not 1 <= epoch <= MAX_EPOCH:
        raise InvalidArgument(f"epoch: {epoch} is not in 1..2^32-1")
    if len(relay) > MAX_RELAYS:
        raise InvalidArgument(f"relay: {len(relay)} replicas, at most {MAX_RELAYS} are allowed")
    for replica in relay:
        if not replica.host or not 1 <= replica.port <= 65535:
            raise InvalidArgument(f"relay: {replica.host!r} port {replica.port} is not an address")


def answer(file_id: str, carry_out: Callable[[], DataReply]) -> DataReply:
    """The reply to a request about a file, whatever becomes of it."""
    try:
        return carry_out()
    except Refused as refusal:
        return DataReply(status=refusal.status, message=str(refusal), file_size=refusal.file_size)
    except StaleEpoch as error:
        return DataReply(status=STALE_EPOCH, message=str(error))
    except NoSpace as error:
        return DataReply(status=NO_SPACE, message=str(error))
    except NoSuchFile as error:
        return DataReply(status=NOT_FOUND, message=str(error))
    except (StorageFailed, EOFError) as error:
        log.error("a change of %s failed: %s", file_id, error)
        return DataReply(status=IO_ERROR, message=str(error))


def require_epoch(file: StoredFile, epoch: int) -> None:
    """Raises Refused if this replica knows a newer epoch: the sender was deposed."""
    known = file.ordering.log(file.length).epoch
    if epoch < known:
        raise Refused(STALE_EPOCH, f"this replica knows epoch {known} of the file, the change has {epoch}",
                      file.length)


def follow(channel: Channel, file: StoredFile, payload: Payload, writer: Writer, relay: Relay, *,
           note: Callable[[], None] = lambda: None, call_off: Callable[[], None] = lambda: None) -> None:
    """Carry out a change that the primary has ordered, and pass it on. `note` is done when the bytes are there,
    `call_off` takes that back. Raises what `Writer` and `Relay` do, ConnectionLost, and Refused."""
    committed = False
    try:
        for piece in payload.pieces():
            relay.send(piece)
            writer.write(piece)
        writer.prepare()
        note()
        relay.prepare()
        _await_commit(channel, file, relay, writer.digest)
        relay.commit(writer.digest)
        writer.commit()
        committed = True
    finally:
        if not committed:
            relay.abort()
            writer.abort()
            call_off()


def _await_commit(channel: Channel, file: StoredFile, relay: Relay, digest: int) -> None:
    channel.send(DataReply(status=OK, file_size=file.length, failed_replicas=relay.failed,
                           behind_replicas=relay.behind, full_replicas=relay.full))
    relay.failed, relay.behind, relay.full = [], [], []
    channel.set_timeout(COMMIT_SECONDS)
    word = channel.expect(CommitAppend)
    if not word.commit:
        raise Refused(OK, "the change was called off", file.length)
    if word.digest != digest:
        raise Refused(IO_ERROR, "the bytes that arrived, or those before them, differ from the primary's sums",
                      file.length)
