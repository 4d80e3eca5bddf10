"""Keys as addresses, CIDR blocks of them with their servers, and tables of prefixes that lead there.

A key's address is that of its hash. A table maps prefixes to the next stops, of which any one will do: the longest
prefix that holds an address counts.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from speedwell.controller.policy.errors import NoSuchKeyOwner
from speedwell.controller.policy.network.graph import Network
from speedwell.controller.policy.network.prefixes import ADDRESS_BITS, Prefix
from speedwell.controller.policy.network.tiers import Tiers

SPACE: Prefix = (100 << 24 | 64 << 16, 10)
"""100.64.0.0/10, which carriers' NAT has and no data centre routes (RFC 6598)."""
SLOTS: Prefix = (198 << 24 | 18 << 16, 16)
"""198.18.0.0/16, of networks that are tested and no data centre's (RFC 2544): the slots of a shared namespace."""
IPV4: Prefix = (0, 0)
"""All addresses, as in the paper."""
TABLE_LIMIT = 2048
"""Entries that a switch holds (the paper's section VII-D)."""

Node = tuple[str, ...]
"""The switches of one place in the tree, sorted: an edge switch, the aggregation switches of a pod, the core."""
Table = Mapping[Prefix, tuple[str, ...]]
"""The next stops by prefix: servers that hang on this switch, or the switches of the next node."""
Tables = dict[str, Table]
"""By switch."""
_Choices = tuple[set[tuple[str, ...]], "_Choices", "_Choices"] | None
_NOTHING: tuple[set[tuple[str, ...]], None, None] = set(), None, None


@dataclass(frozen=True, slots=True, order=True)
class Block:
    """The addresses of a CIDR block, and the server that owns their keys."""

    first: int
    length: int
    server: str

    @property
    def prefix(self) -> Prefix:
        return self.first, self.length

    @property
    def end(self) -> int:
        """One more than the last address."""
        return self.first + size(self.prefix)


@dataclass(frozen=True, slots=True, order=True)
class Move:
    """A block whose keys go from one server to another."""

    first: int
    length: int
    source: str
    target: str


def size(prefix: Prefix) -> int:
    """How many addresses a prefix holds."""
    return 1 << ADDRESS_BITS - prefix[1]


def halves(prefix: Prefix) -> tuple[Prefix, Prefix]:
    first, length = prefix
    return (first, length + 1), (first + size(prefix) // 2, length + 1)


def prefixes_between(first: int, end: int) -> Iterator[Prefix]:
    """The fewest prefixes that hold the addresses from `first` to before `end`, in order."""
    while first < end:
        bits = min((first & -first or 1 << ADDRESS_BITS).bit_length(), (end - first).bit_length()) - 1
        yield first, ADDRESS_BITS - bits
        first += 1 << bits


def runs(prefixes: Iterable[Prefix]) -> Iterator[tuple[int, int]]:
    """(first, end) of the unbroken stretches of disjoint prefixes."""
    first = end = -1
    for prefix in sorted(prefixes):
        if prefix[0] != end:
            if end > first:
                yield first, end
            first = prefix[0]
        end = prefix[0] + size(prefix)
    if end > first:
        yield first, end


def joined(prefixes: Iterable[Prefix]) -> Iterator[Prefix]:
    """The fewest prefixes that hold the same addresses as these disjoint ones."""
    for first, end in runs(prefixes):
        yield from prefixes_between(first, end)


def owner(blocks: Sequence[Block], address: int) -> str:
    """The server of an address; the blocks are disjoint and in order. Raises NoSuchKeyOwner."""
    at = bisect_right(blocks, address, key=_first) - 1
    if at < 0 or address >= blocks[at].end:
        raise NoSuchKeyOwner(address)
    return blocks[at].server


def _first(block: Block) -> int:
    return block.first


def moves(before: Iterable[Block], after: Iterable[Block]) -> tuple[Move, ...]:
    """The blocks that have another server afterwards, as few as may be, in order of their addresses."""
    old, new = sorted(before), sorted(after)
    changed: dict[tuple[str, str], list[Prefix]] = {}
    i = j = 0
    while i < len(old) and j < len(new):
        was, now = old[i], new[j]
        if was.server != now.server and was.first < now.end and now.first < was.end:
            inner = was.prefix if was.length > now.length else now.prefix
            changed.setdefault((was.server, now.server), []).append(inner)
        if was.end <= now.end:
            i += 1
        else:
            j += 1
    return tuple(sorted(Move(*prefix, *ends) for ends, prefixes in changed.items() for prefix in joined(prefixes)))


def compressed(space: Prefix, stretches: Iterable[tuple[int, int, tuple[str, ...] | None]]) -> Table:
    """The fewest prefixes by which each address goes where it should. `stretches` are (first, end, next stops), in
    order and disjoint; what has no stops may go anywhere.

    Draves, King, Venkatachary, Zill: "Constructing optimal IP routing tables", INFOCOM 1999.
    """
    firsts: list[int] = []
    ends: list[int] = []
    leads: list[tuple[str, ...]] = []
    for first, end, to in stretches:
        if to is None or first == end:
            continue
        if leads and leads[-1] == to and ends[-1] == first:
            ends[-1] = end
        else:
            firsts.append(first)
            ends.append(end)
            leads.append(to)
    table: dict[Prefix, tuple[str, ...]] = {}
    _emit(space, _choices(space, firsts, ends, leads, 0, len(leads)), None, table)
    return table


def _choices(prefix: Prefix, firsts: Sequence[int], ends: Sequence[int], leads: Sequence[tuple[str, ...]],
             low: int, high: int) -> _Choices:
    """What an entry for a prefix may lead to, with the same of its halves; None where nothing matters. The stretches
    from `low` to before `high` reach into the prefix."""
    if low == high:
        return None
    if high - low == 1:
        return {leads[low]}, None, None
    left, right = halves(prefix)
    below = (_choices(left, firsts, ends, leads, low, bisect_left(firsts, right[0], low, high)),
             _choices(right, firsts, ends, leads, bisect_right(ends, right[0], low, high), high))
    if below[0] is None or below[1] is None:
        return (below[0] or below[1] or _NOTHING)[0], *below
    return below[0][0] & below[1][0] or below[0][0] | below[1][0], *below


def _emit(prefix: Prefix, choices: _Choices, inherited: tuple[str, ...] | None,
          table: dict[Prefix, tuple[str, ...]]) -> None:
    if choices is None:
        return
    if inherited not in choices[0]:
        inherited = table[prefix] = min(choices[0])
    for half, below in zip(halves(prefix), choices[1:], strict=True):
        _emit(half, below, inherited, table)


def look_up(table: Table, address: int) -> tuple[str, ...]:
    """The next stops of an address by the longest prefix. Raises NoSuchKeyOwner."""
    for length in range(ADDRESS_BITS, -1, -1):
        bits = ADDRESS_BITS - length
        if stops := table.get((address >> bits << bits, length)):
            return stops
    raise NoSuchKeyOwner(address)


def walk(tables: Tables, switch: str, address: int) -> tuple[str, ...]:
    """The switches that a packet meets from one on, and the server where it ends. Where any one of several stops will
    do, the address says which. Raises NoSuchKeyOwner, also for one that comes to a switch twice."""
    way = [switch]
    while way[-1] in tables:
        stops = look_up(tables[way[-1]], address)
        stop = stops[address % len(stops)]
        if stop in way:
            raise NoSuchKeyOwner(address)
        way.append(stop)
    return tuple(way)


def nodes_above(network: Network, servers: Iterable[str]) -> dict[str, tuple[Node, ...]]:
    """The nodes above each server, from its edge upwards: (edge, pod, core) where there are three tiers.

    Raises UnknownNode for a server that is not attached.
    """
    tiers = Tiers(network)
    above: dict[str, tuple[Node, ...]] = {}
    of_edge: dict[Node, tuple[Node, ...]] = {}
    for server in servers:
        edge = tuple(sorted(network.neighbours(server)))
        if edge not in of_edge:
            of_edge[edge] = tuple(tuple(sorted({switch for _, switch in rung.uplinks}))
                                  for rung in tiers.rungs_from(server) if rung.uplinks)
        above[server] = of_edge[edge]
    return above
