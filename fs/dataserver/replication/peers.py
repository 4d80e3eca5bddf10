"""The other replicas of a file as its primary sees them: how far they are, and catching them up."""

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from speedwell.fs.checksums import BLOCK_BYTES, blocks_of, digest
from speedwell.fs.dataserver.admission import Door
from speedwell.fs.dataserver.disk.stored_file import StoredFile
from speedwell.fs.dataserver.replication.append_log import Record
from speedwell.fs.dataserver.replication.one_change import Refused
from speedwell.fs.dataserver.replication.payload import Payload
from speedwell.fs.dataserver.replication.relay import Relay
from speedwell.fs.errors import StaleEpoch, StorageFailed
from speedwell.fs.proto.speedwell_pb2 import (
    BUSY,
    IO_ERROR,
    NOT_FOUND,
    OK,
    STALE_EPOCH,
    AppendOperation,
    DataReply,
    DataRequest,
    HistoryOperation,
    ReadOperation,
    Replica,
    SyncOperation,
)
from speedwell.fs.wire.channel import Channel, ConnectionLost, MalformedFrame
from speedwell.fs.wire.connections import ConnectionPool

log = logging.getLogger(__name__)

ANSWER_SECONDS = 5.0
SYNC_SECONDS = 30.0
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

    def __init__(self, connections: ConnectionPool, door: Door) -> None:
        self._connections = connections
        self._door = door

    def ask(self, replica: Replica, file: StoredFile, epoch: int, timeout_seconds: float = ANSWER_SECONDS) -> Peer:
        """How much of `file` a replica holds. Raises StaleEpoch if it knows a newer epoch."""
        try:
            reply = self._ask(replica, DataRequest(history=HistoryOperation(file_id=file.file_id,
                                                                            offset=file.length),
                                             token=self._door.sign(file.file_id)), timeout_seconds)
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

        Raises StaleEpoch, and Refused if the bytes here are not what was written.
        """
        appends = file.ordering.log(file.length)
        offset = peer.length
        while offset < file.length:
            # Up to the end of a block: only whole blocks, and the last one, have a sum.
            length = min(PIECE_BYTES - offset % BLOCK_BYTES, file.length - offset)
            first, end = offset // BLOCK_BYTES, blocks_of(offset + length)
            _require_undamaged(file, first, end)
            records = [record.message() for record in appends.beyond(offset) if record.end <= offset + length]
            relay = Relay(
                AppendOperation(file_id=file.file_id, inode=file.inode, path=file.path, chunk_size=file.chunk_size,
                                offset=offset, length=length, epoch=epoch, records=records),
                [peer.replica], self._connections, self._door,
                lambda offset=offset, length=length: file.segments(offset, length))  # type: ignore[misc]
            try:
                relay.send_segments()
                relay.prepare()
                relay.commit(file.digest(first, end, file.committed))
            finally:
                relay.abort()
            if relay.failed:
                return False
            offset += length
        return True

    def force(self, replicas: Iterable[Replica], file: StoredFile, epoch: int,
              own: Callable[[], None] = lambda: None) -> list[str]:
        """Have replicas force the file to their disks while `own` runs here; returns the ids of those that did not.
        Raises StaleEpoch, and what `own` raises."""
        asked: list[tuple[Replica, Channel]] = []
        failed = []
        request = DataRequest(sync=SyncOperation(file_id=file.file_id, epoch=epoch, length=file.length, relayed=True),
                              token=self._door.sign(file.file_id))
        try:
            for replica in replicas:
                try:
                    channel = self._door.connection(self._connections, replica)
                    asked.append((replica, channel))
                    channel.set_timeout(SYNC_SECONDS)
                    channel.send(request)
                except ConnectionLost as error:
                    failed.append(_not_forced(file, replica, str(error)))
            own()
            for replica, channel in asked:
                if replica.dataserver_id in failed:
                    continue
                try:
                    reply = channel.expect(DataReply)
                except (ConnectionLost, MalformedFrame) as error:
                    failed.append(_not_forced(file, replica, str(error)))
                    continue
                if reply.status == STALE_EPOCH:
                    raise StaleEpoch(reply.message)
                if reply.status != OK:
                    failed.append(_not_forced(file, replica, reply.message))
        except BaseException:
            for _, channel in asked:
                channel.close()
            raise
        for replica, channel in asked:
            if replica.dataserver_id in failed:
                channel.close()
            else:
                self._connections.give_back(replica.host, replica.port, channel)
        return failed

    @contextmanager
    def reading(self, peer: Peer, file: StoredFile) -> Iterator[tuple[Payload, int]]:
        """The bytes that `peer` has beyond the end of `file`, and the digest of the sums that it knows of the blocks
        from the one on in which `file` ends. Raises Refused if it does not answer."""
        length = peer.length - file.length
        skipped = file.length % BLOCK_BYTES
        replica = peer.replica
        try:
            channel = self._door.connection(self._connections, replica)
            channel.set_timeout(ANSWER_SECONDS)
            channel.send(DataRequest(read=ReadOperation(file_id=file.file_id, offset=file.length, length=length,
                                                        sums=True), token=self._door.sign(file.file_id)))
            reply = channel.expect(DataReply)
        except (ConnectionLost, MalformedFrame) as error:
            raise Refused(BUSY, f"dataserver {peer.id}: {error}", file.length) from None
        try:
            if reply.status != OK or reply.length != skipped + length:
                raise Refused(BUSY, f"dataserver {peer.id} does not deliver: {reply.message}", file.length)
            channel.discard(skipped)
            yield Payload(channel, length), digest(reply.sums)
        except ConnectionLost as error:
            raise Refused(BUSY, f"dataserver {peer.id}: {error}", file.length) from None
        finally:
            channel.close()

    def _ask(self, replica: Replica, request: DataRequest, timeout_seconds: float) -> DataReply:
        channel = self._door.connection(self._connections, replica)
        try:
            channel.set_timeout(timeout_seconds)
            channel.send(request)
            reply = channel.expect(DataReply)
        except BaseException:
            channel.close()
            raise
        self._connections.give_back(replica.host, replica.port, channel)
        return reply


def _not_forced(file: StoredFile, replica: Replica, reason: str) -> str:
    log.warning("%s: dataserver %s does not force it to its disk: %s", file.file_id, replica.dataserver_id, reason)
    return replica.dataserver_id


def _require_undamaged(file: StoredFile, first: int, end: int) -> None:
    """Raises Refused. A primary that is damaged does not leave the set: nobody else may have its bytes."""
    try:
        for block in range(first, end):
            file.verified_block(block, file.committed)
    except StorageFailed as error:
        raise Refused(IO_ERROR, str(error), file.length) from None
