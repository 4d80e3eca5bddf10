"""Which metadata server has which keys, with few entries, an even load, and no more moves than needed.

A first layout gives each server one range, in the order of the topology, so that a rack and a pod have one range
each; boundaries are the roundest numbers that leave the busiest server at most BUSIEST times the mean. What a server
leaves behind goes straight to those with most room, near ones first. A server that joins takes what lies astray amid
its rack's ranges, else half of what the fullest server of its rack has. Only the keys of servers that come, go or
would be too busy ever move.

Two look-ups lead to a key. The edge switch of a client knows its own rack's blocks by server and all others by pod;
the pod's aggregation switches know blocks by rack; the last edge switch delivers. Nothing is in the core.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from math import ceil

from speedwell.controller.policy.errors import NoIdleServer, UnknownServer
from speedwell.controller.policy.metadata.blocks import SPACE, Block, Node, Tables, compressed, prefixes_between, size

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
    def blocks(self) -> tuple[Block, ...]:
        """The same as CIDR blocks."""
        unit, base = size(self.space) // UNITS, self.space[0]
        return tuple(Block(*prefix, server) for first, end, server in self.ranges
                     for prefix in prefixes_between(base + first * unit, base + end * unit))

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
    return Layout(dict(above), _Draft(above, ranges).settled() if ranges else (), space)


def join(layout: Layout, server: str, above: Nodes) -> Layout:
    """With one more server. Raises UnknownServer if it is there already, NoIdleServer for more than MOST_SERVERS."""
    if server in layout.above:
        raise UnknownServer(f"metadata server {server} has joined already")
    known = {**layout.above, server: above}
    _check_number(len(known))
    if not layout.ranges:
        return lay_out(known, layout.space)
    draft = _Draft(known, layout.ranges)
    draft.fill(server)
    return Layout(known, draft.settled(), layout.space)


def leave(layout: Layout, server: str) -> Layout:
    """Without a server that leaves or failed. Raises UnknownServer, and NoIdleServer for the last one."""
    if server not in layout.above:
        raise UnknownServer(f"there is no metadata server {server}")
    if len(layout.above) == 1:
        raise NoIdleServer(f"{server} is the last metadata server: nobody could take its keys")
    known = {each: nodes for each, nodes in layout.above.items() if each != server}
    draft = _Draft(known, [each for each in layout.ranges if each[2] != server])
    for first, end, owner in layout.ranges:
        if owner == server:
            draft.hand_out(first, end, layout.above[server])
    return Layout(known, draft.settled(), layout.space)


def tables(layout: Layout, edges: Iterable[Nodes] = ()) -> Tables:
    """The entries of every switch that has any: the fewest prefixes that lead as the layout says. `edges` are the
    nodes above hosts that may ask; the racks of servers are among them anyway. Switches of a node share a table."""
    found: Tables = {}
    pods = {nodes[1] for nodes in layout.above.values() if len(nodes) > 1}
    for edge, *_ in {*edges, *layout.above.values()}:
        stops = {server: (server,) if nodes[0] == edge else nodes[1] for server, nodes in layout.above.items()}
        found |= dict.fromkeys(edge, compressed(layout.space, layout.blocks, stops))
    for pod in pods:
        stops = {server: nodes[0] for server, nodes in layout.above.items() if nodes[1] == pod}
        found |= dict.fromkeys(pod, compressed(layout.space, layout.blocks, stops))
    return found


class _Draft:
    """A layout while it is changed."""

    def __init__(self, above: Mapping[str, Nodes], ranges: Iterable[Range]) -> None:
        self._above = above
        self._ranges = list(ranges)
        self._loads = dict.fromkeys(above, 0)
        for first, end, server in self._ranges:
            self._loads[server] += end - first
        self._most = _most(len(above))
        self._crumb = int(_CRUMB * UNITS / len(above))

    def fill(self, server: str) -> None:
        """Give a new server what others have amid its rack's keys, or its pod's, and if that is little, half of what
        the fullest one near it has."""
        above = self._above[server]
        mean = UNITS / len(self._loads)
        for nodes in (slice(1, 2), slice(0, 2)):
            self._ranges.sort()
            owners = [self._above[owner][nodes] for _, _, owner in self._ranges]
            strays = [each for number, each in enumerate(self._ranges) if owners[number] != above[nodes]
                      and above[nodes] in owners[max(number - 1, 0):number + 2]]
            for stray in sorted(strays, key=lambda each: each[0] - each[1]):
                if self._loads[server] + stray[1] - stray[0] <= mean:
                    self._replace(stray, [(*stray[:2], server)])
        if self._loads[server] < _LITTLE * mean:
            fullest = max((each for each in self._loads if each != server),
                          key=lambda each: (self._loads[each] * _nearness(self._above[each], above, ()), each))
            half = (self._loads[fullest] - self._loads[server]) / 2
            first, end, _ = largest = max((each for each in self._ranges if each[2] == fullest),
                                          key=lambda each: each[1] - each[0])
            cut = _roundest(max(first + 1, ceil(end - 1.2 * half)), max(first + 1, ceil(end - 0.8 * half)))
            self._replace(largest, [(first, cut, fullest), (cut, end, server)])

    def hand_out(self, first: int, end: int, above: Nodes) -> None:
        """Give a range away that hung below these nodes."""
        while first < end:
            beside = {server for low, high, server in self._ranges if high == first or low == end}
            racks = {self._above[server][0] for server in beside}
            rooms = {server: min(self._most - load, end - first) for server, load in self._loads.items()}
            least = min(self._crumb, end - first, max(rooms.values()))
            worth = {server: room * (1.0 if server in beside else _nearness(self._above[server], above, racks))
                     for server, room in rooms.items() if room >= least}
            taker = max(worth, key=lambda server: (worth[server], server))
            room = max(rooms[taker], 1)
            cut = end if room >= end - first else _roundest(first + max(room // 2, 1), first + room)
            self._replace(None, [(first, cut, taker)])
            first = cut

    def settled(self) -> tuple[Range, ...]:
        """The ranges, when no server is too busy any more."""
        for server in [each for each, load in self._loads.items() if load > self._most]:
            while (excess := self._loads[server] - self._most) > 0:
                own = [each for each in self._ranges if each[2] == server]
                given = min(own, key=lambda each: (each[1] - each[0] < excess, each[1] - each[0]))
                first, end, _ = given
                cut = max(first, _roundest(end - _SHED * excess, end - excess))
                self._replace(given, [(first, cut, server)] if cut > first else [])
                self.hand_out(cut, end, self._above[server])
        return tuple((run[0][0], run[-1][1], server) for server, group in groupby(
            sorted(self._ranges), key=lambda each: each[2]) if (run := list(group)))

    def _replace(self, former: Range | None, ranges: Sequence[Range]) -> None:
        if former is not None:
            self._ranges.remove(former)
            self._loads[former[2]] -= former[1] - former[0]
        self._ranges += ranges
        for first, end, server in ranges:
            self._loads[server] += end - first


def _nearness(above: Nodes, other: Nodes, racks: Collection[Node]) -> float:
    if above[0] == other[0] or above[0] in racks:
        return _IN_RACK
    return _IN_POD if above[1:2] == other[1:2] else _ELSEWHERE


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
