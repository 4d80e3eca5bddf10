"""New versions of files: made on every replica from the same bytes of the base, then published.

The primary of the base orders them as it orders appends: with the file's turn, its lease and its epoch. Nobody reads
a version before the nameserver has published it, which the primary has it do before it takes another change.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from speedwell.fs.dataserver.admission import Door
from speedwell.fs.dataserver.disk.store import MAX_OFFSET, FileStore, check_file_id
from speedwell.fs.dataserver.disk.stored_file import StoredFile
from speedwell.fs.dataserver.replication.exchange import answer, check_relay, follow, require_epoch
from speedwell.fs.dataserver.replication.one_change import RELAYED_TURN_SECONDS, TURN_SECONDS, Refused, turn
from speedwell.fs.dataserver.replication.payload import Payload
from speedwell.fs.dataserver.replication.primary import Primary
from speedwell.fs.dataserver.replication.relay import Relay
from speedwell.fs.dataserver.replication.version_writer import ByteRange, Change, VersionWriter
from speedwell.fs.errors import InvalidArgument, LocksLost, NoSpace, QuotaExceeded
from speedwell.fs.limits import MAX_FILE_BYTES
from speedwell.fs.proto.speedwell_pb2 import (
    LOCKS_LOST,
    OK,
    OUT_OF_DATE,
    QUOTA_EXCEEDED,
    DataReply,
    Range,
    WriteOperation,
)
from speedwell.fs.wire.channel import Channel
from speedwell.fs.wire.connections import ConnectionPool

MAX_RANGES = 65536


def check_write(operation: WriteOperation) -> None:
    """Raises InvalidArgument, naming the field, for a request that no dataserver would carry out."""
    check_file_id(operation.file_id)
    check_file_id(operation.base)
    if operation.file_id == operation.base:
        raise InvalidArgument("file_id: a new version needs a file id of its own")
    if not 1 <= operation.chunk_size <= MAX_OFFSET:
        raise InvalidArgument(f"chunk_size: {operation.chunk_size} is not in 1..{MAX_OFFSET}")
    for name, value in (("base_size", operation.base_size), ("size", operation.size), ("keep", operation.keep),
                        ("reach", operation.reach)):
        if value > MAX_FILE_BYTES:
            raise InvalidArgument(f"{name}: {value} is more than {MAX_FILE_BYTES}")
    if len(operation.path) > 4096:
        raise InvalidArgument(f"path: {len(operation.path)} bytes, at most 4096 are allowed")
    check_relay(operation.relay, operation.epoch)
    if operation.ordered and not operation.HasField("size"):
        raise InvalidArgument("size: it is missing")
    limit = operation.size if operation.HasField("size") else MAX_FILE_BYTES
    for name, ranges in (("ranges", operation.ranges), ("zeros", operation.zeros)):
        if len(ranges) > MAX_RANGES:
            raise InvalidArgument(f"{name}: {len(ranges)} ranges, at most {MAX_RANGES} are allowed")
        done = 0
        for one in ranges:
            if one.offset < done or one.length < 1 or one.offset + one.length > limit:
                raise InvalidArgument(f"{name}: {one.length} bytes at {one.offset} are empty, out of order, or "
                                      "beyond the end")
            done = one.offset + one.length


class Versions:
    """Makes the new versions of one dataserver's files."""

    def __init__(self, store: FileStore, connections: ConnectionPool, primary: Primary, door: Door) -> None:
        self._store = store
        self._connections = connections
        self._primary = primary
        self._door = door

    def serve(self, channel: Channel, operation: WriteOperation) -> DataReply:
        """Receive the bytes and make the version; the reply is the last frame of the exchange.

        Raises InvalidArgument, and ConnectionLost when the sender is gone: then nothing of it stays.
        """
        check_write(operation)
        payload = Payload(channel, sum(one.length for one in operation.ranges))
        carry_out = self._follow if operation.ordered else self._order
        reply = answer(operation.base, lambda: carry_out(channel, operation, payload))
        payload.discard()
        return reply

    # ------------------------------------------------------------------ private

    def _order(self, channel: Channel, operation: WriteOperation, payload: Payload) -> DataReply:
        primary = self._primary
        with self._turn(channel, operation, TURN_SECONDS) as base:
            replicas = primary.office.take_charge(base, operation.epoch, operation.relay,
                                                  min_replicas=operation.min_replicas)
            replicas = primary.require_length(base, replicas, operation.base_size)
            ordered = _ordered(operation, base.length, replicas.epoch)
            writer = self._writer(ordered, base)
            relay = Relay(ordered, replicas.others, self._connections, self._door, writer.segments)
            base_size = base.length
            try:
                replicas, failed = primary.replicate(base, replicas, payload, writer, relay, ordered.size)
            except NoSpace as error:
                primary.office.step_down(base, replicas, error, ordered.size)
            if primary.office.authority.policy.value == "always":
                replicas, left = primary.force(base, replicas, writer.file)
                failed += left
            try:
                attributes = primary.office.publish(base, replicas, writer.file, session=operation.session,
                                                    generation=operation.generation)
            except QuotaExceeded as error:
                return DataReply(status=QUOTA_EXCEEDED, message=str(error))
            except LocksLost as error:
                return DataReply(status=LOCKS_LOST, message=str(error))
            return DataReply(status=OK, file_size=ordered.size, offset=base_size, failed_replicas=failed,
                             attributes=attributes)

    def _follow(self, channel: Channel, operation: WriteOperation, payload: Payload) -> DataReply:
        with self._turn(channel, operation, RELAYED_TURN_SECONDS) as base:
            require_epoch(base, operation.epoch)
            if base.length != operation.base_size:
                raise Refused(OUT_OF_DATE, f"the version is made from {operation.base_size} bytes, this replica has "
                              f"{base.length}", base.length)
            writer = self._writer(operation, base)
            relay = Relay(operation, operation.relay, self._connections, self._door, writer.segments)
            follow(channel, base, payload, writer, relay)
            return DataReply(status=OK, file_size=operation.size, failed_replicas=relay.failed,
                             behind_replicas=relay.behind)

    @contextmanager
    def _turn(self, channel: Channel, operation: WriteOperation, timeout_seconds: float) -> Iterator[StoredFile]:
        """The base, which nobody changes meanwhile. One to which nothing was ever appended is made."""
        with self._store.opened_for_append(operation.base, operation.inode, operation.path,
                                           operation.chunk_size) as base, \
                turn(base, operation.epoch, channel, timeout_seconds):
            self._store.make_room(base, sum(one.length for one in operation.ranges))
            yield base

    def _writer(self, operation: WriteOperation, base: StoredFile) -> VersionWriter:
        file = self._store.new_version(operation.file_id, base, operation.inode, operation.path,
                                       operation.chunk_size)
        change = Change(operation.size, operation.keep if operation.HasField("keep") else MAX_OFFSET,
                        _pairs(operation.ranges), _pairs(operation.zeros))
        writer = VersionWriter(self._store, file, base, base.committed, change)
        try:
            writer.begin()
        except BaseException:
            writer.abort()
            raise
        return writer


def _ordered(operation: WriteOperation, base_size: int, epoch: int) -> WriteOperation:
    """The request as the primary orders it: what was left open is decided."""
    ordered = WriteOperation()
    ordered.CopyFrom(operation)
    ordered.ordered = True
    ordered.base_size, ordered.epoch = base_size, epoch
    if not operation.HasField("size"):
        ordered.size = max([base_size, operation.reach, *(one.offset + one.length for one in operation.ranges)])
    return ordered


def _pairs(ranges: Iterable[Range]) -> list[ByteRange]:
    return [(one.offset, one.offset + one.length) for one in ranges]
