"""Finding damaged blocks before a reader does, and replacing them with those of another replica.

A pass reads every block of every file at a bounded rate and compares it with its sum. Files that a client has
found damaged come first.
"""

import contextlib
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator

from speedwell.fs.checksums import BLOCK_BYTES, SUM_BYTES, block_sum, blocks_of, pack, unpack
from speedwell.fs.dataserver.admission import Door
from speedwell.fs.dataserver.disk.disk_errors import write_at
from speedwell.fs.dataserver.disk.holes import blocks_to_verify
from speedwell.fs.dataserver.disk.store import FileStore, check_file_id
from speedwell.fs.dataserver.disk.stored_file import StoredFile, head
from speedwell.fs.errors import NoSuchFile, SpeedwellError, StorageFailed
from speedwell.fs.proto.speedwell_pb2 import OK, Attributes, DataReply, DataRequest, ReadOperation, Replica
from speedwell.fs.wire.channel import ConnectionLost, MalformedFrame
from speedwell.fs.wire.connections import ConnectionPool

log = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS = 1.0
PAUSE_SECONDS = 60.0
"""Between two passes over all files."""

MAX_REPORTED = 1000
REPORTED_AGAIN_SECONDS = 30.0
TURN_SECONDS = 20.0

LookUp = Callable[[int], Attributes]
"""The attributes of an inode, from the nameserver. Raises SpeedwellError."""


class Scrubber:
    """Checks the files of one dataserver, in a thread of its own between `start` and `stop`.

    `rate_bytes` are read per second at most; 0: only what was reported is checked.
    """

    def __init__(self, store: FileStore, dataserver_id: str, look_up: LookUp, connections: ConnectionPool,
                 door: Door, *, rate_bytes: float) -> None:
        self.repaired = 0       # blocks, since the start
        self.damaged: dict[str, str] = {}   # what is wrong with files that could not be repaired
        self._store = store
        self._dataserver_id = dataserver_id
        self._look_up = look_up
        self._connections = connections
        self._door = door
        self._rate_bytes = rate_bytes
        self._reported: OrderedDict[str, None] = OrderedDict()
        self._checked_at: dict[str, float] = {}
        self._changed = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run_forever, name="scrub", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(timeout=1.0)

    def report(self, file_id: str) -> None:
        """Check this file soon: somebody got damaged bytes. Raises InvalidArgument."""
        check_file_id(file_id)
        with self._changed:
            if len(self._reported) < MAX_REPORTED:
                self._reported[file_id] = None
                self._changed.notify_all()

    def check(self, file_id: str, rate_bytes: float = 0.0) -> int:
        """Compare every block of a file with its sum and repair what differs; returns how many could not be.

        At most `rate_bytes` are read per second (0: no limit).
        """
        failures, why, began, read = 0, "", time.monotonic(), 0
        try:
            with self._store.opened(file_id) as file:
                committed = file.committed
                for block in blocks_to_verify(file, committed):
                    if self._stopping:
                        break
                    try:
                        file.verified_block(block, committed)
                    except StorageFailed as error:
                        if not self._repair(file, block, error):
                            failures, why = failures + 1, str(error)
                    read += BLOCK_BYTES
                    if rate_bytes:
                        self._sleep(began + read / rate_bytes - time.monotonic())
        except NoSuchFile as error:
            log.debug("scrub: %s", error)  # deleted meanwhile
            failures = 0
        except SpeedwellError as error:
            log.error("scrub: %s", error)
            failures, why = failures + 1, str(error)
        if failures and (len(self.damaged) < MAX_REPORTED or file_id in self.damaged):
            self.damaged[file_id] = why
        elif not failures:
            self.damaged.pop(file_id, None)
        return failures

    def find(self, file_id: str) -> str:
        """What is wrong with a file, empty if nothing is. Nothing is repaired."""
        try:
            with self._store.opened(file_id) as file:
                committed = file.committed
                file.ordering.log(committed[0])
                for block in blocks_to_verify(file, committed):
                    file.verified_block(block, committed)
        except NoSuchFile:
            return ""
        except SpeedwellError as error:
            return str(error)
        return ""

    # ------------------------------------------------------------------ private

    def _run_forever(self) -> None:
        ids: Iterator[str] = iter(())
        next_pass = time.monotonic() + FIRST_PAUSE_SECONDS
        while not self._stopping:
            if file_id := self._next_reported():
                self.check(file_id)
                continue
            following = next(ids, None)
            waiting = next_pass - time.monotonic() if self._rate_bytes else PAUSE_SECONDS
            if following is not None:
                self.check(following, self._rate_bytes)
            elif waiting > 0:
                self._sleep(waiting)
            else:
                ids = self._store.ids()
                next_pass = time.monotonic() + PAUSE_SECONDS

    def _next_reported(self) -> str | None:
        """A reported file that was not checked a moment ago."""
        with self._changed:
            now = time.monotonic()
            while self._reported:
                file_id, _ = self._reported.popitem(last=False)
                if now - self._checked_at.get(file_id, -REPORTED_AGAIN_SECONDS) >= REPORTED_AGAIN_SECONDS:
                    if len(self._checked_at) >= MAX_REPORTED:
                        self._checked_at.clear()
                    self._checked_at[file_id] = now
                    return file_id
        return None

    def _sleep(self, seconds: float) -> None:
        """Until there is something new, for `seconds` at most."""
        if seconds > 0:
            with self._changed:
                if not self._stopping and not self._reported:
                    self._changed.wait(seconds)

    def _repair(self, file: StoredFile, block: int, damage: StorageFailed) -> bool:
        """Whether the block is good now."""
        with self._store.opened(file.file_id):  # NoSuchFile: it was deleted, which is no damage
            pass
        log.error("scrub: %s", damage)
        try:
            attributes = self._look_up(file.inode)
        except SpeedwellError as error:
            log.warning("scrub: block %d of %s stays damaged: %s", block, file.file_id, error)
            return False
        if attributes.file_id != file.file_id:
            return False  # an old version, which is on its way out
        try:
            self._take_over(file, block, [replica for replica in attributes.replicas
                                          if replica.alive and replica.dataserver_id != self._dataserver_id])
        except (SpeedwellError, OSError) as error:
            log.error("scrub: block %d of %s stays damaged: %s", block, file.file_id, error)
            return False
        self.repaired += 1
        log.warning("scrub: block %d of %s is repaired", block, file.file_id)
        return True

    def _take_over(self, file: StoredFile, block: int, replicas: list[Replica]) -> None:
        """Replace a block and its sum. Raises SpeedwellError, OSError."""
        if not file.turn.acquire(timeout=TURN_SECONDS):
            raise StorageFailed("appends to the file take too long")
        try:
            length, tail = file.committed
            start = block * BLOCK_BYTES
            data, total = self._good_block(file, block, replicas)
            for name, offset, count in file.pieces(start, len(data)):
                if name:
                    write_at(*file.located(name, offset), data[:count], sync=True)
                data = data[count:]
            if block < blocks_of(length) - 1:
                path, begin = file.sums_place()
                write_at(path, begin + block * SUM_BYTES, pack([total]), sync=True)
            elif total != tail:
                write_at(file.record, 0, head(length, total), sync=True)
                file.committed = length, total
            file.verified_block(block, file.committed)
        finally:
            file.turn.release()

    def _good_block(self, file: StoredFile, block: int, replicas: list[Replica]) -> tuple[bytes, int]:
        """The block as another replica has it, and its sum, which somebody else knows too: this replica, whose own
        bytes or whose own sum are damaged, or a third one. What only one knows may be damage that got a new sum.

        Raises StorageFailed.
        """
        start = block * BLOCK_BYTES
        length = min(BLOCK_BYTES, file.length - start)
        known: set[int] = set()
        with contextlib.suppress(StorageFailed):
            known.update(unpack(file.sums(block, block + 1, file.committed)))
        with contextlib.suppress(StorageFailed):
            known.add(block_sum(file.read(start, length)))
        for replica in replicas:
            try:
                data, total = self._fetch(replica, file.file_id, start, length)
            except SpeedwellError as error:
                log.warning("scrub: block %d of %s from %s: %s", block, file.file_id, replica.dataserver_id, error)
                continue
            if total in known:
                return data, total
            known.add(total)
        raise StorageFailed("no replica has it with a sum that another one knows")

    def _fetch(self, replica: Replica, file_id: str, start: int, length: int) -> tuple[bytes, int]:
        """A block of another replica and its sum, which agree. Raises SpeedwellError."""
        channel = self._door.connection(self._connections, replica)
        try:
            channel.send(DataRequest(read=ReadOperation(file_id=file_id, offset=start, length=length, sums=True),
                                     token=self._door.sign(file_id)))
            reply = channel.expect(DataReply)
            if reply.status != OK:
                raise NoSuchFile(reply.message)
            data = bytearray(reply.length)
            channel.receive_all(memoryview(data))
        except (ConnectionLost, MalformedFrame):
            channel.close()
            raise
        self._connections.give_back(replica.host, replica.port, channel)
        whole = bytes(data[:length])
        sums = unpack(reply.sums)
        if reply.offset != start or len(data) < length or not sums or sums[0] != block_sum(data):
            raise StorageFailed("its block is damaged too, or shorter")
        return whole, block_sum(whole)
