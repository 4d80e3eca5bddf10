"""Which replicas a content needs, given the state of its dataservers. Pure: no clock, no store, no network."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from speedwell.fs.nameserver.replicas.placement import Candidate

BALANCED_WITHIN = 0.05
"""Of their disks: dataservers that are nearer to the mean are equally full."""

UNEVEN_BEYOND = 0.1
"""Farther from the mean replicas move without being asked to, slowly."""


class State(Enum):
    """Of a dataserver: it serves; it is silent, but may come back; it is given up; it is to be emptied."""

    ALIVE = "alive"
    AWAY = "away"
    GONE = "gone"
    DRAINING = "draining"


@dataclass(frozen=True)
class Plan:
    """`missing` replicas are to be made, each in the place of one of `leaving` while there are such. Those of
    `surplus` can go without a replacement."""

    missing: int = 0
    leaving: tuple[int, ...] = ()
    surplus: tuple[int, ...] = ()


def plan(replicas: Sequence[int], replication: int, state: Callable[[int], State]) -> Plan:
    """What to do for a content with `replicas`. A server that is only away counts as if it were there; one that
    drains serves on until its replacement is there."""
    states = {number: state(number) for number in replicas}
    staying = [number for number in replicas if states[number] in (State.ALIVE, State.AWAY)]
    leaving = tuple(number for number in replicas if states[number] in (State.GONE, State.DRAINING))
    missing = max(0, replication - len(staying))
    if not any(states[number] in (State.ALIVE, State.DRAINING) for number in replicas):
        return Plan()  # nobody has it to give
    return Plan(missing, leaving[:missing], leaving[missing:] if len(staying) >= 1 else ())


def targets(candidates: Sequence[Candidate], holders: Sequence[Candidate]) -> list[Candidate]:
    """Who may get another replica beside `holders`: candidates in the racks with the fewest of them, so that the
    content outlives a rack."""
    taken = Counter(holder.rack for holder in holders)
    fewest = min((taken[candidate.rack] for candidate in candidates), default=0)
    return [candidate for candidate in candidates if taken[candidate.rack] == fewest]


def overfull(used: dict[int, float], tolerance: float) -> tuple[set[int], set[int]]:
    """(servers that should give, servers that should take), from the used part of each disk, 0 to 1.

    Both are empty when all are within `tolerance` of their mean.
    """
    if not used:
        return set(), set()
    mean = sum(used.values()) / len(used)
    givers = {number for number, part in used.items() if part > mean + tolerance}
    takers = {number for number, part in used.items() if part < mean - tolerance / 2}
    if not givers:
        givers_if_low = {number for number, part in used.items() if part > mean} \
            if any(part < mean - tolerance for part in used.values()) else set()
        return givers_if_low, takers if givers_if_low else set()
    return givers, takers or {number for number, part in used.items() if part < mean}
