"""A store that numbers its batches and keeps the last ones in a journal, for mirrors of it elsewhere.

The number is written with each batch, under a key that users of the store do not see. A batch is in the journal
before it is in the store below, so the journal is never behind what was answered; after a crash its last batches
are carried out again.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace

from speedwell.fs.errors import DatabaseDamaged, StorageFailed
from speedwell.fs.store.change_encoding import MalformedRecord, decode_changes, encode_changes
from speedwell.fs.store.contract import Batch
from speedwell.fs.store.journal import Journal
from speedwell.fs.store.leveldb import LevelDBStore

HIDDEN_END = b"\x01"
"""Keys before it belong to stores and those who copy them, not to the namespace."""

MAX_JOURNALED_BYTES = 2 << 20
"""Of one batch. After a larger one copies are made anew, in parts of a size that one message takes."""

STATE_KEY = b"\x00state"
_STATE = struct.Struct(">16sQQQQ")
_BEFORE, _BEHIND = 24, 32
"""Where the sequence number lies in it: the rest stays the same from batch to batch."""


@dataclass(frozen=True, slots=True)
class Position:
    """Which namespace a store holds, and up to which batch.

    A timeline is a succession of batches without a fork. One that begins with a rebuilt namespace has the batches of
    its `parent` up to number `forked_after`.
    """

    namespace: bytes = bytes(16)
    timeline: int = 0
    sequence: int = 0
    parent: int = 0
    forked_after: int = 0

    def encode(self) -> bytes:
        return _STATE.pack(self.namespace, self.timeline, self.sequence, self.parent, self.forked_after)

    @classmethod
    def decode(cls, value: bytes) -> "Position":
        """Raises DatabaseDamaged."""
        try:
            return cls(*_STATE.unpack(value))
        except struct.error:
            raise DatabaseDamaged("the record with the database's position is damaged") from None

    def continues(self, other: "Position") -> bool:
        """Whether this store can be reached from `other` by batches alone."""
        if self.namespace != other.namespace:
            return False
        if self.timeline == other.timeline:
            return other.sequence <= self.sequence
        return self.parent == other.timeline and other.sequence <= self.forked_after


class JournaledStore:
    """See `speedwell.fs.store.contract.Store`. One writer at a time."""

    def __init__(self, store: LevelDBStore, journal: Journal) -> None:
        """Both are closed with it. Batches that only the journal has are carried out. Raises StorageFailed; the
        store must have a position."""
        self._store = store
        self.get, self.get_all = store.get, store.get_all
        self.journal = journal
        self._doubtful = False
        self._state, self._sequence = b"", 0
        self._take(self._stored_position())
        self._catch_up()

    @classmethod
    def begin(cls, store: LevelDBStore, journal: Journal, position: Position) -> "JournaledStore":
        """With another position: of a new namespace, or on a new timeline. Raises StorageFailed."""
        journal.start_anew(position.sequence)
        batch = Batch()
        batch.put(STATE_KEY, position.encode())
        store.write(batch)
        return cls(store, journal)

    @property
    def position(self) -> Position:
        """Up to which batch the store is."""
        return replace(Position.decode(self._state), sequence=self._sequence)

    def iterate(self, start: bytes, stop: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        return self._store.iterate(max(start, HIDDEN_END), stop)

    def write(self, batch: Batch) -> None:
        if self._doubtful and not self._store.write_failed:
            self._settle()
        sequence = self._sequence + 1
        batch.changes[STATE_KEY] = self._state[:_BEFORE] + sequence.to_bytes(8, "big") + self._state[_BEHIND:]
        changes = encode_changes(batch.changes.items())
        is_small = len(changes) <= MAX_JOURNALED_BYTES
        if not self._doubtful and is_small:
            self.journal.append(changes)
        try:
            self._store.write(batch)
        except DatabaseDamaged:
            self.journal.take_back(self._sequence)   # the batch is not to come back when the store is made anew
            raise
        except StorageFailed:
            self._doubtful = True
            raise
        self._sequence = sequence
        if not is_small:
            self.journal.start_anew(sequence)

    def sync(self) -> None:
        self._store.sync()     # the journal is made again from other copies

    def fork(self, position: Position) -> None:
        """Begin a new timeline with the next batch. Raises StorageFailed."""
        batch = Batch()
        batch.put(STATE_KEY, position.encode())
        self._store.write(batch)
        self._take(position)

    @property
    def settled(self) -> bool:
        """Whether the store holds what `position` says, and nothing that failed half-way."""
        return not self._doubtful

    def close(self) -> None:
        self._store.close()
        self.journal.close()

    # ------------------------------------------------------------------ private

    def _stored_position(self) -> Position:
        value = self._store.get(STATE_KEY)
        if value is None:
            raise DatabaseDamaged("the record with the database's position is missing")
        return Position.decode(value)

    def _take(self, position: Position) -> None:
        self._state, self._sequence = position.encode(), position.sequence

    def _settle(self) -> None:
        """After a failed write the database was opened anew, with that batch or without."""
        self._take(self._stored_position())
        self.journal.take_back(self._sequence)
        self._doubtful = False

    def _catch_up(self) -> None:
        behind = self.journal.last - self._sequence
        if behind < 0:
            self.journal.start_anew(self._sequence)   # it lost its end
            return
        if not behind:
            return
        if self.journal.first > self._sequence + 1:
            raise DatabaseDamaged(f"the database ends with batch {self._sequence}, the journal begins with "
                                  f"batch {self.journal.first}")
        try:
            for _, changes in self.journal.records(self._sequence):
                batch = Batch()
                batch.changes.update(decode_changes(changes))
                self._store.write(batch)
        except MalformedRecord as error:
            raise DatabaseDamaged(f"the journal is damaged: {error}") from None
        self._take(self._stored_position())
        if self._sequence != self.journal.last:
            raise DatabaseDamaged("the journal is not the database's")
