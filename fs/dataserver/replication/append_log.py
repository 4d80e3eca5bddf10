"""Which appends a file holds, and the newest epoch seen: in the file that begins with its description.

A client that sends an append again, to the same primary or to its successor, is answered with the offset at
which it lies. Of each writer only the last append is kept, as it has no more than one under way.

There is a head of 32 bytes (magic, flags, epoch, CRC) and slots of 40 bytes (writer, sequence, offset,
length, CRC). A slot is written with one system call before the append becomes part of the file, so what a killed
process left is told by its end: an append that ends beyond the file's length never happened.
"""

import os
import struct
from collections.abc import Callable, Iterable
from typing import NamedTuple

from crc32c import crc32c

from speedwell.fs.errors import StorageFailed
from speedwell.fs.proto.speedwell_pb2 import AppendRecord

MAX_WRITERS = 1024
"""Of so many writers the last append to one file is remembered."""

_MAGIC = b"SPWL"
_HEAD = struct.Struct(">4sIQ")
_HEAD_BYTES = 32
_SLOT = struct.Struct(">QQQQ")
_SLOT_BYTES = 40
LOG_BYTES = _HEAD_BYTES + MAX_WRITERS * _SLOT_BYTES
_FORGOT = 1
_CLOSED = 2


Write = Callable[[Iterable[tuple[int, bytes]]], None]
"""Writes bytes at offsets from where the appends begin. Raises OSError."""


class Record(NamedTuple):
    """One append in the file."""

    writer: int
    sequence: int
    offset: int
    length: int

    @property
    def end(self) -> int:
        return self.offset + self.length

    def message(self) -> AppendRecord:
        return AppendRecord(writer=self.writer, sequence=self.sequence, offset=self.offset, length=self.length)

    @classmethod
    def of(cls, message: AppendRecord) -> "Record":
        return cls(message.writer, message.sequence, message.offset, message.length)


class AppendLog:
    """The appends of one file. The caller has the file's turn to change it."""

    def __init__(self, place: Callable[[], tuple[str, int]], write: Write, length: int | None = None) -> None:
        """Raises StorageFailed if it cannot be read. `place` says in which file it is, and at which offset, `write`
        writes into that; `length` is that of the file with the appended bytes, None: there is nothing to read."""
        self.epoch = 0
        self.forgot = False     # whether the append of some writer had to make room
        self.closed = False     # whether a version made from the file may have been published: it takes no append
        self._place = place
        self._write_parts = write
        self._slots: list[Record | None] = []
        self._slot_of: dict[int, int] = {}
        if length is not None:
            self._load(length)

    def last(self, writer: int) -> Record | None:
        """The last append of that writer."""
        slot = self._slot_of.get(writer)
        return None if slot is None else self._slots[slot]

    def beyond(self, offset: int) -> list[Record]:
        """The appends known that end beyond `offset`, in the file's order."""
        return sorted((record for record in self._slots if record is not None and record.end > offset),
                      key=lambda record: record.offset)

    def holds(self, records: Iterable[Record]) -> bool:
        """Whether there are some and each is the last append of its writer here."""
        wanted = list(records)
        return bool(wanted) and all(self.last(record.writer) == record for record in wanted)

    def note(self, records: Iterable[Record], epoch: int) -> None:
        """Write down appends that are about to become part of the file; `cut` takes it back.

        Raises OSError.
        """
        new_head = not self._slots or epoch > self.epoch
        self.epoch = max(self.epoch, epoch)
        writes = []
        for record in records:
            forgot = self.forgot
            writes.append((self._slot_for(record), record))
            new_head = new_head or forgot != self.forgot
        self._write(writes, new_head)

    def raise_epoch(self, epoch: int) -> None:
        """From now on older epochs are refused. Raises OSError."""
        if epoch > self.epoch:
            self.epoch = epoch
            self._write([], True)

    def close(self, closed: bool = True) -> None:
        """From now on the file is closed to appends, or open again. Raises OSError."""
        self.closed = closed
        self._write([], True)

    def cut(self, length: int) -> None:
        """Forget appends that did not become part of the file after all."""
        gone = [(slot, record) for slot, record in enumerate(self._slots)
                if record is not None and record.end > length]
        for slot, record in gone:
            self._slots[slot] = None
            del self._slot_of[record.writer]
        if gone:
            self._write([(slot, None) for slot, _ in gone], False)

    # ------------------------------------------------------------------ private

    def _slot_for(self, record: Record) -> int:
        slot = self._slot_of.get(record.writer)
        if slot is None:
            slot = self._free_slot()
            self._slot_of[record.writer] = slot
        self._slots[slot] = record
        return slot

    def _free_slot(self) -> int:
        if len(self._slots) < MAX_WRITERS:
            self._slots.append(None)
            return len(self._slots) - 1
        if None in self._slots:
            return self._slots.index(None)
        slot, oldest = min(enumerate(self._slots), key=lambda pair: pair[1].end if pair[1] else 0)
        assert oldest is not None
        del self._slot_of[oldest.writer]
        self.forgot = True
        return slot

    def _write(self, slots: Iterable[tuple[int, Record | None]], head: bool) -> None:
        parts = [(_HEAD_BYTES + slot * _SLOT_BYTES, _sealed(_SLOT.pack(*(record or (0, 0, 0, 0))), _SLOT_BYTES))
                 for slot, record in slots]
        if head:
            flags = _FORGOT * self.forgot | _CLOSED * self.closed
            first = _sealed(_HEAD.pack(_MAGIC, flags, self.epoch), _HEAD_BYTES)
            if parts and parts[0][0] == _HEAD_BYTES:
                parts[0] = 0, first + parts[0][1]
            else:
                parts.insert(0, (0, first))
        self._write_parts(parts)

    def _load(self, length: int) -> None:
        path, start = self._place()
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                data = os.pread(descriptor, LOG_BYTES, start).rstrip(b"\0")
            finally:
                os.close(descriptor)
        except FileNotFoundError:
            return  # it is being made
        except OSError as error:
            raise StorageFailed(f"{path}: {error.strerror}") from None
        if not data:
            return  # nothing was appended, or a crash while it was made
        slots = -(-(len(data) - _HEAD_BYTES) // _SLOT_BYTES)
        data = data.ljust(_HEAD_BYTES + slots * _SLOT_BYTES, b"\0")
        magic, flags, epoch = _HEAD.unpack_from(data)
        if magic != _MAGIC or not _is_sealed(data[:_HEAD_BYTES], _HEAD.size):
            raise StorageFailed(f"{path} is damaged")
        self.epoch = epoch
        self.forgot, self.closed = bool(flags & _FORGOT), bool(flags & _CLOSED)
        for start in range(_HEAD_BYTES, len(data) - _SLOT_BYTES + 1, _SLOT_BYTES):
            slot, record = len(self._slots), Record(*_SLOT.unpack_from(data, start))
            if not _is_sealed(data[start:start + _SLOT_BYTES], _SLOT.size):
                record, self.forgot = Record(0, 0, 0, 0), True   # nobody knows whose it was
            self._slots.append(record if record.writer else None)
            if record.writer:
                self._slot_of[record.writer] = slot
        try:
            self.cut(length)
        except OSError as error:
            raise StorageFailed(f"{path}: {error.strerror}") from None


def _sealed(data: bytes, size: int) -> bytes:
    """`data` with its CRC behind it, filled up to `size` bytes."""
    return (data + crc32c(data).to_bytes(4, "big")).ljust(size, b"\0")


def _is_sealed(data: bytes, size: int) -> bool:
    """Whether the first `size` bytes match the CRC behind them."""
    return crc32c(data[:size]) == int.from_bytes(data[size:size + 4], "big")
