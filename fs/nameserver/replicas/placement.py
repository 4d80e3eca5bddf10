"""Which dataservers get a new file: rack-aware, as in section 5 of the Mayflower paper (after HDFS)."""

import random
from collections.abc import Sequence
from typing import NamedTuple


class Candidate(NamedTuple):
    """A dataserver that may take a new file: alive, with space."""

    number: int
    host: str
    rack: str
    free_bytes: int | None = None
    used_part: float = 0.0
    """Of its disk, from 0 to 1."""
    disk_left_bytes: int = 0
    """A second that its disk could write besides; 0: not known."""


EVEN_WITHIN = 0.05
"""A disk that is fuller than the mean of all by more than this part of it gets no new files while others can."""


def evenly_filled(candidates: Sequence[Candidate], replication: int) -> Sequence[Candidate]:
    """The candidates without those whose disks are fuller than others'; all where the rest would be too few hosts, or
    in fewer racks than two where there are two.

    So a part of the cluster whose links are always busy does not leave its disks empty and the others full: the paper
    relies on load that moves about (Sinbad, SIGCOMM 2013, section 7.4).
    """
    if not candidates:
        return candidates
    mean = sum(candidate.used_part for candidate in candidates) / len(candidates)
    even = [candidate for candidate in candidates if candidate.used_part <= mean + EVEN_WITHIN]
    wanted = min(2, replication, len({candidate.rack for candidate in candidates}))
    enough = (len({candidate.host for candidate in even}) >= min(replication, len({each.host for each in candidates}))
              and len({candidate.rack for candidate in even}) >= wanted)
    return even if enough else candidates


EQUALLY_FREE = 0.9
"""Of another's free bytes: heartbeats of servers on one disk differ by less."""


def emptier(candidates: Sequence[Candidate], generator: random.Random) -> Candidate:
    """One of `candidates`: of two drawn at random that with more free bytes, so that disks fill evenly and a new one
    is not flooded (Mitzenmacher, The Power of Two Choices in Randomized Load Balancing, 2001)."""
    if len(candidates) == 1:
        return candidates[0]
    first, second = generator.sample(candidates, 2)
    return second if (first.free_bytes or 0) < EQUALLY_FREE * (second.free_bytes or 0) else first


def with_room(candidates: Sequence[Candidate], size_bytes: int, replication: int) -> Sequence[Candidate]:
    """Those that have more than `size_bytes` free, if they are enough for all replicas; otherwise all."""
    roomy = [candidate for candidate in candidates if candidate.free_bytes is None
             or candidate.free_bytes > size_bytes]
    return roomy if len(roomy) >= min(replication, len(candidates)) else candidates


def place(candidates: Sequence[Candidate], replication: int, writer_host: str,
          generator: random.Random) -> list[Candidate]:
    """Up to `replication` different candidates, the primary first.

    The primary is on the writer's own host if a candidate lives there, else anywhere; the second replica
    in the primary's rack; each further one in another rack, drawn at random among the racks that have
    none yet. Where racks run out, the rest goes to any candidate. Fewer candidates give fewer replicas.
    Among equals those with more free bytes get more (`emptier`).
    """
    if not candidates or replication < 1:
        return []
    local = [candidate for candidate in candidates if candidate.host == writer_host]
    primary = emptier(local or candidates, generator)
    chosen = [primary]
    while len(chosen) < min(replication, len(candidates)):
        chosen.append(_next_replica(candidates, chosen, generator))
    return chosen


def _next_replica(candidates: Sequence[Candidate], chosen: Sequence[Candidate],
                  generator: random.Random) -> Candidate:
    taken = {candidate.number for candidate in chosen}
    free = [candidate for candidate in candidates if candidate.number not in taken]
    if len(chosen) == 1:
        neighbours = [candidate for candidate in free if candidate.rack == chosen[0].rack]
        return emptier(neighbours or free, generator)
    used_racks = {candidate.rack for candidate in chosen}
    by_rack: dict[str, list[Candidate]] = {}
    for candidate in free:
        if candidate.rack not in used_racks:
            by_rack.setdefault(candidate.rack, []).append(candidate)
    if not by_rack:
        return emptier(free, generator)
    return emptier(by_rack[generator.choice(sorted(by_rack))], generator)
