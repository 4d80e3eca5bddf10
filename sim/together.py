"""All five systems under one mixed load, each on or off: reads, writes, metadata, short flows, background.

Flows, queues and meters are those of `CoflowSimulation`; this module adds who chooses replicas and paths (Mayflower),
destinations (Sinbad), turns (XCo), and what short messages wait for in switches. Each system decides by the very
policy that the controller or the scheduler runs, and is told what it would be told there. Off stands for ECMP and the
nearest replica, rack-aware placement, TCP's fair sharing, and one nameserver for all metadata.

A turn opens and closes its pair at once. A chain's hops are flows of one coflow, each with a rate of its own: the
last ends no sooner than at one rate. A message waits in the queue of every link that TCP keeps full.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from functools import cached_property
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np

import speedwell.controller.own_policies  # noqa: F401  (a worker process has to know of users' policies)
from speedwell.controller.policy.coflows.coflow import BITS_PER_BYTE, Coflow, CoflowFlow, Schedule, ServiceClass
from speedwell.controller.policy.network.graph import Path
from speedwell.controller.policy.placements.request import Candidate, PlacementPolicy, PlacementRequest
from speedwell.controller.policy.placements.sinbad import MeasuredBy
from speedwell.controller.policy.reads.selection import Selector
from speedwell.controller.policy.reads.selection_request import Replica, SelectionRequest
from speedwell.controller.policy.registry import POLICIES, Kind
from speedwell.controller.policy.timeslices.contention import contended
from speedwell.controller.policy.timeslices.timeslice_policy import Directives, Pair, TimeslicePolicy
from speedwell.sim.coflow_simulation import CLASSES, LOWEST_RANK, CoflowSimulation, Enforcement
from speedwell.sim.errors import Overloaded
from speedwell.sim.fabric_network import network_of
from speedwell.sim.mixed_load import Messages, Outcome, Systems, Timed, Transfer
from speedwell.topo.fabric import Fabric

BEST_EFFORT = CLASSES[ServiceClass.BEST_EFFORT]
PORT = 7100
CALM_SECONDS = 0.2
"""Of `controller.timeslices.turns`: how long a pair keeps its turns when its links are no longer contended."""
LOOK_SECONDS = 0.25
"""Of `speedwell.controller.timeslices.service`: how often the scheduler of turns asks for the order of coflows."""
FULL = 0.99


class TogetherSimulation(CoflowSimulation):
    """One run. Deterministic: the same arguments give the same times."""

    def __init__(self, fabric: Fabric, systems: Systems, seed: int, messages: Messages = Messages(),  # noqa: B008
                 poll_seconds: float = 1.0, slice_seconds: float = 0.01, warm_up_seconds: float = 0.0) -> None:
        network = network_of(fabric)
        coflows = systems.coflows or "fair"
        self.outcome, self._timed = Outcome(), dict[str, Timed]()

        def timed(system: str, policy: object) -> Any:
            """What is off decides nothing that the controller would have to."""
            if not getattr(systems, system):
                return policy
            self._timed[system] = Timed(policy)
            return self._timed[system]

        self._has_classes_at_hosts = bool(systems.coflows and systems.turns)
        super().__init__(network, timed("coflows", POLICIES.make(Kind.COFLOW, coflows, network, 0)),
                         Enforcement(sliced=bool(systems.coflows), hosts_enforce=self._has_classes_at_hosts))
        self._warm_up_seconds = warm_up_seconds
        self._fabric, self._systems, self._messages = fabric, systems, messages
        self._random = Random(f"messages {seed}")
        choice = Random(f"policies {seed}")
        self._selector: Selector = timed("reads", Selector(
            network, systems.reads or "nearest", "mayflower" if systems.reads else "ecmp", choice))
        self._placement: PlacementPolicy = timed("placements", POLICIES.make(
            Kind.PLACEMENT, systems.placements or "rack-aware", network, choice, MeasuredBy.SWITCHES))
        self._turns: TimeslicePolicy | None = None
        self._contended = contended
        if systems.turns:
            turns = POLICIES.make(Kind.TIMESLICES, systems.turns, network, slice_seconds)
            self._turns = timed("turns", turns)
            self._contended = self._timed["turns"].timed(contended)
        self._candidates = tuple(Candidate(host.name, host.rack, host.pod or "") for host in fabric.hosts)
        self._hosts = [host.name for host in fabric.hosts]
        self._pods = {host.name: host.pod for host in fabric.hosts}
        self._flows: Counter[bool] = Counter()
        """By whether they stay in a pod."""
        self._poll_seconds = poll_seconds
        self._paths: dict[Hashable, Path] = {}
        self._sizes: dict[Hashable, float] = {}
        self._polled: dict[Hashable, float] = {}
        self._carried, self._carried_before = np.zeros(len(self._capacities)), np.zeros(len(self._capacities))
        self._asked: dict[Hashable, Transfer] = {}
        self._waiting: dict[str, set[str]] = {}
        self._coordinated: dict[str, set[str]] = {}
        self._contended_at: dict[Pair, float] = {}
        self._allowed: Directives = {}
        self._turn_ends = math.inf
        self._free_at = [0.0] * (messages.stores if systems.metadata else 1)
        self._until, self._ranked_at = 0.0, 0.0
        self._number = 0
        links = [link for link in network.links if not (network.is_host(link[0]) or network.is_host(link[1]))]
        self._between = [network.link_index(link) for link in links]

    @property
    def inside_pods(self) -> float:
        """The part of all flows so far that stayed in a pod."""
        return self._flows[True] / max(self._flows.total(), 1)

    def play(self, transfers: Sequence[Transfer], until: float, most_running: int = 400) -> Outcome:
        """Let transfers come until all that came before `until` have ended. Raises Overloaded."""
        self._make_room(16 * most_running)
        self._until = until
        for transfer in transfers:
            self._at(transfer.arrival, lambda transfer=transfer: self._ask(transfer))   # type: ignore[misc]
        self._at(self._poll_seconds, self._poll)
        self._at(self._messages.every, self._message)
        for at, sign in ((self._warm_up_seconds, -1), (until, 1)):       # by then compiled kernels are loaded
            self._at(at, lambda sign=sign: self._count_decisions(sign))     # type: ignore[misc]
        while self.now < until or self._asked:
            self._step()
            if len(self._owner) > most_running:
                raise Overloaded(f"after {self.now:.0f} s {len(self._owner)} flows run: the systems leave the "
                                 "network overloaded")
        carried = self._carried[self._between] / self._capacities[self._between] / self.now
        self.outcome.link_use = float(carried.mean())
        return self.outcome

    def _count_decisions(self, sign: int) -> None:
        for system, policy in self._timed.items():
            self.outcome.decided[system] += sign * policy.seconds
            self.outcome.decisions[system] += sign * policy.calls

    # --- transfers ---

    def _ask(self, transfer: Transfer) -> None:
        self._number += 1
        name = f"{transfer.kind} {self._number}"
        ways = {"read": self._read, "write": self._write}.get(transfer.kind, self._background)(name, transfer)
        flows = []
        for number, (path, size_bits) in enumerate(ways):
            flow_id = f"{name}.{number}"
            self._paths[flow_id], self._sizes[flow_id] = path, size_bits
            self._flows[self._pods[path.nodes[0]] == self._pods[path.nodes[-1]]] += 1
            flows.append(CoflowFlow(flow_id, path.nodes[0], path.nodes[-1], size_bits / BITS_PER_BYTE))
        if not flows:
            return
        if not self._systems.coflows or transfer.kind == "background":
            self._hidden.add(name)
        self._asked[name] = transfer
        self._arrive(Coflow(name, tuple(flows), self.now))

    def _read(self, name: str, transfer: Transfer) -> list[tuple[Path, float]]:
        return [(self._select(f"{name}.{number}", read.client, read.replicas, read.size_bits), read.size_bits)
                for number, read in enumerate(transfer.reads)]

    def _select(self, flow_id: str, client: str, replicas: Sequence[str], size_bits: float) -> Path:
        request = SelectionRequest(client, tuple(Replica(host, PORT) for host in replicas), size_bits,
                                   32768 + hash_of(flow_id))
        path = self._selector.select(request, self.now).path
        self._selector.flow_added(flow_id, path, size_bits, self.now)
        return path

    def _write(self, name: str, transfer: Transfer) -> list[tuple[Path, float]]:
        """The hops of the chain. Whoever models reads hears of them by the reports of coflows only."""
        placement = self._placement.place(name, PlacementRequest(transfer.writer, transfer.size_bits,
                                                                 self._candidates), self.now)
        hosts = [transfer.writer, *(each.host for each in placement.destinations)]
        hops = [(source, target) for source, target in pairwise(hosts) if source != target]
        if self._systems.coflows:
            return [(self._select(f"{name}.{number}", target, (source,), transfer.size_bits), transfer.size_bits)
                    for number, (source, target) in enumerate(hops)]
        return [(self._default_path(source, target, f"{name}.{number}"), transfer.size_bits)
                for number, (source, target) in enumerate(hops)]

    def _background(self, name: str, transfer: Transfer) -> list[tuple[Path, float]]:
        return [(self._default_path(transfer.writer, transfer.client, f"{name}.0"), transfer.size_bits)]

    def _default_path(self, source: str, target: str, flow_id: str) -> Path:
        paths = self._network.shortest_paths(source, target)
        return paths[hash_of(flow_id) % len(paths)]

    def _default_links(self, flow: CoflowFlow) -> tuple[int, ...]:
        return tuple(self._network.link_index(link) for link in self._paths[flow.flow_id].links)

    def _end(self, flow_id: Hashable) -> None:
        coflow_id = self._running[flow_id].coflow_id
        super()._end(flow_id)
        self._selector.flow_dropped(str(flow_id), self.now)
        for known in (self._paths, self._sizes, self._polled):
            known.pop(flow_id, None)
        if self._alive[coflow_id] == 0:
            transfer = self._asked.pop(coflow_id)
            self._placement.transfer_ended(coflow_id)
            if transfer.arrival < self._until:
                self.outcome.seconds[transfer.kind].append((transfer.arrival, self.now - transfer.arrival))
                client = transfer.reads[0].client if transfer.reads else transfer.writer
                self.outcome.bits[client] += transfer.size_bits or sum(read.size_bits for read in transfer.reads)
                self.outcome.waited[client] += self.now - transfer.arrival

    def _enforce(self, schedule: Schedule) -> None:
        super()._enforce(schedule)
        for flow_id, own in schedule.assignments.items():
            if own.path is not None and self._paths.get(flow_id, own.path) != own.path:
                self._paths[flow_id] = own.path
                self._selector.flow_moved(str(flow_id), own.path, self.now)

    # --- counters ---

    def _poll(self) -> None:
        for flow_id, running in self._running.items():
            moved = (self._sizes[flow_id] - float(self._left[running.row])) / BITS_PER_BYTE
            rate_bps = (moved - self._polled.get(flow_id, 0.0)) * BITS_PER_BYTE / self._poll_seconds
            self._polled[flow_id] = moved
            self._selector.flow_measured(str(flow_id), int(max(moved, 0.0)), max(rate_bps, 0.0), self.now)
        rates = np.maximum(self._carried - self._carried_before, 0.0) / self._poll_seconds
        self._carried_before = self._carried.copy()
        for link in self._network.links:
            rate_bps = float(rates[self._network.link_index(link)])
            self._selector.link_measured(link, rate_bps, self.now)
            self._placement.link_measured(link, rate_bps, self.now)
        self._at(self.now + self._poll_seconds, self._poll)

    def _used(self) -> np.ndarray:
        rows = len(self._owner)
        links = self._links[:rows]
        rates = np.repeat(self._rates[:rows], (links >= 0).sum(axis=1))
        return np.bincount(links[links >= 0], rates, len(self._capacities))

    # --- turns ---

    def _step(self) -> None:
        before, used = self.now, self._used()
        super()._step()
        self._carried += used * (self.now - before)

    def _share(self) -> None:
        rows = len(self._owner)
        if self._turns is None or not rows:
            self._caps_changed = True
            super()._share()
            return
        self._follow_turns(self._turns)
        meters = self._caps[:rows].copy()
        on_pair: defaultdict[Pair, list[int]] = defaultdict(list)
        for running in self._running.values():
            on_pair[running.flow.source, running.flow.destination].append(running.row)
        for (source, destination), of_pair in on_pair.items():
            if destination in self._coordinated.get(source, ()):
                turn_bps = self._allowed.get(source, {}).get(destination, 0.0)
                self._caps[of_pair] = np.minimum(meters[of_pair], turn_bps / len(of_pair))
        self._caps_changed = True
        super()._share()
        self._caps[:rows] = meters

    def _follow_turns(self, turns: TimeslicePolicy) -> None:
        """What agents report, and what the scheduler makes of it: only contended pairs have turns."""
        if self._systems.coflows and self.now >= self._ranked_at + LOOK_SECONDS:
            self._ranked_at = self.now
            order = {coflow_id: place for place, coflow_id in enumerate(self._scheduler.schedule.order)}
            ranks: dict[Pair, int] = {}
            for running in self._running.values():
                pair, rank = (running.flow.source, running.flow.destination), order.get(running.coflow_id)
                if rank is not None:
                    ranks[pair] = min(rank, ranks.get(pair, rank))
            turns.ranks = ranks
        if turns.next_end <= self.now:
            self._allowed |= turns.slice_ended(self.now)
        pairs: dict[Pair, None] = {}
        for flow_id, running in self._running.items():
            pair = running.flow.source, running.flow.destination
            if pair not in pairs:
                pairs[pair] = None
                if turns.paths.of(pair) != self._paths[flow_id].links:
                    turns.paths.pin(pair, self._paths[flow_id])
        self._contended_at |= {pair: self.now for pair, is_contended in
                               self._contended(turns.paths, self._network, pairs).items() if is_contended}
        wanted: defaultdict[str, set[str]] = defaultdict(set)
        for pair in list(self._contended_at):
            if self.now - self._contended_at[pair] >= CALM_SECONDS:
                del self._contended_at[pair]
            elif pair in pairs:
                wanted[pair[0]].add(pair[1])
        for source in sorted(self._coordinated.keys() | wanted.keys()):
            if self._coordinated.get(source, set()) != wanted.get(source, set()):
                self._allowed |= turns.backlogged(source, wanted.get(source, set()), self.now)
        self._coordinated = dict(wanted)
        if turns.next_end < math.inf and turns.next_end != self._turn_ends:
            self._turn_ends = turns.next_end
            self._at(self._turn_ends, lambda: None)

    # --- short messages ---

    def _message(self) -> None:
        """The messages of a little while, at the queues of this moment."""
        messages, draw = self._messages, self._random
        delays = self._queueing()
        for rate, kind in ((messages.metadata_rate, "metadata"), (messages.short_rate, "short")):
            number = _poisson(rate * messages.every, draw)
            for at in sorted(self.now + draw.random() * messages.every for _ in range(number)):
                client, other = draw.sample(self._hosts, 2)
                server = draw.randrange(messages.stores)
                if kind == "short":
                    both = self._wait(client, other, delays) + self._wait(other, client, delays)
                    seconds = 2 * (messages.round_trip + both) + messages.short_bits / self._slowest
                else:
                    both = 0.0
                    if self._systems.metadata and (store := self._stores[server]) != client:
                        both = self._wait(client, store, delays) + self._wait(store, client, delays)
                    server = server if self._systems.metadata else 0
                    begin = max(at + both / 2, self._free_at[server])
                    self._free_at[server] = begin + messages.service
                    seconds = begin + messages.service + both / 2 + messages.round_trip - at
                self.outcome.seconds[kind].append((at, seconds))
        if self.now < self._until:
            self._at(self.now + messages.every, self._message)

    @cached_property
    def _slowest(self) -> float:
        return float(self._capacities.min())

    @cached_property
    def _stores(self) -> list[str]:
        """The first host of each rack before the second ones."""
        places = sorted(self._fabric.hosts, key=lambda host: (host.name.rpartition("h")[2], host.name))
        return [host.name for host in places[:self._messages.stores]]

    def _queueing(self) -> np.ndarray:
        """Seconds that a short message waits at each link: where TCP sends what the link cannot carry, a queue is
        full, and drains at the rate of its class: the first where agents set it, else best effort."""
        rows, delays = len(self._owner), np.zeros(len(self._capacities))
        if not rows:
            return delays
        links = self._links[:rows]
        beside = (self._rank[:rows] == 0 if self._has_classes_at_hosts else
                  (self._class[:rows] == BEST_EFFORT) & (self._rank[:rows] >= LOWEST_RANK))
        held_back = self._rates[:rows] < self._enforced(rows) * (1 - 1e-6)
        full = self._used() >= FULL * self._capacities
        own = np.zeros(len(self._capacities))
        waits = np.zeros(len(self._capacities), np.bool_)
        for row in np.flatnonzero(held_back):
            crossed = links[row][links[row] >= 0]
            counts = crossed[~self._sliced[crossed] | beside[row]]
            own[counts] += self._rates[row]
            waits[counts] = True
        queued = full & waits
        is_last = self._sliced & (not self._has_classes_at_hosts)
        drained = np.where(is_last, np.maximum(own, 0.05 * self._capacities), self._capacities)
        delays[queued] = self._messages.buffer * (self._capacities / drained)[queued]
        return delays

    def _enforced(self, rows: int) -> np.ndarray:
        """What meters and turns let each flow have at most."""
        caps = self._caps[:rows].copy()
        for running in self._running.values():
            if running.flow.destination in self._coordinated.get(running.flow.source, ()):
                turn_bps = self._allowed.get(running.flow.source, {}).get(running.flow.destination, 0.0)
                caps[running.row] = min(caps[running.row], turn_bps)
        return caps

    def _wait(self, source: str, target: str, delays: np.ndarray) -> float:
        paths = self._network.shortest_path_links(source, target)
        return float(delays[list(paths[self._random.randrange(len(paths))])].sum())


def hash_of(name: str) -> int:
    """A number below 2^14, the same in every process."""
    return Random(name).getrandbits(14)


def _poisson(mean: float, draw: Random) -> int:
    number, left = 0, math.exp(-mean)
    product = draw.random()
    while product > left:
        number, product = number + 1, product * draw.random()
    return number
