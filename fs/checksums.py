"""Sums that tell whether a block of a file is what was written: CRC-32C of every 64 KiB.

A sum is the CRC with the CRC of 64 KiB of zeros added (exclusive or): a block of zeros, and with it a hole in
the file of sums, has the sum 0.
"""

import struct
from functools import cache, reduce
from operator import xor

from crc32c import crc32c

BLOCK_BYTES = 64 * 1024
SUM_BYTES = 4
MASK = crc32c(bytes(BLOCK_BYTES))
"""CRC of a full block of zeros."""

_ONES = 2**32 - 1

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


def digest_of_zeros(count_bytes: int, before: int = 0) -> int:
    """What `digest` makes of so many zero bytes, in moments: they change a CRC linearly (zlib's crc32_combine)."""
    register = before ^ _ONES
    for power in range(count_bytes.bit_length()):
        if count_bytes >> power & 1:
            register = _changed(register, _after_zeros(power))
    return register ^ _ONES


@cache
def _after_zeros(power: int) -> tuple[int, ...]:
    """What 2^power zero bytes make of each bit of a CRC's register."""
    if not power:
        return tuple(int(crc32c(b"\0", 1 << bit ^ _ONES)) ^ _ONES for bit in range(32))
    half = _after_zeros(power - 1)
    return tuple(_changed(bits, half) for bits in half)


def _changed(register: int, by_bit: tuple[int, ...]) -> int:
    return reduce(xor, (bits for bit, bits in enumerate(by_bit) if register >> bit & 1), 0)


def blocks_of(length: int) -> int:
    """How many blocks a file of `length` bytes has."""
    return -(-length // BLOCK_BYTES)
