"""The copy of the namespace that a dataserver keeps, and what it remembers of who else has one.

    ROOT/mirror/holders-1   the list as last heard, one line of JSON and its CRC
    ROOT/mirror/holders-2   the same: whoever forgets the list keeps a nameserver from rebuilding
    ROOT/mirror/NUMBER/     databases: the complete copy, and with a higher number one that is being made

A new copy is made beside the old one, which goes when the new one is complete: at every moment there is one to
rebuild from.
"""

import json
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path

from crc32c import crc32c

from speedwell.fs import durable
from speedwell.fs.dataserver.disk.disk_errors import PUBLIC
from speedwell.fs.errors import DatabaseDamaged, StorageFailed
from speedwell.fs.nameserver.backup.copy_holders import (
    HOLDERS_KEY,
    Holders,
    decode_holders,
    position_message,
    position_of,
)
from speedwell.fs.proto.speedwell_pb2 import MirrorReply, MirrorRequest, StorePosition
from speedwell.fs.store import Batch, LevelDBStore, Position
from speedwell.fs.store.change_encoding import MalformedRecord, decode_changes, decode_records, encode_changes
from speedwell.fs.store.journaled import HIDDEN_END, STATE_KEY

log = logging.getLogger(__name__)

WRITE_BUFFER_BYTES = 4 << 20
BLOCK_CACHE_BYTES = 2 << 20
PART_BYTES = 512 << 10

HOLDERS_FILES = "holders-1", "holders-2"

_CURSOR_KEY = b"\x00cursor"
"""Of a copy that does not have all keys yet: the last one that it has."""

_REACH_KEY = b"\x00reach"
"""Of a copy that was read while the namespace changed: the batch with which it is whole."""


class Mirror:
    """Used by one thread, but for `holders`, `position` and `damage`, which any may read."""

    def __init__(self, directory: Path) -> None:
        """Opens what there is. Raises StorageFailed if the directory cannot be used."""
        self._directory = directory
        self.holders = Holders()
        self._remembered = False    # by both files
        self.damage = ""
        self.position: StorePosition | None = None   # of the complete copy
        self._complete: LevelDBStore | None = None
        self._making: LevelDBStore | None = None
        self._number = 0    # of the database that was made last
        self._checked: Iterator[object] = iter(())
        try:
            directory.mkdir(exist_ok=True)
            lists = [_read_holders(directory / name) for name in HOLDERS_FILES]
            self.holders = max(lists, key=lambda holders: holders.version)
            self._remembered = set(lists) == {self.holders}
            numbers = sorted(int(path.name) for path in directory.iterdir() if path.name.isdigit())
        except OSError as error:
            raise StorageFailed(f"{directory}: {error.strerror}") from error
        for number in numbers:
            self._number = number
            self._open(number)
        if self._complete is not None and not self.holders.namespace:
            self.holders = _holders_in(self._complete)

    def learn(self, holders: Holders) -> None:
        """Remember the list. Raises StorageFailed."""
        if holders == self.holders and self._remembered:
            return
        if self.holders.namespace not in (b"", holders.namespace):
            self._set_aside()
        text = json.dumps({"namespace": holders.namespace.hex(), "version": holders.version,
                           "members": holders.members}).encode()
        line = text + b" %08x\n" % crc32c(text)
        try:
            for name in HOLDERS_FILES:
                durable.replace(self._directory / name, line, PUBLIC)
        except OSError as error:
            raise StorageFailed(f"{self._directory}: {error.strerror}") from error
        self.holders, self._remembered = holders, True

    # ------------------------------------------------------------------ following

    def request(self, dataserver_id: str) -> MirrorRequest:
        """What to ask the nameserver. Raises StorageFailed."""
        store = self._making or self._complete
        request = MirrorRequest(dataserver_id=dataserver_id, complete=self._making is None)
        if store is not None:
            request.position.CopyFrom(position_message(_position(store)))
            cursor = store.get(_CURSOR_KEY)
            request.copying, request.cursor = cursor is not None, cursor or b""
        return request

    def take(self, reply: MirrorReply) -> None:
        """What the nameserver answered. Raises StorageFailed, MalformedRecord."""
        if reply.anew:
            self._begin(position_of(reply.position))
            return
        store = self._making or self._complete
        if store is None:
            return
        if reply.copied or reply.cursor:
            batch = Batch()
            batch.changes.update(decode_changes(reply.changes))
            if reply.copied:
                batch.delete(_CURSOR_KEY)
                batch.put(_REACH_KEY, reply.position.sequence.to_bytes(8, "big"))
            else:
                batch.put(_CURSOR_KEY, reply.cursor)
            store.write(batch)
        elif reply.records:
            self._add(store, reply.records)
        self._look_whether_complete()

    def drop(self) -> None:
        """Keep no copy any more."""
        for store in (self._making, self._complete):
            if store is not None:
                store.close()
        self._making = self._complete = self.position = None
        for path in self._directory.iterdir():
            if path.name.isdigit():
                shutil.rmtree(path, ignore_errors=True)

    @property
    def is_empty(self) -> bool:
        return self._making is None and self._complete is None

    # ------------------------------------------------------------------ giving it back

    def parts(self) -> Iterator[tuple[bytes, bool]]:
        """The complete copy in parts, and whether each is the last. Raises StorageFailed."""
        if self._complete is None:
            raise StorageFailed("this dataserver has no complete copy of the namespace")
        changes: list[tuple[bytes, bytes | None]] = [(HOLDERS_KEY, self._complete.get(HOLDERS_KEY))]
        size = 0
        for key, value in self._complete.iterate(HIDDEN_END):
            changes.append((key, value))
            size += len(key) + len(value)
            if size >= PART_BYTES:
                yield encode_changes(changes), False
                changes, size = [], 0
        yield encode_changes(changes), True

    def check(self, keys: int) -> None:
        """Compare the next `keys` of the complete copy with their checksums. Raises DatabaseDamaged."""
        if self._complete is None:
            return
        for _ in range(keys):
            if next(self._checked, None) is None:
                self._checked = self._complete.iterate(b"")
                return

    def damaged(self, why: str) -> None:
        """Throw the copies away: they are made anew."""
        log.error("the copy of the namespace is damaged and made anew: %s", why)
        self._checked = iter(())
        self.drop()
        self.damage = why

    def close(self) -> None:
        """Safe to call again."""
        self._checked = iter(())
        for store in (self._making, self._complete):
            if store is not None:
                store.close()

    # ------------------------------------------------------------------ private

    def _set_aside(self) -> None:
        """Keep the copies of another namespace, to which this server belonged before, without using them."""
        self.close()
        for path in self._directory.iterdir():
            if path.name.isdigit():
                path.rename(path.with_name(f"of-{self.holders.namespace.hex()}-{path.name}"))
        self._making = self._complete = self.position = None

    def _path(self, number: int) -> Path:
        return self._directory / str(number)

    def _database(self, number: int, *, create: bool) -> LevelDBStore:
        return LevelDBStore(self._path(number), create=create, write_buffer_bytes=WRITE_BUFFER_BYTES,
                            block_cache_bytes=BLOCK_CACHE_BYTES)

    def _open(self, number: int) -> None:
        try:
            store = self._database(number, create=False)
            try:
                _position(store)
                self._put(store)
            except BaseException:
                store.close()
                raise
        except DatabaseDamaged as error:
            log.error("%s: the copy of the namespace is made anew", error)
            self._making, self.damage = None, str(error)
            shutil.rmtree(self._path(number), ignore_errors=True)

    def _put(self, store: LevelDBStore) -> None:
        if self._making is not None:
            self._making.close()
        self._making = store
        self._look_whether_complete()

    def _begin(self, position: Position) -> None:
        if self._making is not None:
            self._making.close()
            self._making = None
            shutil.rmtree(self._path(self._number), ignore_errors=True)
        self._number += 1
        store = self._database(self._number, create=True)
        batch = Batch()
        batch.put(STATE_KEY, position.encode())
        batch.put(_CURSOR_KEY, b"")
        store.write(batch)
        self._making = store

    def _add(self, store: LevelDBStore, data: bytes) -> None:
        """Batches that follow the last one. Raises MalformedRecord, StorageFailed."""
        sequence = _position(store).sequence
        batch = Batch()
        for number, changes in decode_records(data):
            if number != sequence + 1:
                raise MalformedRecord(f"batch {number} follows batch {sequence}")
            batch.changes.update(decode_changes(changes))
            sequence = number
        store.write(batch)

    def _look_whether_complete(self) -> None:
        """Put a copy that has become whole in the place of the old one."""
        store = self._making
        if store is None:
            assert self._complete is not None
            self.position = position_message(_position(self._complete))
            return
        if store.get(_CURSOR_KEY) is not None:
            return
        position, reach = _position(store), store.get(_REACH_KEY)
        if reach is not None and position.sequence < int.from_bytes(reach, "big"):
            return
        old, self._complete, self._making = self._complete, store, None
        self._checked = iter(())
        self.position, self.damage = position_message(position), ""
        if old is not None:
            old.close()
        for path in self._directory.iterdir():
            if path.name.isdigit() and int(path.name) < self._number:
                shutil.rmtree(path, ignore_errors=True)


def _position(store: LevelDBStore) -> Position:
    value = store.get(STATE_KEY)
    if value is None:
        raise DatabaseDamaged("the copy of the namespace does not say how far it is")
    return Position.decode(value)


def _holders_in(store: LevelDBStore) -> Holders:
    """The list as the copy has it. Raises DatabaseDamaged."""
    value = store.get(HOLDERS_KEY)
    return Holders(_position(store).namespace) if value is None else \
        decode_holders(_position(store).namespace, value)


def _read_holders(path: Path) -> Holders:
    """An unreadable list is one that was never heard."""
    try:
        text, _, total = path.read_bytes().strip().rpartition(b" ")
        if total != b"%08x" % crc32c(text):
            raise ValueError("it does not match its checksum")
        record = json.loads(text)
        return Holders(bytes.fromhex(record["namespace"]), int(record["version"]), tuple(record["members"]))
    except FileNotFoundError:
        return Holders()
    except (ValueError, KeyError, TypeError) as error:
        log.error("%s is damaged: %s", path, error)
        return Holders()
