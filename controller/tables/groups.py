"""The groups of one switch: which next hops lead to which destinations, and what number each group has.

Destinations that hang on the same switches, and whose choices are the same, share a group: what fails above them
fails for all. While all of a group's destinations change alike the group keeps its number, and one message changes
them all. Beside each group stand as many fast-failover groups as it has first hops: for flows with a path of their
own, which fall back to the group as soon as the switch sees the port of their path go down.
"""

from __future__ import annotations

import zlib
from collections.abc import Container, Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

from speedwell.controller.policy.network.path_trees import bits_of
from speedwell.controller.switches.entries import Bucket, Group, Output, PushLoaded, ToGroup
from speedwell.controller.switches.layout import FIRST_GROUP, LAST_GROUP

MAX_BUCKETS = 64
"""Of a group; where there are more choices, buckets take some of each first hop."""


class NextHops(NamedTuple):
    """What a group is made for."""

    near: tuple[str, ...]
    """The switches that the destinations hang on."""
    bits: int
    """Of the label, that choose."""
    choices: tuple[tuple[int, int], ...]
    """(port, choices as bits) of each first hop."""


class SwitchGroups:
    """The groups of one switch by their numbers. `changed` collects the numbers of those to be looked at."""

    def __init__(self, found: Mapping[int, Group] | None = None, taken: Container[int] = ()) -> None:
        """`found` are the groups that the switch has from before: numbers stay where contents are the same. Numbers
        that are `taken`, by others, are not given out."""
        self.groups: dict[int, Group] = {}
        self.changed: set[int] = set()
        self._found = dict(found or {})
        self._taken = taken
        self._next_hops: dict[str, NextHops] = {}
        self._destinations: dict[NextHops, set[str]] = {}
        self._ids: dict[NextHops, int] = {}
        self._failover_ids: dict[int, dict[int, int]] = {}

    def group_toward(self, destination: str) -> int | None:
        """The group that leads to an edge switch; None if there is none."""
        next_hops = self._next_hops.get(destination)
        return None if next_hops is None else self._ids[next_hops]

    def failover_group(self, destination: str, port_no: int) -> int | None:
        """The group that leads out of a port as long as it is up, and to `group_toward` otherwise."""
        group_id = self.group_toward(destination)
        return None if group_id is None else self._failover_ids[group_id].get(port_no)

    def set_next_hops(self, next_hops_to: Mapping[str, NextHops | None]) -> set[str]:
        """Destinations have other next hops now. Returns those that another group leads to."""
        before = {destination: self.group_toward(destination) for destination in next_hops_to}
        successors: dict[NextHops, NextHops] = {}
        for destination, next_hops in next_hops_to.items():
            former = self._next_hops.pop(destination, None)
            if former is not None:
                self._destinations[former].discard(destination)
                if next_hops is not None:
                    successors.setdefault(former, next_hops)
            if next_hops is not None:
                self._next_hops[destination] = next_hops
                self._destinations.setdefault(next_hops, set()).add(destination)
        for former in [next_hops for next_hops, destinations in self._destinations.items() if not destinations]:
            del self._destinations[former]
            group_id = self._ids.pop(former, None)
            successor = successors.get(former)
            if group_id is None:
                continue
            if successor in self._destinations and successor not in self._ids:
                self._ids[successor] = group_id
                self._make(group_id, successor)
            else:
                self._delete(group_id)
        for next_hops in {new for new in next_hops_to.values() if new is not None and new not in self._ids}:
            group_id = self._free_id(repr(next_hops), _buckets(next_hops), False)
            self._ids[next_hops] = group_id
            self._make(group_id, next_hops)
        return {destination for destination, group_id in before.items()
                if group_id != self.group_toward(destination)}

    def _make(self, group_id: int, next_hops: NextHops) -> None:
        self._set(Group(group_id, _buckets(next_hops)))
        failover = self._failover_ids.setdefault(group_id, {})
        for port_no, _ in next_hops.choices:
            buckets = _failover_buckets(group_id, port_no)
            if port_no not in failover:
                failover[port_no] = self._free_id(repr((group_id, port_no)), buckets, True)
                self._set(Group(failover[port_no], buckets, is_failover=True))
        for port_no in failover.keys() - {port_no for port_no, _ in next_hops.choices}:
            self._unset(failover.pop(port_no))

    def _delete(self, group_id: int) -> None:
        for failover_id in self._failover_ids.pop(group_id).values():
            self._unset(failover_id)
        self._unset(group_id)

    def _set(self, group: Group) -> None:
        self.groups[group.group_id] = group
        self.changed.add(group.group_id)

    def _unset(self, group_id: int) -> None:
        del self.groups[group_id]
        self.changed.add(group_id)

    def _free_id(self, text: str, buckets: tuple[Bucket, ...], is_failover: bool) -> int:
        """The number of a group that was found with these contents, or one that follows from `text`."""
        same = min((number for number, group in self._found.items() if number not in self.groups
                    and group.buckets == buckets and group.is_failover == is_failover), default=None)
        if same is not None:
            return same
        number = FIRST_GROUP | zlib.crc32(text.encode()) & LAST_GROUP - FIRST_GROUP
        while number in self.groups or number in self._found or number in self._taken:
            number = FIRST_GROUP if number == LAST_GROUP else number + 1
        return number


_cache: dict[tuple[int, tuple[tuple[int, int], ...]], tuple[Bucket, ...]] = {}


def _buckets(next_hops: NextHops) -> tuple[Bucket, ...]:
    """One bucket for each choice, in their order."""
    key = next_hops.bits, next_hops.choices
    if key not in _cache:
        if len(_cache) > 4096:
            _cache.clear()
        chosen = [(choice, port_no) for port_no, choices in next_hops.choices for choice in bits_of(choices)]
        if len(chosen) > MAX_BUCKETS:
            chosen = list(_spread([[(choice, port_no) for choice in bits_of(choices)]
                                   for port_no, choices in next_hops.choices]))
        _cache[key] = tuple(_bucket(choice, next_hops.bits, port_no) for choice, port_no in sorted(chosen))
    return _cache[key]


@lru_cache(maxsize=1 << 16)
def _bucket(choice: int, bits: int, port_no: int) -> Bucket:
    return Bucket((PushLoaded(choice, bits), Output(port_no)), port_no)


def _spread(by_hop: list[list[tuple[int, int]]]) -> Iterable[tuple[int, int]]:
    """As many as a group may have, evenly of each first hop."""
    share = max(1, MAX_BUCKETS // len(by_hop))
    for choices in by_hop[:MAX_BUCKETS]:
        count = min(share, len(choices))
        yield from (choices[number * len(choices) // count] for number in range(count))


def _failover_buckets(group_id: int, port_no: int) -> tuple[Bucket, ...]:
    return (Bucket((PushLoaded(), Output(port_no)), port_no),
            Bucket((ToGroup(group_id),), watch_group_id=group_id))
