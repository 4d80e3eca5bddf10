"""One append on a dataserver: the door, and the part of a replica that follows the primary.

Two phases keep a failed append invisible everywhere: first every live replica holds the bytes, then they all
commit, the last one of the chain first. `fs.dataserver.primary` orders the appends of a file.
"""

import logging
from collections.abc import Callable, Iterator

from fs.channel import MAX_APPEND_BYTES, Channel
from fs.connections import ConnectionPool
from fs.dataserver.append_log import Record
from fs.dataserver.append_writer import AppendWriter
from fs.dataserver.payload import Payload
from fs.dataserver.primary import Authority, Primary
from fs.dataserver.relay import Relay
from fs.dataserver.store import MAX_CHUNKS_PER_APPEND, MAX_OFFSET, FileStore, check_file_id
from fs.dataserver.stored_file import StoredFile
from fs.dataserver.turns import RELAYED_TURN_SECONDS, Refused, cut, note, require_unsealed, turn
from fs.errors import InvalidArgument, NoSpace, NoSuchFile, StaleEpoch, StaleFile, StorageFailed
from fs.proto.speedwell_pb2 import (
    IO_ERROR,
    NO_SPACE,
    NOT_FOUND,
    OK,
    OUT_OF_DATE,
    STALE,
    STALE_EPOCH,
    AppendOperation,
    CommitAppend,
    DataReply,
    JoinOperation,
    LengthOperation,
)

log = logging.getLogger(__name__)

MAX_RELAYS = 16
MAX_EPOCH = 2**32 - 1
MAX_RECORDS = 4096
COMMIT_SECONDS = 60.0
"""How long a replica waits for the primary's word: the primary may be busy with a replica that fails."""


def check_append(operation: AppendOperation) -> None:
    """Raises InvalidArgument, naming the field, for an append that no dataserver would take."""
    check_file_id(operation.file_id)
    if not 1 <= operation.length <= MAX_APPEND_BYTES:
        raise InvalidArgument(f"length: {operation.length} is not in 1..{MAX_APPEND_BYTES}")
    if not 1 <= operation.chunk_size <= MAX_OFFSET:
        raise InvalidArgument(f"chunk_size: {operation.chunk_size} is not in 1..{MAX_OFFSET}")
    if operation.length // operation.chunk_size > MAX_CHUNKS_PER_APPEND:
        raise InvalidArgument(f"chunk_size: {operation.chunk_size} cuts {operation.length} bytes into more than "
                              f"{MAX_CHUNKS_PER_APPEND} chunks")
    if operation.offset > MAX_OFFSET:
        raise InvalidArgument(f"offset: {operation.offset} is more than {MAX_OFFSET}")
    if len(operation.path) > 4096:
        raise InvalidArgument(f"path: {len(operation.path)} bytes, at most 4096 are allowed")
    if not 1 <= operation.epoch <= MAX_EPOCH:
        raise InvalidArgument(f"epoch: {operation.epoch} is not in 1..2^32-1")
    if len(operation.relay) > MAX_RELAYS:
        raise InvalidArgument(f"relay: {len(operation.relay)} replicas, at most {MAX_RELAYS} are allowed")
    for replica in operation.relay:
        if not replica.host or not 1 <= replica.port <= 65535:
            raise InvalidArgument(f"relay: {replica.host!r} port {replica.port} is not an address")
    _check_records(operation)


def _check_records(operation: AppendOperation) -> None:
    relayed = operation.HasField("offset")
    if len(operation.records) > MAX_RECORDS or (not relayed and len(operation.records) != 1):
        raise InvalidArgument(f"records: {len(operation.records)}; a client sends one")
    for record in operation.records:
        if not record.writer or not 1 <= record.sequence < 2**63:
            raise InvalidArgument("records: writer and sequence must be set")
        end = record.offset + record.length
        if relayed and not operation.offset < end <= operation.offset + operation.length:
            raise InvalidArgument(f"records: an append that ends at {end} is not among these bytes")


class Appends:
    """Serves the appends of one dataserver."""

    def __init__(self, store: FileStore, connections: ConnectionPool, authority: Authority,
                 sync: bool = False) -> None:
        self._store = store
        self._connections = connections
        self._sync = sync
        self.primary = Primary(store, connections, authority, sync)

    def serve(self, channel: Channel, operation: AppendOperation) -> DataReply:
        """Receive the append's bytes and carry it out; the reply is the last frame of the exchange.

        Raises InvalidArgument, and ConnectionLost when the sender is gone: then nothing of it stays.
        """
        check_append(operation)
        payload = Payload(channel, operation.length)
        if operation.HasField("offset"):
            reply = self._answer(operation.file_id, lambda: self._follow(channel, operation, payload))
        else:
            reply = self._answer(operation.file_id, lambda: self.primary.order(channel, operation, payload))
        payload.discard()
        return reply

    def join(self, channel: Channel, operation: JoinOperation) -> DataReply:
        """Have a dataserver that copied a file join its replicas. Raises InvalidArgument."""
        check_file_id(operation.copy.file_id)
        if not operation.candidate.dataserver_id or not 1 <= operation.candidate.port <= 65535:
            raise InvalidArgument("candidate: it is not a dataserver")
        return self._answer(operation.copy.file_id, lambda: self.primary.join(channel, operation))

    def current_length(self, channel: Channel, operation: LengthOperation) -> DataReply:
        """The length for a strong read. Raises InvalidArgument."""
        check_file_id(operation.file_id)
        if not 1 <= operation.epoch <= MAX_EPOCH:
            raise InvalidArgument(f"epoch: {operation.epoch} is not in 1..2^32-1")
        return self._answer(operation.file_id, lambda: DataReply(
            status=OK, file_size=self.primary.current_length(channel, operation)))

    # ------------------------------------------------------------------ private

    @staticmethod
    def _answer(file_id: str, carry_out: Callable[[], DataReply]) -> DataReply:
        try:
            return carry_out()
        except Refused as refusal:
            return DataReply(status=refusal.status, message=str(refusal), file_size=refusal.file_size)
        except StaleEpoch as error:
            return DataReply(status=STALE_EPOCH, message=str(error))
        except StaleFile as error:
            return DataReply(status=STALE, message=str(error))
        except NoSpace as error:
            return DataReply(status=NO_SPACE, message=str(error))
        except NoSuchFile as error:
            return DataReply(status=NOT_FOUND, message=str(error))
        except (StorageFailed, EOFError) as error:
            log.error("append to %s failed: %s", file_id, error)
            return DataReply(status=IO_ERROR, message=str(error))

    def _follow(self, channel: Channel, operation: AppendOperation, payload: Payload) -> DataReply:
        with self._store.opened_for_append(operation.file_id, operation.inode, operation.path,
                                           operation.chunk_size, operation.length) as file, \
                turn(file, operation.epoch, channel, RELAYED_TURN_SECONDS):
            records = [Record.of(record) for record in operation.records]
            writer = self._writer(file, operation, records)
            relay = Relay(operation, operation.offset, operation.relay, self._connections, writer.segments)
            committed = False
            try:
                for piece in payload.pieces():
                    relay.send(piece)
                    writer.write(piece)
                writer.prepare()
                note(file, records, operation.epoch, self._sync)
                relay.prepare()
                self._await_commit(channel, file, relay)
                relay.commit()
                writer.commit()
                committed = True
            finally:
                if not committed:
                    relay.abort()
                    writer.abort()
                    cut(file)
            return DataReply(status=OK, file_size=file.length, offset=operation.offset,
                             failed_replicas=relay.failed, behind_replicas=relay.behind)

    def _writer(self, file: StoredFile, operation: AppendOperation,
                records: list[Record]) -> "AppendWriter | HeldBytes":
        """Raises Refused if the append does not fit on what this replica holds."""
        require_unsealed(file)
        appends = file.ordering.log(file.length)
        if operation.epoch < appends.epoch:
            raise Refused(STALE_EPOCH, f"this replica knows epoch {appends.epoch} of the file, the append has "
                          f"{operation.epoch}", file.length)
        if operation.offset == file.length:
            return AppendWriter(file, self._sync)
        if operation.offset + operation.length <= file.length and appends.holds(records):
            return HeldBytes(file, operation.offset, operation.length)
        raise Refused(OUT_OF_DATE, f"the append begins at {operation.offset}, this replica has {file.length} bytes",
                      file.length)

    def _await_commit(self, channel: Channel, file: StoredFile, relay: Relay) -> None:
        channel.send(DataReply(status=OK, file_size=file.length, failed_replicas=relay.failed,
                               behind_replicas=relay.behind))
        relay.failed, relay.behind = [], []
        channel.set_timeout(COMMIT_SECONDS)
        if not channel.expect(CommitAppend).commit:
            raise Refused(OK, "the append was called off", file.length)


class HeldBytes:
    """In place of a writer: the file has these very bytes already, from the same append."""

    def __init__(self, file: StoredFile, offset: int, length: int) -> None:
        self._file = file
        self._offset = offset
        self._length = length

    def write(self, data: memoryview) -> None:
        """They are there."""

    def prepare(self) -> None:
        """They are there."""

    def segments(self) -> Iterator[tuple[int, int, int]]:
        return self._file.segments(self._offset, self._length)

    def commit(self) -> None:
        """They are part of the file."""

    def abort(self) -> None:
        """They stay."""
