"""Flow-level simulation of replicated writes: any placement policy, chains at one rate, disks, background traffic."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count, pairwise
from random import Random

import numpy as np
import numpy.typing as npt

from speedwell.controller.policy.network.graph import Link, Network
from speedwell.controller.policy.placements.request import (
    Candidate,
    Placement,
    PlacementPolicy,
    PlacementRequest,
    place_batch,
)
from speedwell.sim.fluid import FluidNetwork
from speedwell.sim.write_workload import Writes
from speedwell.topo.fabric import Fabric

LONGEST_CHAIN = 24
DISK = "disk"

PolicyOf = Callable[[Network], PlacementPolicy]


@dataclass(frozen=True)
class WriteSettings:
    """`disk_bps` is what a machine's disks write. Counters are read and told each `poll_seconds` (the paper's delta);
    requests wait to be placed together for `quantum_seconds` (q). A request names the writer's machine and `offered`
    machines of each rack as candidates.

    With `free_sources` the way up from the writer's rack limits nothing (the paper's loose bound); with
    `free_destinations` nothing but that way up and the first replica's disk does. With `sources` above 1 a writer may
    be started on so many machines, of which the policy chooses with the first block.
    """

    disk_bps: float = 400e6
    poll_seconds: float = 1.0
    quantum_seconds: float = 0.0
    free_sources: bool = False
    free_destinations: bool = False
    sources: int = 1
    offered: int = 2
    replicas: int = 3


@dataclass(slots=True)
class Block:
    """One block: who writes it when, where it went, and how long it took from the request to the last byte."""

    writer: int
    size_bits: float
    asked: float
    hosts: tuple[str, ...] = ()
    seconds: float = math.nan


@dataclass
class Written:
    """What became of a run. Each second's imbalance of the racks' links: coefficients of variation; of those into
    racks the load of the busiest in bits/s, the same over the mean, and what that would be at least if the same
    writes were spread evenly. `between_racks_bits` is what was written through those."""

    blocks: list[Block] = field(default_factory=list)
    cv_up: list[float] = field(default_factory=list)
    cv_down: list[float] = field(default_factory=list)
    busiest_bps: list[float] = field(default_factory=list)
    busiest_over_mean: list[float] = field(default_factory=list)
    least_over_mean: list[float] = field(default_factory=list)
    between_racks_bits: float = 0.0


class WriteSimulation:
    """One run on a fabric whose racks' uplinks are single links. Deterministic."""

    def __init__(self, fabric: Fabric, network: Network, policy: PlacementPolicy, settings: WriteSettings,
                 seed: int) -> None:
        self._fabric = fabric
        self._network = network
        self._policy = policy
        self._settings = settings
        self._candidates: dict[str, list[Candidate]] = {}
        for host in fabric.hosts:
            self._candidates.setdefault(host.rack, []).append(
                Candidate(host.name, host.rack, host.pod or "", math.inf, settings.disk_bps))
        self._seed = seed
        self._hosts: dict[int, str] = {}
        self._capacities = {link: network.capacity_bps(link) for link in network.links}
        disks = {(host.name, DISK): settings.disk_bps for host in fabric.hosts} if math.isfinite(
            settings.disk_bps) else {}
        self.fluid = FluidNetwork({**self._capacities, **disks}, LONGEST_CHAIN)
        self._up, self._down = _rack_links(fabric, network)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._running: dict[int, Block] = {}
        self._waiting: list[Block] = []
        self._ids: dict[int, int] = {}
        self._numbers = count()
        self._written = Written()

    def run(self, writes: Writes) -> Written:
        """Let all writers write all of their blocks."""
        self._writes = writes
        self._next_block = [0] * len(writes.writers)
        self._left = sum(len(writer.blocks_bits) for writer in writes.writers)
        self._second = 0
        self._polled_bits = self.fluid.carried_bits()
        for number, writer in enumerate(writes.writers):
            self._at(writer.start, lambda number=number: self._ask(number))     # type: ignore[misc]
        self._background()
        self._at(self._settings.poll_seconds, self._poll)
        while self._left:
            until = self._events[0][0] if self._events else math.inf
            for flow in self.fluid.advance(until):
                self._ended(flow)
            while self._events and self._events[0][0] <= self.fluid.now:
                heapq.heappop(self._events)[2]()
        carried, numbers = self.fluid.carried_bits(), self.fluid.links
        self._written.between_racks_bits = float(sum(carried[numbers[link]] for link in self._down.values()))
        return self._written

    def _at(self, time: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._order), action))

    # --- writes ---

    def _ask(self, number: int) -> None:
        writer = self._writes.writers[number]
        block = Block(number, writer.blocks_bits[self._next_block[number]], self.fluid.now)
        self._next_block[number] += 1
        self._written.blocks.append(block)
        self._waiting.append(block)
        quantum = self._settings.quantum_seconds
        if not quantum:
            self._place()
        elif len(self._waiting) == 1:
            self._at((self.fluid.now // quantum + 1) * quantum, self._place)

    def _place(self) -> None:
        waiting, self._waiting = self._waiting, []
        asked = [(next(self._numbers), block) for block in waiting]
        placements = place_batch(self._policy, [(number, self._request(block)) for number, block in asked],
                                 self.fluid.now)
        for number, block in asked:
            placement = placements[number]
            assert isinstance(placement, Placement)
            block.hosts = tuple(destination.host for destination in placement.destinations)
            self._hosts[block.writer] = placement.source
            flow = self.fluid.start(self._route(placement.source, block.hosts), block.size_bits)
            self._running[flow], self._ids[flow] = block, number

    def _request(self, block: Block) -> PlacementRequest:
        """The same for every policy, but for where writers were started."""
        writer = self._writes.writers[block.writer]
        draw = Random(f"{self._seed} {block.writer} {self._next_block[block.writer]}")
        host = self._hosts.get(block.writer) or f"r{writer.rack}h{writer.host}"
        offered = {candidate.host: candidate for rack in self._candidates.values()
                   for candidate in draw.sample(rack, self._settings.offered)}
        offered[host] = next(candidate for candidate in self._candidates[self._fabric.host(host).rack]
                             if candidate.host == host)
        sources: tuple[str, ...] = ()
        if self._settings.sources > 1 and block.writer not in self._hosts:
            sources = (host, *draw.sample(list(offered), self._settings.sources - 1))
        return PlacementRequest(host, block.size_bits, tuple(offered.values()), self._settings.replicas,
                                min(2, self._settings.replicas), sources=sources)

    def _route(self, source: str, hosts: Sequence[str]) -> list[Link]:
        """The links of a chain and the disks at its machines, each once."""
        route: dict[Link, None] = {}
        for before, after in pairwise((source, *hosts)):
            route.update(dict.fromkeys(self._network.shortest_paths(before, after)[0].links))
        if math.isfinite(self._settings.disk_bps):
            route.update(dict.fromkeys((host, DISK) for host in hosts))
        rack = self._up[self._fabric.host(source).rack]
        way_up = (rack, (source, rack[0]))
        if self._settings.free_sources:
            return [link for link in route if link not in way_up]
        if self._settings.free_destinations:
            return [link for link in route if link in (*way_up, (hosts[0], DISK))]
        return list(route)

    def _ended(self, flow: int) -> None:
        block = self._running.pop(flow)
        block.seconds = self.fluid.now - block.asked
        self._policy.transfer_ended(self._ids.pop(flow))
        self._left -= 1
        if self._next_block[block.writer] < len(self._writes.writers[block.writer].blocks_bits):
            self._ask(block.writer)

    # --- background and counters ---

    def _rates_bps(self, second: int) -> npt.NDArray[np.float64]:
        rates = self._writes.shuffle.rates_bps
        return rates[min(second, len(rates) - 1)]       # type: ignore[no-any-return]

    def _background(self) -> None:
        """The shuffle of the next second takes its part of the racks' links."""
        rates, former = self._rates_bps(self._second), self._rates_bps(self._second - 1) if self._second else None
        for number, link in enumerate((*self._up.values(), *self._down.values())):
            if former is None or rates[number] != former[number]:
                self.fluid.set_capacity(link, self._capacities[link] - float(rates[number]))
        self._second += 1
        self._at(float(self._second), self._background)

    def _poll(self) -> None:
        carried = self.fluid.carried_bits()
        rates = ((carried - self._polled_bits) / self._settings.poll_seconds).tolist()
        self._polled_bits = carried
        numbers = self.fluid.links
        racks = (*self._up.values(), *self._down.values())
        shuffle = self._rates_bps(self._second - 2)
        for number, link in enumerate(racks):
            rates[numbers[link]] = min(rates[numbers[link]] + float(shuffle[number]), self._capacities[link])
        for link in self._capacities:
            self._policy.link_measured(link, max(rates[numbers[link]], 0.0), self.fluid.now)
        self._at(self.fluid.now + self._settings.poll_seconds, self._poll)
        if self.fluid.now > self._writes.writers[-1].start + self._settings.poll_seconds:
            return      # what remains of the shuffle is the same whoever places
        for values, links in ((self._written.cv_up, self._up), (self._written.cv_down, self._down)):
            loads = np.array([rates[numbers[link]] for link in links.values()])
            values.append(float(loads.std() / loads.mean()) if loads.any() else 0.0)
        busiest_bps, mean_bps = float(loads.max()), float(loads.mean()) or math.inf
        self._written.busiest_bps.append(busiest_bps)
        self._written.busiest_over_mean.append(busiest_bps / mean_bps or 1.0)
        self._written.least_over_mean.append(max(float(shuffle[len(self._up):].max()) / mean_bps, 1.0))


def _rack_links(fabric: Fabric, network: Network) -> tuple[dict[str, Link], dict[str, Link]]:
    """The links of each rack towards the core and from it, in the order of the racks' numbers."""
    racks = sorted({host.rack for host in fabric.hosts}, key=lambda rack: int(rack[1:]))
    leaves = {rack: f"leaf{rack[1:]}" for rack in racks}
    up = {rack: next((leaf, above) for above in network.neighbours(leaf) if not network.is_host(above))
          for rack, leaf in leaves.items()}
    return up, {rack: (above, leaf) for rack, (leaf, above) in up.items()}
