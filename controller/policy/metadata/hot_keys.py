"""Exact entries for the hottest keys, above the blocks: each rack's clients find them at servers of their own rack.

The entries of an edge switch send an address to one of its servers, or to 2, 4, 8 and so on, by the last bits of the
client's address.
A replica answers reads; who changes a key changes it at its owner, and the owner at all replicas. So this evens out
reads, not changes, and clients have to be spread over the racks as servers are: one without servers in its rack goes
to the owner's.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from speedwell.controller.policy.errors import InvalidCounts
from speedwell.controller.policy.metadata.blocks import TABLE_LIMIT, Node, Tables, owner
from speedwell.controller.policy.metadata.layout import UNITS, Layout
from speedwell.controller.policy.network.prefixes import ADDRESS_BITS

EVENEST = 1.25
"""The busiest server over the mean that is aimed at."""
BEGIN, END = 1.3, 1.15
"""Keys are spread once the busiest server has more than the one times the mean, and are no more once it would have
less than the other without it."""
LEAST_READS = 20.0
"""Reads/s and server, on average: below it nothing is worth an entry."""
_PART = 0.1
"""Of the mean load, so much of one address goes to one server of a rack at most, as far as the rack has servers."""


@dataclass(frozen=True)
class HotKeys:
    """The hottest addresses, for each edge switch the servers of its rack that answer them, and what that makes of
    the busiest server over the mean."""

    addresses: tuple[int, ...]
    entries: Tables
    busiest_over_mean: float


NONE = HotKeys((), {}, 1.0)


def spread(layout: Layout, rates: Mapping[int, float], rest: float = 0.0, limit: int = TABLE_LIMIT) -> HotKeys:
    """The fewest hot keys, doubled step by step up to `limit`, with which the busiest server has at most EVENEST
    times the mean; all of them if that does not do. `rates` are reads/s of addresses, `rest` of all others together,
    which are spread evenly over the keys. Raises InvalidCounts for rates below 0."""
    if rest < 0 or any(rate < 0 for rate in rates.values()):
        raise InvalidCounts("a rate of reads is below 0")
    hottest = sorted(rates, key=lambda address: (-rates[address], address))
    owners = {address: owner(layout.blocks, address) for address in hottest}
    number = 0
    while True:
        found = _spread(layout, rates, rest, hottest[:number], owners)
        if found.busiest_over_mean <= EVENEST or number >= min(limit, len(hottest)):
            return found
        number = min(max(2 * number, 1), limit, len(hottest))


def planned(layout: Layout, rates: Mapping[int, float], rest: float, current: HotKeys, limit: int = TABLE_LIMIT
            ) -> HotKeys:
    """Which keys are to be spread now: as the `current` ones are, while their servers are all there and it does.
    Raises InvalidCounts for rates below 0."""
    if (rest + sum(rates.values())) < LEAST_READS * len(layout.above):
        return NONE
    without = spread(layout, rates, rest, 0).busiest_over_mean
    if without <= (END if current.addresses else BEGIN):
        return NONE
    used = {server for table in current.entries.values() for servers in table.values() for server in servers}
    if current.addresses and len(current.addresses) <= limit and used <= layout.above.keys():
        loads = loads_of(layout, rates, rest, current.entries)
        over = max(loads.values()) * len(loads) / sum(loads.values())
        if over <= BEGIN:
            return HotKeys(current.addresses, current.entries, over)
    return spread(layout, rates, rest, limit)


def loads_of(layout: Layout, rates: Mapping[int, float], rest: float, entries: Tables) -> dict[str, float]:
    """The reads/s of each server, where clients are spread over the racks as servers are."""
    loads = {server: rest * units / UNITS for server, units in layout.loads.items()}
    racks = Counter(nodes[0] for nodes in layout.above.values())
    hot = {address for table in entries.values() for address, _ in table}
    for address, rate in rates.items():
        own = owner(layout.blocks, address)
        if address not in hot:
            loads[own] += rate
            continue
        for edge, servers in racks.items():
            stops = entries.get(edge[0], {}).get((address, ADDRESS_BITS), (own,))
            for server in stops:
                loads[server] += rate * servers / len(loads) / len(stops)
    return loads


def _spread(layout: Layout, rates: Mapping[int, float], rest: float, hot: Sequence[int],
            owners: Mapping[int, str]) -> HotKeys:
    loads = {server: rest * units / UNITS for server, units in layout.loads.items()}
    for address, rate in rates.items():
        loads[owners[address]] += rate
    for address in hot:
        loads[owners[address]] -= rates[address]
    mean = (rest + sum(rates.values())) / len(loads)
    racks: dict[Node, list[str]] = {}
    for server, above in layout.above.items():
        racks.setdefault(above[0], []).append(server)
    entries: Tables = {}
    for edge, servers in racks.items():
        queue = [(loads[server], server) for server in servers]
        heapq.heapify(queue)
        table = {}
        for address in hot:
            rate = rates[address] * len(servers) / len(loads)
            number = 1 << min((max(ceil(rate / (_PART * mean)), 1) - 1).bit_length(), len(servers).bit_length() - 1)
            replicas = [heapq.heappop(queue) for _ in range(number)]
            for load, server in replicas:
                loads[server] = load + rate / len(replicas)
                heapq.heappush(queue, (loads[server], server))
            table[address, ADDRESS_BITS] = tuple(sorted(server for _, server in replicas))
        entries |= dict.fromkeys(edge, table)
    return HotKeys(tuple(hot), entries, max(loads.values()) / mean if mean else 1.0)
