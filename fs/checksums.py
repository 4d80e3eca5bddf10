"""Sums that tell whether a block of a file is what was written: CRC-32C of every 64 KiB.

A sum is the CRC with the CRC of 64 KiB of zeros added (exclusive or): a block of zeros, and with it a hole in
the file of sums, has the sum 0.
"""

import struct

from crc32c import crc32c

BLOCK_BYTES = 64 * 1024
SUM_BYTES = 4
MASK = crc32c(bytes(BLOCK_BYTES))
"""CRC of a full block of zeros."""

MAX_SUMS = 128 * 1024
"""So many sums one answer has at most: it is a frame."""

Data = bytes | bytearray | memoryview


def block_sum(data: Data) -> int:
    """The sum of one block, which has at most `BLOCK_BYTES`."""
    return int(crc32c(data)) ^ MASK


def extended(total: int, data: Data) -> int:
    """The sum of a block that had the sum `total` once `data` is added to its end."""
    return int(crc32c(data, total ^ MASK)) ^ MASK


EMPTY = MASK
"""The sum of no bytes: what `extended` starts from."""


def pack(sums: list[int]) -> bytes:
    """The sums as they are stored and sent: 4 bytes each, big-endian."""
    return struct.pack(f">{len(sums)}I", *sums)


def unpack(packed: bytes) -> tuple[int, ...]:
    """The inverse of `pack`; bytes after the last whole sum are ignored."""
    count = len(packed) // SUM_BYTES
    return struct.unpack(f">{count}I", packed[:count * SUM_BYTES])


def digest(packed: bytes, before: int = 0) -> int:
    """One number for many packed sums; `before` is that of the sums in front of them."""
    return int(crc32c(packed, before))


def blocks_of(length: int) -> int:
    """How many blocks a file of `length` bytes has."""
    return -(-length // BLOCK_BYTES)
