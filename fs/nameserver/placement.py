"""Which dataservers get a new file: rack-aware, as in section 5 of the Mayflower paper (after HDFS)."""

import random
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Candidate:
    """A dataserver that may take a new file: alive, with space."""

    number: int
    host: str
    rack: str
    free_bytes: int | None = None


def place(candidates: Sequence[Candidate], replication: int, writer_host: str,
          generator: random.Random) -> list[Candidate]:
    """Up to `replication` different candidates, the primary first.

    The primary is on the writer's own host if a candidate lives there, else anywhere; the second replica
    in the primary's rack; each further one in another rack, drawn at random among the racks that have
    none yet. Where racks run out, the rest goes to any candidate. Fewer candidates give fewer replicas.
    """
    if not candidates or replication < 1:
        return []
    local = [candidate for candidate in candidates if candidate.host == writer_host]
    primary = generator.choice(local or candidates)
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
        return generator.choice(neighbours or free)
    used_racks = {candidate.rack for candidate in chosen}
    by_rack: dict[str, list[Candidate]] = {}
    for candidate in free:
        if candidate.rack not in used_racks:
            by_rack.setdefault(candidate.rack, []).append(candidate)
    if not by_rack:
        return generator.choice(free)
    return generator.choice(by_rack[generator.choice(sorted(by_rack))])
