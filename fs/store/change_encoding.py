"""Batches as bytes: how changes lie in a journal and travel between servers.

A change is the lengths of key (2 bytes) and value (4), both big-endian, the key, the value; no value: the length
0xFFFFFFFF. A record is the length of its changes (4), the CRC-32C of all that follows (4), its sequence number (8),
its changes.
"""

import struct
from collections.abc import Iterable, Iterator

from crc32c import crc32c

_CHANGE = struct.Struct(">HI")
_DELETED = 0xFFFFFFFF
_HEAD = struct.Struct(">IIQ")
_SEQUENCE = struct.Struct(">Q")
HEAD_BYTES = _HEAD.size

Change = tuple[bytes, bytes | None]


class MalformedRecord(ValueError):
    """Bytes that are no records, or not the ones that were written."""


def encode_changes(changes: Iterable[Change]) -> bytes:
    """Changes of keys; a value of None deletes."""
    pack = _CHANGE.pack
    return b"".join([pack(len(key), _DELETED) + key if value is None else pack(len(key), len(value)) + key + value
                     for key, value in changes])


def decode_changes(data: bytes) -> Iterator[Change]:
    """Raises MalformedRecord."""
    position, end = 0, len(data)
    while position < end:
        start = position + _CHANGE.size
        if start > end:
            raise MalformedRecord("a change is cut off")
        key_bytes, value_bytes = _CHANGE.unpack_from(data, position)
        middle = start + key_bytes
        position = middle if value_bytes == _DELETED else middle + value_bytes
        if position > end:
            raise MalformedRecord("a change is cut off")
        yield data[start:middle], None if value_bytes == _DELETED else data[middle:position]


def encode_record(sequence: int, changes: bytes) -> bytes:
    """`changes` as `encode_changes` makes them."""
    return _HEAD.pack(len(changes), crc32c(changes, crc32c(_SEQUENCE.pack(sequence))), sequence) + changes


def record_head(data: bytes | memoryview, position: int) -> tuple[int, int]:
    """(sequence number, bytes with the head) of the record that begins there; its bytes are not looked at.

    (0, 0) if there is none: nothing but zeros, or too little.
    """
    if position + _HEAD.size > len(data):
        return 0, 0
    length, _, sequence = _HEAD.unpack_from(data, position)
    return (sequence, length + _HEAD.size) if sequence else (0, 0)


def decode_records(data: bytes) -> Iterator[tuple[int, bytes]]:
    """(sequence number, changes) of each record. Raises MalformedRecord."""
    position = 0
    while position < len(data):
        if position + _HEAD.size > len(data):
            raise MalformedRecord("a record is cut off")
        length, crc, sequence = _HEAD.unpack_from(data, position)
        start = position + _HEAD.size
        position = start + length
        if position > len(data):
            raise MalformedRecord(f"record {sequence} is cut off")
        changes = data[start:position]
        if crc32c(changes, crc32c(_SEQUENCE.pack(sequence))) != crc:
            raise MalformedRecord(f"record {sequence} does not match its checksum")
        yield sequence, changes
