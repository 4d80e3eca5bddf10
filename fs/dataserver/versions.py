"""Serving requests for new versions: received, made, and passed on to the next replica while they arrive.

A new version has a file id of its own and nobody reads it before the nameserver has published it, so one phase
is enough: what was made for nothing is removed like the content of a removed file.
"""

import logging
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from fs.channel import Channel, ConnectionLost, MalformedFrame
from fs.connections import ConnectionPool
from fs.dataserver.payload import Payload
from fs.dataserver.store import MAX_OFFSET, FileStore, check_file_id
from fs.dataserver.stored_file import StoredFile
from fs.dataserver.version_writer import ByteRange, Change, VersionWriter
from fs.errors import InvalidArgument, NoSpace, NoSuchFile, SpeedwellError, StorageFailed
from fs.limits import MAX_FILE_BYTES
from fs.proto.speedwell_pb2 import (
    BUSY,
    IO_ERROR,
    NO_SPACE,
    NOT_FOUND,
    OK,
    OUT_OF_DATE,
    DataReply,
    DataRequest,
    Range,
    Replica,
    Status,
    WriteOperation,
)

log = logging.getLogger(__name__)

MAX_RELAYS = 16
MAX_RANGES = 65536
SEALED_SECONDS = 8.0
"""How long no append to the base is taken once the new version is made: the client publishes it meanwhile (in 5 s
at most), and appenders ask every 2 s for the newest version."""

TURN_SECONDS = 20.0
ANSWER_SECONDS = 15.0
MORE_SECONDS_PER_REPLICA = 5.0


class Refused(SpeedwellError):
    """The request is answered with this status; nothing of it stays."""

    def __init__(self, status: Status, message: str, file_size: int = 0) -> None:
        super().__init__(message)
        self.status = status
        self.file_size = file_size


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
    if len(operation.relay) > MAX_RELAYS:
        raise InvalidArgument(f"relay: {len(operation.relay)} replicas, at most {MAX_RELAYS} are allowed")
    for replica in operation.relay:
        if not replica.host or not 1 <= replica.port <= 65535:
            raise InvalidArgument(f"relay: {replica.host!r} port {replica.port} is not an address")
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

    def __init__(self, store: FileStore, connections: ConnectionPool, sync: bool = False) -> None:
        self._store = store
        self._connections = connections
        self._sync = sync

    def serve(self, channel: Channel, operation: WriteOperation) -> DataReply:
        """Receive the bytes and make the version; the reply is the last frame of the exchange.

        Raises InvalidArgument, and ConnectionLost when the sender is gone: then nothing of it stays.
        """
        check_write(operation)
        payload = Payload(channel, sum(one.length for one in operation.ranges))
        try:
            with self._sealed_base(operation) as (base, committed):
                return self._make(operation, base, committed, payload)
        except Refused as refusal:
            payload.discard()
            return DataReply(status=refusal.status, message=str(refusal), file_size=refusal.file_size)
        except NoSpace as error:
            payload.discard()
            return DataReply(status=NO_SPACE, message=str(error))
        except NoSuchFile as error:
            payload.discard()
            return DataReply(status=NOT_FOUND, message=str(error))
        except (StorageFailed, EOFError) as error:
            log.error("new version of %s failed: %s", operation.base, error)
            payload.discard()
            return DataReply(status=IO_ERROR, message=str(error))

    # ------------------------------------------------------------------ private

    @contextmanager
    def _sealed_base(self, operation: WriteOperation) -> Iterator[tuple[StoredFile | None, tuple[int, int]]]:
        """The base and what is committed of it. It takes no append meanwhile, nor for some time afterwards."""
        try:
            opened = self._store.opened(operation.base)
            base = opened.__enter__()
        except NoSuchFile:
            if operation.base_size:
                raise
            yield None, (0, 0)  # nothing was ever appended to it
            return
        try:
            if not base.turn.acquire(timeout=TURN_SECONDS):
                raise Refused(BUSY, "appends to the file take too long", base.length)
            base.seal()
            committed = base.committed
            base.turn.release()
            try:
                if committed[0] < operation.base_size or (operation.ordered and committed[0] != operation.base_size):
                    raise Refused(OUT_OF_DATE, f"the version is made from {operation.base_size} bytes, this replica "
                                  f"has {committed[0]}", committed[0])
                yield base, committed
            finally:
                base.unseal(time.monotonic() + SEALED_SECONDS)
        finally:
            opened.__exit__(None, None, None)

    def _make(self, operation: WriteOperation, base: StoredFile | None, committed: tuple[int, int],
              payload: Payload) -> DataReply:
        ordered = _ordered(operation, committed[0])
        file = self._store.new_version(operation.file_id, operation.inode, operation.path, operation.chunk_size,
                                       base.generation + 1 if base else 1)
        if base is not None and base.chunk_size != operation.chunk_size:
            raise InvalidArgument(f"chunk_size: {operation.chunk_size}, but {base.file_id} has {base.chunk_size}")
        change = Change(ordered.size, ordered.keep if ordered.HasField("keep") else MAX_OFFSET,
                        _pairs(ordered.ranges), _pairs(ordered.zeros))
        writer = VersionWriter(self._store, file, base, committed, change, self._sync)
        relay = _Relay(ordered, self._connections)
        try:
            writer.begin()
            for piece in payload.pieces():
                relay.send(piece)
                writer.write(piece)
            writer.finish()
            relay.finish(writer)
        except NoSpace:
            self._store.delete(operation.file_id)
            raise
        finally:
            relay.close()
            writer.abort()
        return DataReply(status=OK, file_size=ordered.size, offset=committed[0], failed_replicas=relay.failed)


def _ordered(operation: WriteOperation, base_size: int) -> WriteOperation:
    """The request as the primary orders it: what was left open is decided."""
    if operation.ordered:
        return operation
    ordered = WriteOperation()
    ordered.CopyFrom(operation)
    ordered.ordered = True
    ordered.base_size = base_size
    if not operation.HasField("size"):
        ordered.size = max([base_size, operation.reach, *(one.offset + one.length for one in operation.ranges)])
    return ordered


def _pairs(ranges: Iterable[Range]) -> list[ByteRange]:
    return [(one.offset, one.offset + one.length) for one in ranges]


class _Relay:
    """A version on its way down the chain. `failed` has the ids of the replicas that do not hold it."""

    def __init__(self, operation: WriteOperation, connections: ConnectionPool) -> None:
        self.failed: list[str] = []
        self._operation = operation
        self._connections = connections
        self._chain: list[Replica] = list(operation.relay)
        self._channel = self._open()

    def send(self, piece: memoryview) -> None:
        """Pass `piece` on. A replica that does not take it is left out in `finish`."""
        if self._channel is not None:
            try:
                self._channel.send_bytes([piece])
            except ConnectionLost as error:
                self._lose(str(error))

    def finish(self, writer: VersionWriter) -> None:
        """Wait until every live replica of the chain holds the version. Raises NoSpace."""
        while self._chain:
            if self._channel is None:
                self._send_again(writer)
                continue
            try:
                reply = self._channel.expect(DataReply)
            except (ConnectionLost, MalformedFrame) as error:
                self._lose(str(error))
                continue
            head = self._chain[0]
            if reply.status == OK:
                self.failed.extend(reply.failed_replicas)
                self._connections.give_back(head.host, head.port, self._channel)
                self._channel = None
                self._chain = []
            elif reply.status == NO_SPACE:
                raise NoSpace(reply.message if "dataserver " in reply.message
                              else f"dataserver {head.dataserver_id}: {reply.message}")
            else:
                self._lose(reply.message)

    def close(self) -> None:
        """Give up what is under way."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _open(self) -> Channel | None:
        while self._chain:
            head = self._chain[0]
            operation = WriteOperation()
            operation.CopyFrom(self._operation)
            del operation.relay[:]
            operation.relay.extend(self._chain[1:])
            channel = None
            try:
                channel = self._connections.take(head.host, head.port)
                channel.set_timeout(ANSWER_SECONDS + MORE_SECONDS_PER_REPLICA * len(self._chain), ANSWER_SECONDS)
                channel.send(DataRequest(write=operation), more=bool(operation.ranges))
                return channel
            except ConnectionLost as error:
                if channel is not None:
                    channel.close()
                self._drop(str(error))
        return None

    def _send_again(self, writer: VersionWriter) -> None:
        """Send what this server has by now to the next replica."""
        channel = self._channel = self._open()
        if channel is None:
            return
        try:
            for descriptor, start, count in writer.segments():
                channel.send_file(descriptor, start, count)
        except ConnectionLost as error:
            self._lose(str(error))

    def _lose(self, reason: str) -> None:
        self.close()
        self._drop(reason)

    def _drop(self, reason: str) -> None:
        head = self._chain.pop(0)
        log.warning("%s: dataserver %s does not take the new version: %s", self._operation.base, head.dataserver_id,
                    reason)
        self.failed.append(head.dataserver_id)
