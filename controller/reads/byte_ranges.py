"""Whole bytes for the parts of a read, from the sizes that the policy gives them as real numbers of bits."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

ALIGNMENT_BYTES = 64 * 1024
"""Parts meet at multiples of this: what page caches, read-ahead and the clients' blocks are made of."""


def byte_ranges(size_bytes: int, proportions: Sequence[float]) -> list[tuple[int, int]]:
    """(offset, size) in bytes of each part, in order; the sizes add up to `size_bytes` exactly.

    `proportions` may be in any unit, only their proportions count. Each cut is the multiple of ALIGNMENT_BYTES
    nearest to where it should be; the last part takes the rest. A part too small for that gets 0 bytes.
    """
    total = sum(proportions)
    cuts, reached = [0], 0.0
    for wanted in proportions[:-1]:
        reached += wanted
        blocks = round(size_bytes * (reached / total) / ALIGNMENT_BYTES)
        cuts.append(min(max(blocks * ALIGNMENT_BYTES, cuts[-1]), size_bytes))
    cuts.append(size_bytes)
    return [(start, stop - start) for start, stop in pairwise(cuts)]
