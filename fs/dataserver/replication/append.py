"""Appends on a dataserver: the door, and the part of a replica that follows the primary."""

from collections.abc import Iterator

from speedwell.fs.checksums import BLOCK_BYTES, blocks_of
from speedwell.fs.dataserver.admission import Door
from speedwell.fs.dataserver.disk.store import MAX_CHUNKS_PER_APPEND, MAX_OFFSET, FileStore, check_file_id
from speedwell.fs.dataserver.disk.stored_file import StoredFile
from speedwell.fs.dataserver.replication.append_log import Record
from speedwell.fs.dataserver.replication.append_writer import AppendWriter
from speedwell.fs.dataserver.replication.exchange import MAX_EPOCH, answer, check_relay, follow, require_epoch
from speedwell.fs.dataserver.replication.one_change import RELAYED_TURN_SECONDS, Refused, cut, note, turn
from speedwell.fs.dataserver.replication.payload import Payload
from speedwell.fs.dataserver.replication.primary import Primary
from speedwell.fs.dataserver.replication.relay import Relay
from speedwell.fs.errors import InvalidArgument
from speedwell.fs.proto.speedwell_pb2 import (
    OK,
    OUT_OF_DATE,
    AppendOperation,
    DataReply,
    JoinOperation,
    LengthOperation,
    SyncOperation,
)
from speedwell.fs.wire.channel import MAX_APPEND_BYTES, Channel
from speedwell.fs.wire.connections import ConnectionPool

MAX_RECORDS = 4096


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
    check_relay(operation.relay, operation.epoch)
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

    def __init__(self, store: FileStore, connections: ConnectionPool, primary: Primary, door: Door) -> None:
        self._store = store
        self._connections = connections
        self._primary = primary
        self._door = door

    def serve(self, channel: Channel, operation: AppendOperation) -> DataReply:
        """Receive the append's bytes and carry it out; the reply is the last frame of the exchange.

        Raises InvalidArgument, and ConnectionLost when the sender is gone: then nothing of it stays.
        """
        check_append(operation)
        payload = Payload(channel, operation.length)
        carry_out = self._follow if operation.HasField("offset") else self._primary.order
        reply = answer(operation.file_id, lambda: carry_out(channel, operation, payload))
        payload.discard()
        return reply

    def join(self, channel: Channel, operation: JoinOperation) -> DataReply:
        """Have a dataserver that copied a file join its replicas. Raises InvalidArgument."""
        check_file_id(operation.copy.file_id)
        if not operation.candidate.dataserver_id or not 1 <= operation.candidate.port <= 65535:
            raise InvalidArgument("candidate: it is not a dataserver")
        return answer(operation.copy.file_id, lambda: self._primary.join(channel, operation))

    def current_length(self, channel: Channel, operation: LengthOperation) -> DataReply:
        """The length for a strong read. Raises InvalidArgument."""
        check_file_id(operation.file_id)
        if not 1 <= operation.epoch <= MAX_EPOCH:
            raise InvalidArgument(f"epoch: {operation.epoch} is not in 1..2^32-1")
        return answer(operation.file_id, lambda: DataReply(
            status=OK, file_size=self._primary.current_length(channel, operation)))

    def sync(self, channel: Channel, operation: SyncOperation) -> DataReply:
        """Force a file to the disk. Raises InvalidArgument."""
        check_file_id(operation.file_id)
        check_relay(operation.others, operation.epoch)
        return answer(operation.file_id, lambda: self._primary.sync(channel, operation))

    # ------------------------------------------------------------------ private

    def _follow(self, channel: Channel, operation: AppendOperation, payload: Payload) -> DataReply:
        with self._store.opened_for_append(operation.file_id, operation.inode, operation.path,
                                           operation.chunk_size, operation.length) as file, \
                turn(file, operation.epoch, channel, RELAYED_TURN_SECONDS):
            self._store.make_room(file, operation.length)
            records = [Record.of(record) for record in operation.records]
            writer = self._writer(file, operation, records)
            relay = Relay(operation, operation.relay, self._connections, self._door, writer.segments)
            follow(channel, file, payload, writer, relay,
                   note=lambda: note(file, records, operation.epoch), call_off=lambda: cut(file))
            return DataReply(status=OK, file_size=file.length, offset=operation.offset,
                             failed_replicas=relay.failed, behind_replicas=relay.behind)

    def _writer(self, file: StoredFile, operation: AppendOperation,
                records: list[Record]) -> "AppendWriter | HeldBytes":
        """Raises Refused if the append does not fit on what this replica holds."""
        require_epoch(file, operation.epoch)
        if operation.offset == file.length:
            return AppendWriter(file)
        if operation.offset + operation.length <= file.length and file.ordering.log(file.length).holds(records):
            return HeldBytes(file, operation.offset, operation.length)
        raise Refused(OUT_OF_DATE, f"the append begins at {operation.offset}, this replica has {file.length} bytes",
                      file.length)


class HeldBytes:
    """In place of a writer: the file has these very bytes already, from the same append."""

    def __init__(self, file: StoredFile, offset: int, length: int) -> None:
        self._file = file
        self._offset = offset
        self._length = length

    @property
    def digest(self) -> int:
        return self._file.digest(self._offset // BLOCK_BYTES, blocks_of(self._offset + self._length),
                                 self._file.committed)

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
