"""A read that is a coflow's flow too: the same counters, shares and paths as one that is not, under all policies."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise, product
from pathlib import Path as File
from types import SimpleNamespace
from typing import Any, NamedTuple

import eventlet
import pytest

from speedwell.coflow.report import Flow, FlowReport, Report, encode
from speedwell.controller.counters.poller import EventMeasured
from speedwell.controller.loops import Loops
from speedwell.controller.policy.coflows.live_coflows import TableScheduler
from speedwell.controller.policy.network.graph import Network, Path
from speedwell.controller.policy.reads.selection import PLUS
from speedwell.controller.policy.reads.selection_request import Replica
from speedwell.controller.policy.registry import POLICIES, Kind
from speedwell.controller.reads import app as reads_app
from speedwell.controller.reads import read_divisions, scheduler
from speedwell.controller.reads.app import Flowserver
from speedwell.controller.reads.book import Read, ReadPart, ReadRequest
from speedwell.controller.rest import RestApplication
from speedwell.controller.services import Services
from speedwell.controller.tables.events import EventFlowsEnded, EventFlowsMoved, EventPathsChanged
from speedwell.controller.topology.events import EventLinkChanged
from tests.unit.controller.coflow_site import KEY, Site
from tests.unit.controller.forwarding_world import DESTINATION, SOURCE
from tests.unit.controller.simulated_time import SimulatedHub, run_simulated

TICK_SECONDS = 0.1
RATE_BYTES = 5_000_000
"""What a transfer moves in a second, whatever it is given."""
PAIRS = [(replicas, paths) for replicas, paths in product(POLICIES.names(Kind.REPLICA), POLICIES.names(Kind.PATH))
         if (replicas, paths) != (PLUS, "ecmp")]


class OnePath(TableScheduler):
    """Puts every flow on one path, at one rate."""

    rate_bps: float | None = 50e6

    def __init__(self, network: Network, path: Path) -> None:
        super().__init__(network)
        self._only = path

    def _place(self, flows: Any, now: float) -> None:
        pass

    def _decide(self, now: float) -> Any:
        for flow in self._flows.values():
            flow.path, flow.rate_bps = self._only, self.rate_bps
        return list(self._coflows.values())


class Sample(NamedTuple):
    """What `/v1/reads` tells of a part after a poll."""

    transferred_bytes: int
    measured_bps: float | None
    share_bps: float
    frozen: bool
    reroutes: int


class Shop(Site):
    """Reads, coflows and forwarding on fake switches that count what moves over them."""

    def __init__(self, hub: SimulatedHub, patch: pytest.MonkeyPatch, directory: File, policy: str = "mincof") -> None:
        super().__init__(hub, patch, directory, policy)
        for module in (scheduler, read_divisions, reads_app):
            patch.setattr(module, "time", SimpleNamespace(monotonic=hub.read))
        self.flowserver = Flowserver(Services(self.state, self.measurements, RestApplication(),
                                              Loops()))
        self.flowserver.forwarding, self.flowserver.hosts = self.app, SimpleNamespace(
            locate=lambda host, seconds: self.state.hosts[host])
        self.app.send_event_to_observers = self.tell
        self.moving: set[int] = set()
        """The client ports to which bytes move."""
        self.port_bytes: dict[tuple[str, int], int] = {}
        eventlet.spawn(self.move_for_ever)

    def tell(self, event: Any, state: Any = None) -> None:
        handlers: dict[type, Callable[[Any], None]] = {
            EventFlowsMoved: self.flowserver.flows_moved, EventFlowsEnded: self.flowserver.flows_ended,
            EventPathsChanged: self.flowserver.paths_changed}
        eventlet.spawn(handlers[type(event)], event)

    # --- what moves and is counted ---

    def way(self, port: int) -> tuple[str, ...]:
        """The switches that the packets to a client port cross."""
        [arrival] = [each for each in self.network.send(SOURCE, self.network.tcp(SOURCE, DESTINATION, 7000, port))
                     if each.where == self.network.hosts[DESTINATION].ip]
        return arrival.switches

    def move_for_ever(self) -> None:
        while True:
            eventlet.sleep(TICK_SECONDS)
            for port in self.moving:
                switches, count = self.way(port), round(RATE_BYTES * TICK_SECONDS)
                first = self.network.switches[switches[0]]
                for entry in first.flows.values():
                    if dict(entry.match).get("tcp_dst") == port:
                        first.byte_counts[entry.key] = first.byte_counts.get(entry.key, 0) + count
                for near, far in pairwise(switches):
                    key = near, self.state.port_toward(near, far)
                    self.port_bytes[key] = self.port_bytes.get(key, 0) + count

    def poll_for_ever(self) -> None:
        while True:
            eventlet.sleep(1)
            began_at = self.hub.now
            self.poll_flows()
            for key in self.state.ports:
                self.measurements.read_port(key, 0, self.port_bytes.get(key, 0), self.hub.now, self.hub.now)
            self.flowserver.measured(EventMeasured(began_at))
            self.coflows.measured(EventMeasured(began_at))

    # --- one read from its begin to its end ---

    def place(self, port: int, replica_policy: str, path_policy: str | None) -> tuple[Read, ReadPart]:
        hosts = self.network.hosts
        read = self.flowserver.place(ReadRequest(
            hosts[DESTINATION].ip, [port], [Replica(hosts[SOURCE].ip, 7000)], 60_000_000,
            replica_policy=replica_policy, path_policy=path_policy))
        return read, read.parts[0]

    def report_read(self, port: int, left: int, coflow_id: bytes = b"r" * 16) -> None:
        hosts = self.network.hosts
        flow = Flow(hosts[SOURCE].ip, hosts[DESTINATION].ip, 7000, port)
        self.coflows.receive(encode(Report(coflow_id, 7, next(self.sequence), round(self.hub.now * 1e6),
                                           (FlowReport(flow, left),)), KEY))

    def sample(self, part: ReadPart) -> Sample:
        model = self.flowserver.model()[part.flow_id]
        return Sample(part.transferred_bytes, part.measured_bps, model.bandwidth_bps,
                      model.frozen and self.hub.now <= model.frozen_until, part.reroutes)

    def check_paths(self, part: ReadPart) -> None:
        """Book, record, model and packets agree on a path that lives."""
        record = self.app.records.get(part.five_tuple)
        assert record is not None and record.path == part.path == self.flowserver.model()[part.flow_id].path
        assert part.path.nodes[1:-1] == self.way(part.five_tuple.destination_port)
        assert all(map(self.state.network.has_link, part.path.links))

    def bring_back(self, a: str, b: str) -> None:
        names = self.network.name_of[a], self.network.name_of[b]
        self.network.dead.discard(frozenset(names))
        for link in self.state.add_link(*self.network.ends(*names)):
            self.app.link_changed(EventLinkChanged(link, live=True))
            self.coflows.network_changed(EventLinkChanged(link, live=True))

    def lose(self, a: str, b: str) -> None:
        self.fail(a, b)
        self.coflows.network_changed(EventLinkChanged((a, b), live=False))

    def follow(self, port: int, replica_policy: str, path_policy: str, is_coflow: bool) -> list[Sample]:
        """What is told of a read at each poll, while a link of its path goes and comes back."""
        # from just after a poll on
        eventlet.sleep(1 - self.hub.now % 1 + 0.05)
        read, part = self.place(port, replica_policy, path_policy)
        self.moving.add(port)
        samples = []
        lost: tuple[str, str] | None = None
        for half in range(1, 17):
            if is_coflow and half > 1:
                self.report_read(port, 60_000_000 - half * RATE_BYTES // 2)
            eventlet.sleep(0.5 if half % 2 == 0 or half == 1 else 0.4)
            if half % 2 == 0:
                samples.append(self.sample(part))
                eventlet.sleep(0.1)     # a schedule that is renewed at this moment is told within it
                self.check_paths(part)
            if half == 8:
                lost = part.path.links[2]
                self.lose(*lost)
            elif half == 12 and lost:
                self.bring_back(*lost)
        assert self.flowserver.reads.get(read.id) is read, "it moved all the time"
        self.moving.discard(port)
        if is_coflow:
            self.report_read(port, 0)
        self.flowserver.end(read.id)
        eventlet.sleep(0.5)
        assert len(self.app.records) == 0 and self.entries == [] and self.meters == []
        eventlet.sleep(2)       # a poll without it, or what it moved last counts as somebody else's for the next read
        return samples


def samples_of(monkeypatch: pytest.MonkeyPatch, directory: File, coflow_policy: str,
               is_coflow: bool) -> dict[tuple[str, str], list[Sample]]:
    found: dict[tuple[str, str], list[Sample]] = {}

    def scenario(hub: SimulatedHub) -> None:
        shop = Shop(hub, monkeypatch, directory, coflow_policy)
        for number, pair in enumerate(PAIRS):
            found[pair] = shop.follow(41000 + number, *pair, is_coflow)

    run_simulated(scenario)
    return found


@pytest.fixture(name="alone", scope="module")
def _alone(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], list[Sample]]:
    with pytest.MonkeyPatch.context() as patch:
        return samples_of(patch, tmp_path_factory.mktemp("alone"), "mincof", is_coflow=False)


def test_a_read_that_is_no_coflow_is_counted_and_followed(alone: dict[tuple[str, str], list[Sample]]) -> None:
    for samples in alone.values():
        assert [sample.transferred_bytes for sample in samples] == sorted({s.transferred_bytes for s in samples})
        assert samples[-1].transferred_bytes > 7 * RATE_BYTES


@pytest.mark.parametrize("coflow_policy", POLICIES.names(Kind.COFLOW))
def test_counters_shares_and_reroutes_of_a_read_are_the_same_within_a_poll_when_it_is_a_coflow_too(
        alone: dict[tuple[str, str], list[Sample]], monkeypatch: pytest.MonkeyPatch, tmp_path: File,
        coflow_policy: str) -> None:
    together = samples_of(monkeypatch, tmp_path, coflow_policy, is_coflow=True)
    for pair in PAIRS:
        for poll, sample in enumerate(together[pair]):
            same = alone[pair][poll]
            assert abs(sample.transferred_bytes - same.transferred_bytes) <= RATE_BYTES, (pair, poll)
            assert (sample.measured_bps is None) == (same.measured_bps is None), (pair, poll)
            assert (sample.measured_bps or 0) == pytest.approx(same.measured_bps or 0, rel=0.15), (pair, poll)
            near = alone[pair][max(poll - 1, 0):poll + 2]
            assert any(sample.share_bps == pytest.approx(other.share_bps, rel=0.15) for other in near), (pair, poll)
            assert sample.frozen in {other.frozen for other in near}, (pair, poll)
            assert sample.reroutes in {other.reroutes for other in near}, (pair, poll)
        assert together[pair][-1].reroutes == alone[pair][-1].reroutes == 1


@pytest.mark.parametrize("ends_first", ["coflow", "read"])
def test_whichever_ends_first_leaves_the_other_its_own(
        monkeypatch: pytest.MonkeyPatch, tmp_path: File, ends_first: str) -> None:
    def scenario(hub: SimulatedHub) -> None:
        shop = Shop(hub, monkeypatch, tmp_path)
        read, part = shop.place(41000, "mayflower", "mayflower")
        own = part.path
        shop.moving.add(41000)
        other = next(path for path in shop.state.network.shortest_paths(own.nodes[0], own.nodes[-1]) if path != own)
        shop.coflows.planner.scheduler = OnePath(shop.state.network, other)
        for step in range(4):
            shop.report_read(41000, 60_000_000 - step)
            eventlet.sleep(0.5)
        assert part.path == other, "Mayflower's model follows the coflow's path"
        shop.check_paths(part)
        before = part.transferred_bytes
        if ends_first == "coflow":
            shop.report_read(41000, 0)
            eventlet.sleep(1.2)
            assert part.path == own, "the read's own path is back"
            shop.check_paths(part)
            assert part.transferred_bytes > before and shop.meters == []
            shop.flowserver.end(read.id)
            assert len(shop.app.records) == 0
        else:
            shop.flowserver.end(read.id)
            for step in range(4, 8):
                shop.report_read(41000, 60_000_000 - step)
                eventlet.sleep(0.5)
            [coflow] = list(shop.coflows.book)
            [flow] = coflow.flows.values()
            assert flow.measured_bytes > RATE_BYTES and shop.way(41000) == other.nodes[1:-1]

    run_simulated(scenario)


def test_a_read_that_a_schedule_holds_back_is_not_idled_out(monkeypatch: pytest.MonkeyPatch, tmp_path: File) -> None:
    def scenario(hub: SimulatedHub) -> None:
        shop = Shop(hub, monkeypatch, tmp_path)
        read, _ = shop.place(41000, "mayflower", "mayflower")
        shop.coflows.planner.scheduler = held = OnePath(shop.state.network, shop.paths()[0])
        held.rate_bps = 0.0
        for step in range(120):
            shop.report_read(41000, 60_000_000 - step)
            eventlet.sleep(0.5)
        assert shop.flowserver.reads.get(read.id) is read, "it has not moved for a minute, as it was told"
        shop.report_read(41000, 0)
        eventlet.sleep(3)
        assert shop.flowserver.reads.get(read.id) is None, "nobody vouches for it any more"
        assert len(shop.app.records) == 0 and shop.entries == []

    run_simulated(scenario)
