"""Which metadata server has which keys, with few entries, an even load, and no more moves than needed.

A first layout gives each server one range, in the order of the topology, so that a rack and a pod have one range
each; boundaries are the roundest numbers that leave the busiest server at most BUSIEST times the mean. What a server
leaves behind goes straight to those with most room, near ones first, and stays in its pod. A server that joins takes
what lies astray amid its rack's ranges, else half of what the fullest server of its rack has. A pod or rack that has
hardly any room left gives one large aligned block to where there is most: one entry for many.

`tables` has the entries that lead there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from math import ceil

from speedwell.controller.policy.errors import NoIdleServer, UnknownServer
from speedwell.controller.policy.metadata.blocks import (
    SPACE,
    Block,
    Node,
    compressed,
    prefixes_between,
    size,
)
from speedwell.controller.policy.network.prefixes import ADDRESS_BITS

UNITS = 1 << 18
"""Boundaries are multiples of this part of the key space: a /28 of the /10."""
BUSIEST = 1.03
"""The largest share of the keys over the mean."""
_AT_FIRST = 1.02
"""The same in a first layout: as servers join, the mean falls."""
MOST_SERVERS = 1 << 12
_POD_PLAY, _RACK_PLAY, _SERVER_PLAY = 0.005, 0.01, 0.06
"""How far a first boundary is rounded, in parts of what is beside it."""
_IN_RACK, _IN_POD, _ELSEWHERE = 1.0, 0.3, 0.01
"""What room is worth, by where it is: beyond a rack aggregation switches get more entries, beyond a pod all edges."""
_CRUMB = 0.025
"""Of the mean: room for less than that is not used while others have more."""
_LITTLE = 0.4
"""Of the mean: a new server that has found less astray takes half of another's."""
_SHED = 16
"""A server that is too busy gives away up to so many times what it has too much, if that makes a round boundary."""
_POD_SPARE, _RACK_SPARE = 0.0075, 0.0
"""Of the mean: a pod or rack whose servers have less room each gives a block away. Spread evenly they have 0.03."""
_BLOCK, _BLOCKS = 0.25, 4
"""Of the mean: no block is given away where less is wanted; and the most blocks of one place in one change."""
_MANY = 128
"""With fewer servers tables are small anyway and a block is a large part of the keys: none is given away."""
_POD, _RACK = slice(1, 2), slice(0, 2)
"""Of the nodes above a server."""

Nodes = tuple[Node, ...]
Range = tuple[int, int, str]
"""(first unit, end, server)"""


@dataclass(frozen=True)
class Layout:
    """The ranges of all servers in order, which are the whole space, and the nodes above each server."""

    above: Mapping[str, Nodes]
    ranges: tuple[Range, ...]
    space: tuple[int, int] = SPACE

    @cached_property
    def spans(self) -> tuple[Range, ...]:
        """The same as addresses."""
        unit, base = size(self.space) // UNITS, self.space[0]
        return tuple((base + first * unit, base + end * unit, server) for first, end, server in self.ranges)

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """The same as CIDR blocks."""
        return tuple(Block(*prefix, server) for first, end, server in self.spans
                     for prefix in prefixes_between(first, end))

    @property
    def loads(self) -> dict[str, int]:
        """How many units each server has."""
        loads = dict.fromkeys(self.above, 0)
        for first, end, server in self.ranges:
            loads[server] += end - first
        return loads

    @property
    def busiest_over_mean(self) -> float:
        return max(self.loads.values()) * len(self.above) / UNITS


def lay_out(above: Mapping[str, Nodes], space: tuple[int, int] = SPACE) -> Layout:
    """A layout from nothing. `above` are the nodes above each server (`nodes_above`). Raises NoIdleServer for more
    than MOST_SERVERS."""
    servers = sorted(above, key=lambda server: (above[server][1::-1], len(server), server))
    _check_number(len(servers))
    ranges: list[Range] = []
    for pod, low, high in _divided(0, UNITS, _groups(servers, lambda each: above[each][1:2]), _POD_PLAY, UNITS):
        for rack, first, end in _divided(low, high, _groups(pod, lambda each: above[each][0]), _RACK_PLAY, UNITS):
            ranges += [(*ends, server) for (server,), *ends in _divided(  # type: ignore[misc]
                first, end, [(server,) for server in rack], _SERVER_PLAY, _most(len(servers), _AT_FIRST))]
    # the play of pods and racks adds up
    return Layout(dict(above), _Draft(above, above, ranges).settled() if ranges else (), space)


def join(layout: Layout, server: str, above: Nodes) -> Layout:
    """With one more server. Raises UnknownServer if it is there already, NoIdleServer for more than MOST_SERVERS."""
    if server in layout.above:
        raise UnknownServer(f"metadata server {server} has joined already")
    known = {**layout.above, server: above}
    _check_number(len(known))
    if not layout.ranges:
        return lay_out(known, layout.space)
    draft = _Draft(known, known, layout.ranges)
    draft.fill(server)
    return Layout(known, draft.settled(), layout.space)


def leave(layout: Layout, server: str) -> Layout:
    """Without a server that leaves or failed. Raises UnknownServer, and NoIdleServer for the last one."""
    if server not in layout.above:
        raise UnknownServer(f"there is no metadata server {server}")
    if len(layout.above) == 1:
        raise NoIdleServer(f"{server} is the last metadata server: nobody could take its keys")
    known = {each: nodes for each, nodes in layout.above.items() if each != server}
    draft = _Draft(known, layout.above, layout.ranges)
    return Layout(known, draft.settled(), layout.space)


class _Draft:
    """A layout while it is changed. Of `above` those that are not among `servers` have to give everything away."""

    def __init__(self, servers: Collection[str], above: Mapping[str, Nodes], ranges: Iterable[Range]) -> None:
        self._above = above
        self._own: dict[str, set[Range]] = {server: set() for server in above}
        self._beside: tuple[dict[int, str], dict[int, str]] = {}, {}
        self._loads = dict.fromkeys(above, 0)
        self._most = dict.fromkeys(above, 0) | dict.fromkeys(servers, _most(len(servers)))
        self._mean = UNITS / len(servers)
        self._is_large = len(servers) >= _MANY
        self._members: dict[Nodes, list[str]] = {}
        for server, nodes in above.items():
            for place in {nodes[_POD], nodes[_RACK]}:
                self._members.setdefault(place, []).append(server)
        for each in ranges:
            self._put(*each)

    def fill(self, server: str) -> None:
        """Give a new server what others have amid its rack's keys, or its pod's, and if that is little, half of what
        the fullest one near it has."""
        above = self._above[server]
        for nodes in _POD, _RACK:
            ranges = self._ranges()
            owners = [self._above[owner][nodes] for _, _, owner in ranges]
            strays = [each for number, each in enumerate(ranges) if owners[number] != above[nodes]
                      and above[nodes] in owners[max(number - 1, 0):number + 2]]
            for stray in sorted(strays, key=lambda each: each[0] - each[1]):
                if self._loads[server] + stray[1] - stray[0] <= self._mean:
                    self._take(*stray[:2])
                    self._put(*stray[:2], server)
        if self._loads[server] < _LITTLE * self._mean:
            fullest = max((each for each in self._loads if each != server),
                          key=lambda each: (self._loads[each] * self._nearness(each, above, ()), each))
            half = (self._loads[fullest] - self._loads[server]) / 2
            first, end, _ = max(self._own[fullest], key=lambda each: (each[1] - each[0], each))
            cut = _roundest(max(first + 1, ceil(end - 1.2 * half)), max(first + 1, ceil(end - 0.8 * half)))
            self._take(cut, end)
            self._put(cut, end, server)

    def settled(self) -> tuple[Range, ...]:
        """The ranges, when no server has more than it may."""
        if self._is_large:
            for nodes in _POD, _RACK:
                self._relieve(nodes)
        for server in [each for each, load in self._loads.items() if load > self._most[each]]:
            while (excess := self._loads[server] - self._most[server]) > 0:
                first, end, _ = min(self._own[server],
                                    key=lambda each: (each[1] - each[0] < excess, each[1] - each[0], each))
                cut = first
                if self._most[server]:
                    cut = max(first, _roundest(end - _SHED * excess, end - excess))
                self._take(cut, end, (server,))
                self._hand_out(cut, end, self._above[server], _POD)
        return tuple((run[0][0], run[-1][1], server) for server, group in groupby(
            self._ranges(), key=lambda each: each[2]) if (run := list(group)))

    def _relieve(self, nodes: slice) -> None:
        """Where a pod has hardly any room left, or a rack none, give one large block to where in the whole, or in the
        pod, there is most: many small pieces would cost many entries."""
        members = {above[nodes]: self._members[above[nodes]] for above in self._above.values()}
        least = (_POD_SPARE if nodes == _POD else _RACK_SPARE) * self._mean
        rooms = {place: self._room(servers) for place, servers in members.items()}
        for place in sorted(members):
            for _ in range(_BLOCKS):
                if rooms[place] >= least:
                    break
                other = max((each for each in rooms if nodes == _POD or each[1:] == place[1:]),
                            key=lambda each: (rooms[each], each))
                here, there = len(members[place]), len(members[other])
                wanted = (rooms[other] - rooms[place]) * here * there / (here + there)
                if wanted < _BLOCK * self._mean or not (block := self._best_block(nodes, place, other, wanted)):
                    break
                self._take(*block)
                near = max(members[other], key=lambda each: (self._most[each] - self._loads[each], each))
                self._hand_out(*block, self._above[near], nodes)
                rooms |= {each: self._room(members[each]) for each in (place, other)}

    def _room(self, servers: Collection[str]) -> float:
        """How much more each of these may have, in the mean."""
        return sum(self._most[each] - self._loads[each] for each in servers) / len(servers)

    def _best_block(self, nodes: slice, place: Nodes, other: Nodes, wanted: float) -> tuple[int, int] | None:
        """The aligned block of about so many units that costs fewest entries if it goes from one place to another."""
        owners: list[tuple[int, int, Nodes | None]] = []
        for first, end, server in self._ranges():
            above = self._above[server]
            to = above[nodes] if nodes == _POD or above[_POD] == place[1:] else None
            if owners and owners[-1][2] == to:
                owners[-1] = owners[-1][0], end, to
            else:
                owners.append((first, end, to))
        for bits in range(int(wanted * 1.25).bit_length() - 1, 1, -1):
            unit = 1 << bits
            found = {(at, at + unit) for first, end, to in owners if to == place
                     for at in (-(-first // unit) * unit, end // unit * unit - unit) if first <= at <= end - unit}
            if found:
                return min(found, key=lambda each: (_entries(owners, *each, other), each))
        return None

    def _hand_out(self, first: int, end: int, above: Nodes, nodes: slice) -> None:
        """Give a range away, to servers of the place that it has below these nodes while they have room."""
        near = self._members[above[nodes]]
        while first < end:
            beside = {server for at, ends in zip((end, first), self._beside, strict=True)
                      if (server := ends.get(at)) is not None}
            racks = {self._above[server][0] for server in beside}
            rooms: dict[str, int] = {}
            least = min(int(_CRUMB * self._mean), end - first)
            for servers, enough in (near, least), (near if self._is_large else (), 1), \
                    (self._loads, least), (self._loads, 1):
                rooms = rooms or {each: min(room, end - first) for each in servers
                                  if (room := self._most[each] - self._loads[each]) >= max(enough, 1)}
            worth = {server: room * (1.0 if server in beside else self._nearness(server, above, racks))
                     for server, room in rooms.items()}
            taker = max(worth, key=lambda server: (worth[server], server))
            room = rooms[taker]
            cut = end if room >= end - first else _roundest(first + max(room // 2, 1), first + room)
            self._put(first, cut, taker)
            first = cut

    def _nearness(self, server: str, other: Nodes, racks: Collection[Node]) -> float:
        above = self._above[server]
        if above[0] == other[0] or above[0] in racks:
            return _IN_RACK
        return _IN_POD if above[_POD] == other[_POD] else _ELSEWHERE

    def _ranges(self) -> list[Range]:
        return sorted(each for own in self._own.values() for each in own)

    def _put(self, first: int, end: int, server: str) -> None:
        self._own[server].add((first, end, server))
        self._beside[0][first] = self._beside[1][end] = server
        self._loads[server] += end - first

    def _take(self, first: int, end: int, servers: Iterable[str] | None = None) -> None:
        """Take these units from whoever has them, or from servers that are known to."""
        for each in [each for server in servers or self._own for each in self._own[server]
                     if each[0] < end and each[1] > first]:
            server = each[2]
            self._own[server].remove(each)
            del self._beside[0][each[0]], self._beside[1][each[1]]
            self._loads[server] -= each[1] - each[0]
            for rest in (each[0], first), (end, each[1]):
                if rest[0] < rest[1]:
                    self._put(*rest, server)


def _entries(owners: Iterable[tuple[int, int, Nodes | None]], low: int, high: int, other: Nodes) -> int:
    """How many entries lead to these owners once the units from `low` to before `high` go to another one."""
    changed: list[tuple[int, int, Nodes | None]] = []
    for first, end, to in owners:
        if first < high and end > low:
            inner = max(first, low), min(end, high)
            changed += (first, inner[0], to), (*inner, other), (inner[1], end, to)
        else:
            changed.append((first, end, to))
    return len(compressed((0, ADDRESS_BITS - UNITS.bit_length() + 1), changed))      # type: ignore[arg-type]


def _most(servers: int, share: float = BUSIEST) -> int:
    """The units that a server may have at most."""
    return max(int(share * UNITS / servers), ceil(UNITS / servers))


def _groups(servers: Sequence[str], of: object) -> list[tuple[str, ...]]:
    return [tuple(group) for _, group in groupby(servers, key=of)]     # type: ignore[call-overload]


def _divided(low: int, high: int, groups: Sequence[Sequence[str]], play: float,
             most: int) -> Iterator[tuple[Sequence[str], int, int]]:
    """(group, first, end) in proportion to the numbers of servers, of which each gets at most `most`, at the roundest
    numbers within `play`."""
    number = sum(map(len, groups))
    before, first = 0, low
    for group, following in zip(groups, [*groups[1:], ()], strict=True):
        before += len(group)
        end = high
        if following:
            wanted = low + (high - low) * before / number
            off = play * min(len(group), len(following)) * (high - low) / number
            end = _roundest(max(round(wanted - off), first + 1, high - (number - before) * most),
                            min(round(wanted + off), first + len(group) * most))
        yield group, first, end
        first = end


def _roundest(low: int, high: int) -> int:
    """The number from `low` to `high` that is a multiple of the largest power of two; `low` if there is none."""
    if low >= high:
        return low
    bits = (low - 1 ^ high).bit_length() - 1
    return high >> bits << bits


def _check_number(servers: int) -> None:
    if servers > MOST_SERVERS:
        raise NoIdleServer(f"{servers} metadata servers are more than the {MOST_SERVERS} that a key space is cut for")
