"""Making replicas that the nameserver orders: read the content, then have the primary let this server join."""

import logging
import threading
from collections import deque
from typing import Protocol

from google.protobuf.message import Message

from speedwell.fs.checksums import BLOCK_BYTES
from speedwell.fs.dataserver.admission import Door
from speedwell.fs.dataserver.disk.disk_errors import disk_error
from speedwell.fs.dataserver.disk.store import FileStore, check_file_id
from speedwell.fs.dataserver.disk.stored_file import StoredFile
from speedwell.fs.dataserver.replication.append_log import Record
from speedwell.fs.dataserver.replication.append_writer import AppendWriter
from speedwell.fs.dataserver.replication.primary import copy_of
from speedwell.fs.dataserver.upkeep.pace import Pace
from speedwell.fs.errors import SpeedwellError, StorageFailed
from speedwell.fs.proto.speedwell_pb2 import (
    NOT_FOUND,
    OK,
    OUT_OF_DATE,
    Attributes,
    Copy,
    DataReply,
    DataRequest,
    HistoryOperation,
    JoinOperation,
    Replica,
)
from speedwell.fs.wire.channel import ConnectionLost, MalformedFrame
from speedwell.fs.wire.connections import ConnectionPool

log = logging.getLogger(__name__)

WORKERS = 4
"""Small files wait for answers most of the time."""

LEAST_BYTES = 1 << 18
"""What a copy counts for at least at the rate: a small one costs requests, not bytes."""

PIECE_BYTES = 1 << 20
COMMITTED_BYTES = 32 << 20
"""What is committed at once; a copy that is interrupted begins anew."""

ANSWER_SECONDS = 30.0
MAX_ROUNDS = 20


class Received(Protocol):
    """Bytes from `position` on, in order, by one thread at a time. Each block was compared with its sum."""

    position: int

    def receive_into(self, view: memoryview) -> int:
        """Receive at least one byte, and return how many. Raises SpeedwellError if nobody has them."""

    def close(self) -> None: ...


class Source(Protocol):
    """What other dataservers hold. Thread-safe."""

    @property
    def connections(self) -> ConnectionPool: ...

    def look_up(self, inode: int) -> Attributes:
        """The newest content of a file. Raises NoSuchFile, NameserverUnavailable."""

    def receiver(self, attributes: Attributes, offset: int, stop: int) -> Received: ...

    def close(self) -> None:
        """Who receives is given up."""


class Copies:
    """Carries out `Copy` orders in threads of its own, at most `bytes_per_second` in all. Thread-safe."""

    def __init__(self, store: FileStore, own: Replica, source: Source, door: Door, *,
                 bytes_per_second: float) -> None:
        self._store = store
        self._own = own
        self._source = source
        self._door = door
        self._pace = Pace(bytes_per_second)
        self._orders: deque[Copy] = deque()
        self._under_way: set[str] = set()
        self._failed: list[str] = []
        self._made: list[str] = []
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._stopping = False

    @property
    def under_way(self) -> list[str]:
        """File ids of the copies ordered and not finished."""
        with self._changed:
            return list(self._under_way)

    def take_ended(self) -> tuple[list[str], list[str]]:
        """File ids of the copies made, and of those given up, since the last call."""
        with self._changed:
            ended, self._made, self._failed = (self._made, self._failed), [], []
            return ended

    def order(self, copy: Copy) -> None:
        """Make a replica, unless that is under way already."""
        with self._changed:
            if copy.file_id in self._under_way or self._stopping:
                return
            self._under_way.add(copy.file_id)
            self._orders.append(copy)
            if len(self._threads) < WORKERS:
                thread = threading.Thread(target=self._work, name="copy", daemon=True)
                self._threads.append(thread)
                thread.start()
            self._changed.notify()

    def stop(self) -> None:
        """Begin no other copy; those under way are given up with their connections."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._source.close()

    # ------------------------------------------------------------------ private

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._orders or self._stopping)
                if self._stopping:
                    return
                copy = self._orders.popleft()
            is_made = False
            try:
                self._make(copy)
                is_made = True
                log.debug("%s: this server is a replica now", copy.file_id)
            except (SpeedwellError, EOFError) as error:
                log.warning("%s: no replica was made: %s", copy.file_id, error)
            except Exception:
                log.exception("%s: no replica was made", copy.file_id)
            with self._changed:
                self._under_way.discard(copy.file_id)
                (self._made if is_made else self._failed).append(copy.file_id)

    def _make(self, copy: Copy) -> None:
        check_file_id(copy.file_id)
        if self._joined_since(copy):
            return  # the order was on its way while the copy before it joined
        self._store.begin_anew(copy.file_id, copy.inode)
        for _ in range(MAX_ROUNDS):
            failure: SpeedwellError | EOFError | None = None
            try:
                if self._joins(copy):
                    return
            except (SpeedwellError, EOFError) as error:
                failure = error
            newest = self._source.look_up(copy.inode)
            if newest.file_id == copy.file_id:
                if failure is not None:
                    raise failure
                continue
            self._store.delete(copy.file_id)
            if any(replica.dataserver_id == self._own.dataserver_id for replica in newest.replicas):
                return
            copy = copy_of(newest, copy)    # a version was made meanwhile
            self._store.begin_anew(copy.file_id, copy.inode)
        raise StorageFailed("the file changes faster than it can be copied")

    def _joins(self, copy: Copy) -> bool:
        """Copy what is missing and ask to join; whether that was done. Not if too much has been appended since."""
        primary = copy.replicas[0]
        known = self._ask(primary, copy, history=HistoryOperation(file_id=copy.file_id))
        if known.status not in (OK, NOT_FOUND):
            raise StorageFailed(f"dataserver {primary.dataserver_id}: {known.message}")
        with self._store.opened_for_append(copy.file_id, copy.inode, known.path, copy.chunk_size,
                                           known.file_size) as file:
            file.ordering.pinned = True
            if not file.length:
                self._pace.wait(LEAST_BYTES)
            self._pull(copy, file, known.file_size)
            self._note(copy, file, known)
            reply = self._ask(primary, copy, join=JoinOperation(
                copy=copy, candidate=self._own, length=file.length, follow=True,
                digest=file.digest(0, file.length // BLOCK_BYTES, file.committed)))
            if reply.status == OUT_OF_DATE:
                return False
            if reply.status != OK:
                raise StorageFailed(f"dataserver {primary.dataserver_id}: {reply.message}")
            if not reply.HasField("attributes"):
                file.ordering.log(file.length).raise_epoch(reply.epoch)
                return True
        self._store.delete(copy.file_id)
        with self._store.opened_for_append(reply.attributes.file_id, copy.inode, known.path,
                                           reply.attributes.chunk_size) as file:
            file.ordering.pinned = True
            file.ordering.log(file.length).raise_epoch(reply.epoch)
        return True

    def _joined_since(self, copy: Copy) -> bool:
        try:
            with self._store.opened(copy.file_id) as file:
                return file.ordering.log(file.length).epoch > copy.epoch
        except SpeedwellError:
            return False   # it is not here, or of no use

    def _pull(self, copy: Copy, file: StoredFile, length: int) -> None:
        attributes = Attributes(inode=copy.inode, file_id=copy.file_id, chunk_size=copy.chunk_size, size=length,
                                replicas=copy.replicas, epoch=copy.epoch, token=self._door.sign(copy.file_id))
        receiver = self._source.receiver(attributes, file.length, length)
        buffer = memoryview(bytearray(min(PIECE_BYTES, max(1, length - file.length))))
        try:
            while receiver.position < length:
                with file.turn:
                    writer = AppendWriter(file, holes=True)
                    try:
                        while writer.end - writer.offset < COMMITTED_BYTES and receiver.position < length:
                            received = receiver.receive_into(buffer)
                            writer.write(buffer[:received])
                            self._pace.wait(received)
                            if self._stopping:
                                raise StorageFailed("the dataserver is stopping")
                        writer.commit()
                    finally:
                        if file.length < writer.end:
                            writer.abort()
        finally:
            receiver.close()

    def _note(self, copy: Copy, file: StoredFile, known: DataReply) -> None:
        records = [Record.of(record) for record in known.records]
        try:
            with file.turn:
                file.ordering.log(file.length).note(
                    [record for record in records if record.end <= file.length], copy.epoch)
        except OSError as error:
            raise disk_error(error, f"cannot copy {copy.file_id}") from None

    def _ask(self, primary: Replica, copy: Copy, **operation: Message) -> DataReply:
        channel = self._door.connection(self._source.connections, primary)
        try:
            channel.set_timeout(ANSWER_SECONDS)
            channel.send(DataRequest(**operation, token=self._door.sign(copy.file_id)))  # type: ignore[arg-type]
            reply = channel.expect(DataReply)
        except (ConnectionLost, MalformedFrame):
            channel.close()
            raise
        self._source.connections.give_back(primary.host, primary.port, channel)
        return reply
