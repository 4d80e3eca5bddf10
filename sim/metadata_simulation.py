"""Metadata servers under load, and the ways to find the one that has a key: MetaFlow's, ours, and its comparators.

A request is a chain of visits to servers, each of which takes some of the server's one processor, first come first
served. Costs are in units of a look-up; with a throughput ratio r the storage takes r units (Sun et al., section
VII-A). Keys are spread evenly; the comparators' servers have equal parts of them.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from math import log2
from random import Random

import numpy as np
import numpy.typing as npt

from speedwell.controller.policy.metadata.blocks import IPV4, Block, Node, Tables, compressed, owner, size, walk
from speedwell.controller.policy.metadata.btree import Places, Tree, paper_tables
from speedwell.controller.policy.metadata.layout import Layout, join, lay_out, leave
from speedwell.controller.policy.metadata.tables import switch_of, tables
from speedwell.controller.policy.network.prefixes import Prefix

NAT = 0.15 / 0.85
"""What the paper's address translation takes, in look-ups: 15 % of the processor beside Redis (section VII-E)."""
LOOK_UP_SECONDS = 1e-3
"""At ratio 1 a server then stores 1,000 requests a second, which makes no difference to any ratio."""
SWITCH_SECONDS = 5e-6
RACKS, HOSTS = 16, 16
"""A pod of the paper's fat-tree of 32-port switches."""
KEYS_PER_SERVER = 200
"""Stored when the last server of the tree becomes busy."""

METHODS = ("MetaFlow", "Speedwell", "Hash mapping", "One-Hop", "Chord", "Central coordinator")
Visits = tuple[npt.NDArray[np.int32], npt.NDArray[np.float64]]
"""By request and visit: the server (-1: none) and the cost in look-ups."""


def above(number: int) -> tuple[Node, ...]:
    """The nodes above a server of an incomplete fat-tree of 32-port switches."""
    rack = number // HOSTS
    return ((f"edge{rack}",), tuple(f"aggregation{rack // RACKS}-{each}" for each in range(16)),
            tuple(f"core{each}" for each in range(256)))


def places(servers: int) -> Places:
    parents: dict[str | Node, Node] = {}
    for number in range(servers):
        edge, pod, core = above(number)
        parents |= {f"s{number}": edge, edge: pod, pod: core}
    return Places(core, parents)


@cache
def tree(servers: int, seed: int, idle: int = 0) -> Tree:
    """The paper's tree when so many servers are busy: the one with most keys has been split again and again, by the
    keys that it has. `idle` more have none."""
    draw = np.random.default_rng(seed)
    keys = np.sort(draw.integers(0, 1 << 32, servers * KEYS_PER_SERVER)).tolist()

    def count(block: Prefix) -> int:
        return bisect_left(keys, block[0] + size(block)) - bisect_left(keys, block[0])

    grown = Tree(places(servers + idle), {"s0": (IPV4,)})
    queue = [(-len(keys), "s0")]
    while len(grown.owned) < servers:
        _, fullest = heapq.heappop(queue)
        grown, other = grown.split(fullest, count)
        for server in (fullest, other):
            heapq.heappush(queue, (-sum(map(count, grown.owned[server])), server))
    return grown


@cache
def layout(servers: int) -> Layout:
    return lay_out({f"s{number}": above(number) for number in range(servers)}, IPV4)


@dataclass(frozen=True)
class Changed:
    """A tree or layout after random joins, leaves and kills, and what one of them moves on average, in parts of what
    a server has in the mean."""

    system: Tree | Layout
    moved: float


def changed(system: Tree | Layout, hosts: int, changes: int, rng: Random) -> Changed:
    """Joins and leaves with equal chances, as far as hosts and servers are there."""
    moved = 0.0
    for _ in range(changes):
        on = sorted(system.above if isinstance(system, Layout) else system.owned)
        off = sorted({f"s{number}" for number in range(hosts)} - set(on))
        before, was = system, {} if isinstance(system, Tree) else system.loads
        joins = off and (len(on) < 2 or rng.random() < 0.5)
        server = rng.choice(off if joins else on)
        if isinstance(system, Layout):
            system = join(system, server, above(int(server[1:]))) if joins else leave(system, server)
            now = system.loads
            moved += sum(max(now[each] - was.get(each, 0), 0) for each in now) / (1 << 18) * len(on)
        elif not joins:
            moved += sum(map(size, system.owned[server])) / (1 << 32) * len(on)
            system = system.without_server(server).with_server(server, above(int(server[1:]))[0])
        elif isinstance(before, Tree):
            fullest = max(system.owned, key=lambda each: (sum(map(size, before.owned[each])), each))
            system, other = system.split(fullest, size)
            moved += sum(map(size, system.owned[other])) / (1 << 32) * len(on)
    return Changed(system, moved / max(changes, 1))


def tables_of(system: Tree | Layout) -> Tables:
    return tables(system) if isinstance(system, Layout) else paper_tables(system)


def visits(method: str, servers: int, ratio: float, requests: int, seed: int) -> Visits:
    """The chains of visits of requests for evenly spread keys, by clients and through look-up servers at random.

    The owner's cost is the storage's, with the translation's for MetaFlow. One-Hop asks one server first, Chord
    half the binary logarithm of their number in the mean (each of the other bits of a distance is one hop), the
    coordinator is server 0.
    """
    rng = np.random.default_rng([seed, servers])
    keys = rng.permutation((np.arange(requests) + rng.random()) / requests)
    if method in ("MetaFlow", "Speedwell"):
        system = tree(servers, seed) if method == "MetaFlow" else layout(servers)
        owners = owners_of(system.blocks, (keys * (1 << 32)).astype(np.int64))
        return owners[:, None], np.full((requests, 1), ratio + (NAT if method == "MetaFlow" else 0.0))
    owners = (keys * servers).astype(np.int32)
    if method == "Hash mapping":
        return owners[:, None], np.full((requests, 1), float(ratio))
    if method == "Central coordinator":
        chain = np.zeros((requests, 1), np.int32)
    elif method == "One-Hop":
        chain = rng.permutation(np.arange(requests, dtype=np.int32) % servers)[:, None]
    else:
        chain = chord_hops(owners, servers, rng)
    costs = np.where(chain < 0, 0.0, 1.0)
    return np.hstack([chain, owners[:, None]]), np.hstack([costs, np.full((requests, 1), float(ratio))])


def owners_of(blocks: Sequence[Block], addresses: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    firsts = np.array([block.first for block in blocks])
    servers = np.array([int(block.server[1:]) for block in blocks], np.int32)
    return servers[np.searchsorted(firsts, addresses, side="right") - 1]


def chord_hops(owners: npt.NDArray[np.int32], servers: int, rng: np.random.Generator) -> npt.NDArray[np.int32]:
    """The servers that a look-up asks: from one at random, always the finger that is nearest before the owner."""
    at = rng.permutation(np.arange(len(owners)) % servers)
    hops = []
    for bit in range(int(log2(max(servers - 1, 1))), -1, -1):
        steps = (owners - at) % servers >= 1 << bit
        hops.append(np.where(steps, at, -1))
        at = np.where(steps, (at + (1 << bit)) % servers, at)
    return np.stack(hops, axis=1).astype(np.int32)


def utilisation(chains: Visits, servers: int) -> npt.NDArray[np.float64]:
    """How much of each server's time a request takes on average, in look-ups."""
    at, costs = chains
    asked = at >= 0
    return np.bincount(at[asked], costs[asked], servers) / len(at)


def sustained(chains: Visits, servers: int) -> float:
    """Requests per look-up's time that can come for ever: no server gets more than it can do."""
    return 1.0 / float(utilisation(chains, servers).max())


def answered(chains: Visits, servers: int, offered: float) -> float:
    """Requests per look-up's time that are answered of those offered, when servers drop what is too much for them."""
    at, costs = chains
    admitted = np.ones(servers + 1)
    for _ in range(30):
        through = np.cumprod(admitted[at], axis=1)
        arriving = np.hstack([np.ones((len(at), 1)), through[:, :-1]])
        asked = at >= 0
        load = offered / len(at) * np.bincount(at[asked], (arriving * costs)[asked], servers)
        admitted[:servers] = (admitted[:servers] + 1 / np.maximum(load, 1.0)) / 2
    return offered * float(through[:, -1].mean())


def most_answered(chains: Visits, servers: int, ideal: float) -> float:
    """The most requests per look-up's time that are answered at any offered rate up to the ideal one."""
    lowest = min(sustained(chains, servers), ideal)
    return max(answered(chains, servers, offered) for offered in np.linspace(lowest, ideal, 5))


def latencies(chains: Visits, servers: int, load: float, ratio: float, stops: npt.NDArray[np.int32],
              seed: int) -> npt.NDArray[np.float64]:
    """Seconds from each request to its answer, when requests come at random (Poisson) at `load` of the ideal rate;
    a server does one thing after another. `stops` are the switches that a message meets."""
    at, costs = chains
    draw = np.random.default_rng([seed, 1])
    arrivals = np.cumsum(draw.exponential(ratio * LOOK_UP_SECONDS / (load * servers), len(at)))
    wire = stops * SWITCH_SECONDS
    free = [0.0] * servers
    servers_of, costs_of = at.tolist(), (costs * LOOK_UP_SECONDS).tolist()
    ends = np.zeros(len(at))
    waiting = [(float(arrivals[each] + wire[each]), each, 0) for each in range(len(at))]
    heapq.heapify(waiting)
    while waiting:
        now, each, step = heapq.heappop(waiting)
        server = servers_of[each][step]
        if server >= 0:
            now = free[server] = max(now, free[server]) + costs_of[each][step]
            now += wire[each]
        if step + 1 < len(servers_of[each]):
            heapq.heappush(waiting, (now, each, step + 1))
        else:
            ends[each] = now
    return ends - arrivals


def switches_met(method: str, servers: int, owners: npt.NDArray[np.int32], seed: int,
                 requests: int = 300) -> npt.NDArray[np.int32]:
    """The switches between clients at random edges and the owners of some requests' keys, and of these one for each
    request. MetaFlow's and ours are counted by walking their tables; a label takes ours over source and core
    switches without a look-up, which count too."""
    rng = np.random.default_rng([seed, 2])
    racks = -(-servers // HOSTS)
    system = tree(servers, seed) if method == "MetaFlow" else layout(servers)
    made = tables_of(system) if method in ("MetaFlow", "Speedwell") else {}
    met = []
    for _ in range(requests):
        rack, address = int(rng.integers(racks)), int(rng.integers(1 << 32))
        server = int(owner(system.blocks, address)[1:]) if made else int(rng.integers(servers))
        direct = 1 if server // HOSTS == rack else 3 if server // HOSTS // RACKS == rack // RACKS else 5
        if made:
            way = walk(made, f"edge{rack}", address)
            assert way[-1] == f"s{server}", "the tables lead elsewhere"
            direct = max(direct, len([each for each, _ in groupby(map(switch_of, way[:-1]))]))
        met.append(direct)
    return rng.choice(np.array(met, np.int32), len(owners))


def smallest_tables(system: Tree) -> Tables:
    """The paper's tables made as small as ours: the same ways with the fewest prefixes."""
    found: Tables = {}
    for node in system.places.nodes:
        stops: dict[str, tuple[str, ...]] = {}
        for server in system.owned:
            way = ((server,), *system.places.above[server])
            stops[server] = way[way.index(node) - 1] if node in way else system.places.parents[node]
        stretches = ((block.first, block.end, stops[block.server]) for block in system.blocks)
        found |= dict.fromkeys(node, compressed(system.space, stretches))
    return found
