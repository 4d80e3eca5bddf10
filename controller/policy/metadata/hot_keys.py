"""Exact entries for the hottest keys, above the blocks: each rack's clients find them at servers of their own rack.

The entries of an edge switch send an address to one or more of its servers; several share it evenly (a select group).
A replica answers reads; who changes a key changes it at its owner, and the owner at all replicas. So this evens out
reads, not changes, and clients have to be spread over the racks as servers are: one without servers in its rack goes
to the owner's.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from speedwell.controller.policy.errors import InvalidCounts
from speedwell.controller.policy.metadata.blocks import TABLE_LIMIT, Node, Tables, owner
from speedwell.controller.policy.metadata.layout import UNITS, Layout
from speedwell.controller.policy.network.prefixes import ADDRESS_BITS

EVENEST = 1.25
"""The busiest server over the mean that is aimed at."""
_PART = 0.1
"""Of the mean load, so much of one address goes to one server of a rack at most, as far as the rack has servers."""


@dataclass(frozen=True)
class HotKeys:
    """The hottest addresses, for each edge switch the servers of its rack that answer them, and what that makes of
    the busiest server over the mean."""

    addresses: tuple[int, ...]
    entries: Tables
    busiest_over_mean: float


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
            replicas = [heapq.heappop(queue) for _ in range(min(max(ceil(rate / (_PART * mean)), 1), len(servers)))]
            for load, server in replicas:
                loads[server] = load + rate / len(replicas)
                heapq.heappush(queue, (loads[server], server))
            table[address, ADDRESS_BITS] = tuple(sorted(server for _, server in replicas))
        entries |= dict.fromkeys(edge, table)
    return HotKeys(tuple(hot), entries, max(loads.values()) / mean if mean else 1.0)
