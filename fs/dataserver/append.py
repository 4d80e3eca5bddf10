"""One append on a dataserver, as the file's primary or as a replica further down the chain.

The primary orders the appends of a file: it gives each the offset at which the file ends. Two phases keep a
failed append invisible everywhere: first every live replica holds the bytes, then they all commit.
"""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

from fs.channel import MAX_APPEND_BYTES, Channel
from fs.connections import ConnectionPool
from fs.dataserver.append_writer import AppendWriter
from fs.dataserver.payload import Payload
from fs.dataserver.relay import Relay
from fs.dataserver.store import MAX_CHUNKS_PER_APPEND, MAX_OFFSET, FileStore, check_file_id
from fs.dataserver.stored_file import StoredFile
from fs.errors import InvalidArgument, NoSpace, NoSuchFile, SpeedwellError, StorageFailed
from fs.proto.speedwell_pb2 import (
    BUSY,
    IO_ERROR,
    NO_SPACE,
    NOT_FOUND,
    OK,
    OUT_OF_DATE,
    STALE,
    AppendOperation,
    CommitAppend,
    DataReply,
    Status,
)

log = logging.getLogger(__name__)

MAX_RELAYS = 16
TURN_SECONDS = 20.0
"""How long a client's append waits for those before it; the client's own patience is longer."""

RELAYED_TURN_SECONDS = 5.0
COMMIT_SECONDS = 60.0
"""How long a replica waits for the primary's word: the primary may be busy with a replica that fails."""


class Refused(SpeedwellError):
    """The append is answered with this status; nothing of it stays."""

    def __init__(self, status: Status, message: str, file_size: int = 0) -> None:
        super().__init__(message)
        self.status = status
        self.file_size = file_size


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
    if len(operation.relay) > MAX_RELAYS:
        raise InvalidArgument(f"relay: {len(operation.relay)} replicas, at most {MAX_RELAYS} are allowed")
    for replica in operation.relay:
        if not replica.host or not 1 <= replica.port <= 65535:
            raise InvalidArgument(f"relay: {replica.host!r} port {replica.port} is not an address")


class Appends:
    """Serves the appends of one dataserver."""

    def __init__(self, store: FileStore, connections: ConnectionPool, sync: bool = False) -> None:
        self._store = store
        self._connections = connections
        self._sync = sync

    def serve(self, channel: Channel, operation: AppendOperation) -> DataReply:
        """Receive the append's bytes and carry it out; the reply is the last frame of the exchange.

        Raises InvalidArgument, and ConnectionLost when the sender is gone: then nothing of it stays.
        """
        check_append(operation)
        unread = Payload(channel, operation.length)
        try:
            with self._file_in_turn(operation) as file:
                return self._append(channel, operation, file, unread)
        except Refused as refusal:
            unread.discard()
            return DataReply(status=refusal.status, message=str(refusal), file_size=refusal.file_size)
        except NoSpace as error:
            unread.discard()
            return DataReply(status=NO_SPACE, message=str(error))
        except NoSuchFile as error:
            unread.discard()
            return DataReply(status=NOT_FOUND, message=str(error))
        except (StorageFailed, EOFError) as error:
            log.error("append to %s failed: %s", operation.file_id, error)
            unread.discard()
            return DataReply(status=IO_ERROR, message=str(error))

    # ------------------------------------------------------------------ private

    @contextmanager
    def _file_in_turn(self, operation: AppendOperation) -> Iterator[StoredFile]:
        primary = not operation.HasField("offset")
        with self._store.opened_for_append(operation.file_id, operation.inode, operation.path,
                                           operation.chunk_size) as file:
            if not file.turn.acquire(timeout=TURN_SECONDS if primary else RELAYED_TURN_SECONDS):
                raise Refused(BUSY, "other appends to the file take too long", file.length)
            try:
                if file.is_sealed(time.monotonic()):
                    raise Refused(STALE, "a new version is being made from this one", file.length)
                if not primary and operation.offset != file.length:
                    raise Refused(OUT_OF_DATE, f"the append begins at {operation.offset}, this replica has "
                                  f"{file.length} bytes", file.length)
                if file.length < operation.known_size:
                    raise Refused(OUT_OF_DATE, f"{operation.known_size} bytes are committed, this replica has "
                                  f"only {file.length}", file.length)
                yield file
            finally:
                file.turn.release()

    def _append(self, channel: Channel, operation: AppendOperation, file: StoredFile,
                payload: Payload) -> DataReply:
        writer = AppendWriter(file, self._sync)
        relay = Relay(operation, writer.offset, operation.relay, self._connections, writer.segments)
        committed = False
        try:
            for piece in payload.pieces():
                relay.send(piece)
                writer.write(piece)
            relay.prepare()
            if operation.HasField("offset"):
                self._await_commit(channel, file, writer, relay)
            writer.commit()
            committed = True
            relay.commit()
        finally:
            if not committed:
                relay.abort()
                writer.abort()
        if not operation.HasField("offset"):
            self._store.note_growth(file)
        return DataReply(status=OK, file_size=file.length, offset=writer.offset, failed_replicas=relay.failed)

    def _await_commit(self, channel: Channel, file: StoredFile, writer: AppendWriter, relay: Relay) -> None:
        channel.send(DataReply(status=OK, file_size=file.length, offset=writer.offset,
                               failed_replicas=relay.failed))
        relay.failed = []
        channel.set_timeout(COMMIT_SECONDS)
        if not channel.expect(CommitAppend).commit:
            raise Refused(OK, "the append was called off", file.length)
