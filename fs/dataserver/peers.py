"""The other replicas of a file as its primary sees them: how far they are, and catching them up."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from fs.channel import ConnectionLost, MalformedFrame
from fs.connections import ConnectionPool
from fs.dataserver.append_log import Record
from fs.dataserver.payload import Payload
from fs.dataserver.relay import Relay
from fs.dataserver.stored_file import StoredFile
from fs.dataserver.turns import Refused
from fs.errors import NoSpace, StaleEpoch
from fs.proto.speedwell_pb2 import (
    BUSY,
    NOT_FOUND,
    OK,
    AppendOperation,
    DataReply,
    DataRequest,
    HistoryOperation,
    ReadOperation,
    Replica,
)

log = logging.getLogger(__name__)

ANSWER_SECONDS = 5.0
PIECE_BYTES = 64 << 20


@dataclass(frozen=True)
class Peer:
    """A replica and what it holds: `records` are the appends it knows beyond the asker's length."""

    replica: Replica
    reached: bool
    length: int = 0
    records: list[Record] = field(default_factory=list)

    @property
    def id(self) -> str:
        return self.replica.dataserver_id


class Peers:
    """Conversations with other dataservers. Thread-safe."""

    def __init__(self, connections: ConnectionPool) -> None:
        self._connections = connections

    def ask(self, replica: Replica, file: StoredFile, epoch: int, timeout_seconds: float = ANSWER_SECONDS) -> Peer:
        """How much of `file` a replica holds. Raises StaleEpoch if it knows a newer epoch."""
        try:
            reply = self._ask(replica, DataRequest(history=HistoryOperation(file_id=file.file_id,
                                                                            offset=file.length)),
                              timeout_seconds)
        except (ConnectionLost, MalformedFrame) as error:
            log.warning("%s: dataserver %s: %s", file.file_id, replica.dataserver_id, error)
            return Peer(replica, reached=False)
        if reply.epoch > epoch:
            raise StaleEpoch(f"dataserver {replica.dataserver_id} knows epoch {reply.epoch} of the file")
        if reply.status not in (OK, NOT_FOUND):
            log.warning("%s: dataserver %s: %s", file.file_id, replica.dataserver_id, reply.message)
            return Peer(replica, reached=False)
        return Peer(replica, True, reply.file_size, [Record.of(record) for record in reply.records])

    def push(self, peer: Peer, file: StoredFile, epoch: int) -> bool:
        """Give a replica what it lacks, at most `file.length` bytes; whether it has it all then.

        Raises StaleEpoch.
        """
        appends = file.ordering.log(file.length)
        offset = peer.length
        while offset < file.length:
            length = min(PIECE_BYTES, file.length - offset)
            records = [record.message() for record in appends.beyond(offset) if record.end <= offset + length]
            relay = Relay(
                AppendOperation(file_id=file.file_id, inode=file.inode, path=file.path, chunk_size=file.chunk_size,
                                length=length, epoch=epoch, records=records),
                offset, [peer.replica], self._connections,
                lambda offset=offset, length=length: file.segments(offset, length))  # type: ignore[misc]
            try:
                relay.send_segments()
                relay.prepare()
                relay.commit()
            except NoSpace as error:
                log.warning("%s: %s", file.file_id, error)
                return False
            finally:
                relay.abort()
            if relay.failed:
                return False
            offset += length
        return True

    @contextmanager
    def reading(self, peer: Peer, file: StoredFile, length: int) -> Iterator[Payload]:
        """`length` bytes beyond the end of `file` as `peer` has them. Raises Refused if it does not answer."""
        replica = peer.replica
        try:
            channel = self._connections.take(replica.host, replica.port)
            channel.set_timeout(ANSWER_SECONDS)
            channel.send(DataRequest(read=ReadOperation(file_id=file.file_id, offset=file.length, length=length)))
            reply = channel.expect(DataReply)
        except (ConnectionLost, MalformedFrame) as error:
            raise Refused(BUSY, f"dataserver {peer.id}: {error}", file.length) from None
        try:
            if reply.status != OK or reply.length != length:
                raise Refused(BUSY, f"dataserver {peer.id} does not deliver: {reply.message}", file.length)
            yield Payload(channel, length)
        except ConnectionLost as error:
            raise Refused(BUSY, f"dataserver {peer.id}: {error}", file.length) from None
        finally:
            channel.close()

    def _ask(self, replica: Replica, request: DataRequest, timeout_seconds: float) -> DataReply:
        channel = self._connections.take(replica.host, replica.port)
        try:
            channel.set_timeout(timeout_seconds)
            channel.send(request)
            reply = channel.expect(DataReply)
        except BaseException:
            channel.close()
            raise
        self._connections.give_back(replica.host, replica.port, channel)
        return reply
