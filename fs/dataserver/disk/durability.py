"""Forcing a file to the disk, and what is left of it when the machine has lost its power.

A file is synced up to a length: its bytes, the sums of its blocks and its names are on the disk then, and one of two
slots in its record has that length with the sum of the last block. The slots are written in turn, so that one stays
when the power fails while the other is written. What was appended after the last sync may reach the disk in part and
in any order: after a power failure the blocks beyond the slot's length are compared with their sums, and the file is
cut to what is whole.
"""

import contextlib
import os
import struct

from crc32c import crc32c

from speedwell.fs.checksums import BLOCK_BYTES, EMPTY, block_sum, blocks_of, unpack
from speedwell.fs.dataserver.disk.disk_errors import disk_error, put, sync_directory
from speedwell.fs.dataserver.disk.stored_file import StoredFile, chunk_name
from speedwell.fs.dataserver.disk.version_file import MAP_AT, SMALL_APPENDS_AT
from speedwell.fs.errors import StorageFailed

_SLOT = struct.Struct(">QI")
_SLOT_BYTES = 32
_SMALL_SLOTS_AT = SMALL_APPENDS_AT - 2 * _SLOT_BYTES
_SLOTS_AT = MAP_AT - 2 * _SLOT_BYTES

Committed = tuple[int, int]
"""Length in bytes, sum of the last block."""


class Policy:
    """When the dataservers of an installation force files to their disks: `value` is "always" (before an append is
    acknowledged), "fsync" (when it is asked for) or "never". The nameserver says it with each heartbeat."""

    value = "fsync"


def sync(file: StoredFile) -> None:
    """Force what is committed of `file` to the disk; those who want it at once share it. Raises NoSpace,
    StorageFailed."""
    if file.synced_length < file.length or not file.names_synced:
        file.syncing.share(lambda: _sync(file))


def _sync(file: StoredFile) -> None:
    try:
        done = False
        while not done:
            committed, small = file.committed, file.small
            _force(file, committed)
            done = file.small == small      # else it got its directory meanwhile
        file.synced_length, file.names_synced = committed[0], True
    except OSError as error:
        raise disk_error(error, f"cannot force {file.file_id} to the disk") from None


def _force(file: StoredFile, committed: Committed) -> None:
    """Raises OSError."""
    if file.small:
        _write_slot(file, committed)
        _sync_file(file.record)
    else:
        for name in _changed_names(file, committed[0]):
            with contextlib.suppress(FileNotFoundError):
                _sync_file(f"{file.directory}/{name}")
        _write_slot(file, committed)
        _sync_file(file.record)
        sync_directory(file.directory)
    if not file.names_synced:
        above = os.path.dirname(file.directory)  # noqa: PTH120
        sync_directory(above)
        sync_directory(os.path.dirname(above))  # noqa: PTH120


def _changed_names(file: StoredFile, length: int) -> list[str]:
    """The files in the directory that may not be on the disk, but for the record."""
    if not file.names_synced:
        return [name for name in os.listdir(file.directory) if name != "meta"]  # noqa: PTH208
    first, last = file.synced_length // file.chunk_size, (length - 1) // file.chunk_size
    return ["sums", *(chunk_name(number, file.generation) for number in range(first, last + 1))]


def _sync_file(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)


def _write_slot(file: StoredFile, committed: Committed) -> None:
    lengths = [-1 if slot is None else slot[0] for slot in _read_slots(file)]
    body = _SLOT.pack(*committed)
    _put_slot(file, lengths.index(min(lengths)), body + crc32c(body).to_bytes(4, "big"))


def _slots_place(file: StoredFile) -> tuple[str, int]:
    small = file.small
    return file.record_of(small), _SMALL_SLOTS_AT if small else _SLOTS_AT


def _put_slot(file: StoredFile, number: int, content: bytes) -> None:
    path, start = _slots_place(file)
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        put(descriptor, content, start + number * _SLOT_BYTES)
    finally:
        os.close(descriptor)


def _read_slots(file: StoredFile) -> list[Committed | None]:
    path, start = _slots_place(file)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = os.pread(descriptor, 2 * _SLOT_BYTES, start).ljust(2 * _SLOT_BYTES, b"\0")
    finally:
        os.close(descriptor)
    slots: list[Committed | None] = []
    for number in range(2):
        part = data[number * _SLOT_BYTES:][:_SLOT.size + 4]
        intact = crc32c(part[:_SLOT.size]) == int.from_bytes(part[_SLOT.size:], "big") and any(part)
        slots.append(_SLOT.unpack(part[:_SLOT.size]) if intact else None)
    return slots


def recover(file: StoredFile) -> int:
    """After a power failure: cut the file to what of it is whole, at least what was synced; returns how many bytes
    that cost. Raises StorageFailed."""
    try:
        slots = _read_slots(file)
        synced = max((slot for slot in slots if slot is not None and slot[0] <= file.length and _ends_in(file, slot)),
                     default=(0, EMPTY))
        whole = _whole_after(file, synced)
        before = file.length
        for number, slot in enumerate(slots):
            if slot not in (None, synced):      # of a sync that the power failure ended
                _put_slot(file, number, bytes(_SLOT_BYTES))
        if whole != file.committed:
            file.write_head(*whole)
            _sync_file(file.record)
            file.committed = whole
        return before - whole[0]
    except OSError as error:
        raise disk_error(error, f"cannot recover {file.file_id}") from None


def _ends_in(file: StoredFile, committed: Committed) -> bool:
    """Whether the block in which that length ends has the sum it had then."""
    start = max(0, committed[0] - 1) // BLOCK_BYTES * BLOCK_BYTES
    try:
        return block_sum(file.read(start, committed[0] - start)) == committed[1]
    except StorageFailed:
        return False


def _whole_after(file: StoredFile, synced: Committed) -> Committed:
    """The longest content that begins with what was synced and whose blocks match their sums."""
    whole = synced
    for block in range(max(0, synced[0] - 1) // BLOCK_BYTES, blocks_of(file.length)):
        try:
            data = file.verified_block(block, file.committed)
        except StorageFailed:
            return whole
        whole = block * BLOCK_BYTES + len(data), unpack(file.sums(block, block + 1, file.committed))[0]
    return whole
