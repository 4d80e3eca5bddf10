"""The framing of LevelDB's logs and manifests, as far as a check of them needs it.

A file is a sequence of blocks, a block a sequence of records: CRC-32C of type and data (masked, 4 bytes), length (2),
type (1), data; little-endian. What is left of a block and too short for a record's head is padding. LevelDB's
doc/log_format.md describes it.
"""

import struct

from crc32c import crc32c

BLOCK_BYTES = 32768
_HEAD = struct.Struct("<IHB")
_MASK_DELTA = 0xa282ead8


def check_records(data: bytes) -> None:
    """Raises ValueError unless `data` consists of whole records that match their checksums."""
    position = 0
    while position < len(data):
        left = BLOCK_BYTES - position % BLOCK_BYTES
        if left < _HEAD.size:
            position += left
            continue
        if position + _HEAD.size > len(data):
            raise ValueError("its end is cut off")
        masked, length, kind = _HEAD.unpack_from(data, position)
        end = position + _HEAD.size + length
        if length > left - _HEAD.size or end > len(data):
            raise ValueError(f"the record at {position} is cut off")
        if not 1 <= kind <= 4 or _masked(crc32c(data[position + _HEAD.size - 1:end])) != masked:
            raise ValueError(f"the record at {position} does not match its checksum")
        position = end


def _masked(crc: int) -> int:
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xffffffff
