"""An append's signed reports turn what a placement expects into flows that reads are weighed against."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any

import eventlet
import pytest

from speedwell.coflow.report import Flow, FlowReport, Report, encode
from speedwell.controller.counters.poller import EventMeasured
from speedwell.controller.policy.network.five_tuple import TCP, FiveTuple
from tests.unit.controller.in_process import CAPACITY_BPS, HOSTS, Controller, read_of

KEY = b"k" * 32
WRITER = "10.0.0.1"
SIZE_BYTES = 64_000_000
DATA_PORT = 7000


class Site:
    """A controller, and clients and dataservers that report."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        (directory / "key").write_bytes(KEY)
        self.controller = Controller(coflow_key_file=directory / "key", **settings)
        self.controller.coflows.send_event_to_observers = (
            lambda event, state=None: self.controller.placements.flows_reported(event))
        self._sequence = itertools.count(1)

    def place(self, **changes: Any) -> list[str]:
        """The chain of a new file, from its writer on."""
        file = {"writer": WRITER, "size_bytes": SIZE_BYTES, "replicas": 3} | changes
        answer = self.controller.ask("POST", "/v1/placements", {
            "files": [file], "candidates": [{"host": host} for host in HOSTS if host != WRITER]})
        assert answer.status_code == 200, answer.text
        placement, = answer.json["placements"]
        return [file["writer"], *(destination["host"] for destination in placement["destinations"])]

    def report(self, flow: Flow, remaining_bytes: int, coflow_id: bytes = b"1" * 16, key: bytes = KEY) -> None:
        self.controller.coflows.receive(encode(Report(
            coflow_id, 7, next(self._sequence), time.time_ns() // 1000, (FlowReport(flow, remaining_bytes),)), key))
        for _ in range(5):
            eventlet.sleep(0)

    def expected(self) -> list[dict[str, Any]]:
        placements: list[dict[str, Any]] = self.controller.ask("GET", "/v1/placements").json["placements"]
        return placements

    def flows(self) -> list[dict[str, Any]]:
        flows: list[dict[str, Any]] = self.controller.ask("GET", "/v1/flows").json["flows"]
        return flows

    def rest(self, seconds: float) -> None:
        """Nothing is announced for so long; then counters are polled."""
        for expected in self.controller.placements._book:
            for flow in expected.flows:
                expected.flows[flow] -= seconds
        self.controller.placements.measured(EventMeasured(time.monotonic()))
        for _ in range(5):
            eventlet.sleep(0)

    def silent(self, seconds: float) -> None:
        """Nothing is heard of any coflow for so long."""
        for coflow in self.controller.coflows.book:
            for flow in coflow.flows.values():
                flow.heard_at -= seconds
        self.controller.coflows._expire()
        self.rest(seconds)


@pytest.fixture(name="site")
def _site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def hop(chain: list[str], number: int, port: int = 40000) -> Flow:
    return Flow(chain[number], chain[number + 1], port, DATA_PORT)


def test_each_hop_of_a_chain_becomes_one_flow_that_reads_are_weighed_against(site: Site) -> None:
    chain = site.place()
    for number in range(3):
        site.report(hop(chain, number), SIZE_BYTES)
        site.report(hop(chain, number), SIZE_BYTES - 1000)      # half a second later
    assert [(flow["source"], flow["destination"], flow["size_bytes"]) for flow in site.flows()] == [
        (source, target, SIZE_BYTES) for source, target in itertools.pairwise(chain)]
    placement, = site.expected()
    assert placement["flows"] == 3
    for read in site.controller.ask("GET", "/v1/reads").json["reads"]:
        assert read["placement_id"] == placement["id"]
    assert len(set(site.controller.flowserver.model().values())) == 1
    assert site.controller.tables.records.keys() == {
        FiveTuple(source, target, TCP, 40000, DATA_PORT) for source, target in itertools.pairwise(chain)}


def test_a_read_keeps_away_from_a_source_whose_link_an_append_takes(site: Site) -> None:
    chain = site.place(replicas=1, candidates=[{"host": "10.0.1.1"}])
    reader, idle = "10.0.1.2", "10.0.0.2"
    site.report(hop(chain, 0), 10 * SIZE_BYTES)
    for port in range(41000, 41005):
        answer = site.controller.ask("POST", "/v1/reads", read_of(
            client=reader, client_ports=[port], size_bytes=SIZE_BYTES,
            replicas=[{"host": WRITER, "port": DATA_PORT}, {"host": idle, "port": DATA_PORT}], most_parts=1))
        part, = answer.json["parts"]
        assert part["replica"]["host"] == idle
        site.controller.ask("DELETE", f"/v1/reads/{answer.json['id']}")


def test_sinbad_plus_keeps_off_a_read_before_any_switch_has_counted_it() -> None:
    controller = Controller(placement_policy="sinbad-plus")
    files = {"files": [{"writer": WRITER, "size_bytes": SIZE_BYTES, "replicas": 2}],
             "candidates": [{"host": host} for host in ("10.0.0.1", "10.0.1.1", "10.0.1.2")]}

    def second_replica() -> str:
        placement, = controller.ask("POST", "/v1/placements", files).json["placements"]
        controller.ask("DELETE", f"/v1/placements/{placement['id']}")
        return str(placement["destinations"][1]["host"])

    read = controller.ask("POST", "/v1/reads", read_of(replicas=[{"host": "10.0.0.2", "port": DATA_PORT}],
                                                       size_bytes=100 * SIZE_BYTES)).json
    assert {second_replica() for _ in range(8)} == {"10.0.1.2"}
    controller.ask("DELETE", f"/v1/reads/{read['id']}")
    assert {second_replica() for _ in range(16)} == {"10.0.1.1", "10.0.1.2"}


def test_what_switches_counted_of_an_append_is_what_sinbad_plus_takes_it_to_have_left(tmp_path: Path) -> None:
    site = Site(tmp_path, placement_policy="sinbad-plus")
    chain = site.place(replicas=1, candidates=[{"host": "10.0.1.1"}])
    flow = hop(chain, 0)
    site.report(flow, SIZE_BYTES)
    record = site.controller.tables.records[FiveTuple(chain[0], chain[1], TCP, 40000, DATA_PORT)]
    record.counted(0, 0, 0.0, time.monotonic())
    since = time.monotonic()
    assert [known.left_bits for known in site.controller.placements.transfers.known(since)] == [None]
    record.counted(SIZE_BYTES // 4, 10, 1.0, time.monotonic())
    known, = site.controller.placements.transfers.known(since)
    placement, = site.expected()
    assert known[:4] == (placement["id"], chain[0], chain[1], 8 * SIZE_BYTES)
    assert known.left_bits is not None and 0 < known.left_bits < 8 * SIZE_BYTES


def test_a_placement_ends_with_the_last_flow_that_brings_the_last_of_its_bytes(site: Site) -> None:
    chain = site.place(replicas=2)
    half = SIZE_BYTES // 2
    for number in range(2):
        site.report(hop(chain, number), half, b"1" * 16)
        site.report(hop(chain, number), 0, b"1" * 16)
    assert [flow["size_bytes"] for flow in site.flows()] == [SIZE_BYTES] * 2
    entries = dict(site.controller.tables.records)
    site.report(hop(chain, 0), half, b"2" * 16)
    site.report(hop(chain, 1), half, b"2" * 16)
    assert all(site.controller.tables.records[flow] is record for flow, record in entries.items())
    site.report(hop(chain, 0), 0, b"2" * 16)
    assert len(site.expected()) == 1
    site.report(hop(chain, 1), 0, b"2" * 16)
    assert site.expected() == [] and site.flows() == []
    assert site.controller.placements._policy.reserved(time.monotonic()) == 0
    assert not site.controller.tables.records


def test_further_bytes_between_the_same_hosts_are_nobodys(site: Site) -> None:
    chain = site.place(replicas=1)
    site.report(hop(chain, 0, 40000), SIZE_BYTES)
    site.report(hop(chain, 0, 40001), SIZE_BYTES, b"2" * 16)
    assert [flow["source_port"] for flow in site.flows()] == [40000]


def test_two_placements_on_the_same_hop_get_a_flow_each(site: Site) -> None:
    first = site.place(replicas=1, candidates=[{"host": "10.0.1.1"}])
    second = site.place(replicas=1, candidates=[{"host": "10.0.1.1"}])
    assert first == second
    site.report(hop(first, 0, 40000), SIZE_BYTES)
    site.report(hop(first, 0, 40001), SIZE_BYTES, b"2" * 16)
    assert [placement["flows"] for placement in site.expected()] == [1, 1]


def test_a_flow_is_of_the_file_that_is_as_long_or_else_of_the_latest(site: Site) -> None:
    def place(size_bytes: int) -> list[str]:
        return site.place(replicas=1, size_bytes=size_bytes, candidates=[{"host": "10.0.1.1"}])

    never_written, chain, latest = place(3 * SIZE_BYTES), place(SIZE_BYTES), place(2 * SIZE_BYTES)
    assert never_written == chain == latest
    site.report(hop(chain, 0, 40000), SIZE_BYTES)
    site.report(hop(chain, 0, 40001), SIZE_BYTES // 4, b"2" * 16)
    assert {placement["size_bytes"]: placement["flows"] for placement in site.expected()} == {
        3 * SIZE_BYTES: 0, SIZE_BYTES: 1, 2 * SIZE_BYTES: 1}


def test_a_file_that_comes_in_pieces_keeps_its_flow_while_it_rests_for_a_moment_only(site: Site) -> None:
    chain = site.place(replicas=1)
    site.report(hop(chain, 0), SIZE_BYTES // 4)
    site.report(hop(chain, 0), 0)
    site.rest(1.0)
    assert len(site.flows()) == 1
    site.rest(1.5)
    assert site.flows() == []
    site.report(hop(chain, 0), SIZE_BYTES // 4, b"2" * 16)
    assert [flow["size_bytes"] for flow in site.flows()] == [SIZE_BYTES * 3 // 4]


def test_a_flow_that_is_heard_of_no_more_is_over(site: Site) -> None:
    chain = site.place()
    site.report(hop(chain, 0), SIZE_BYTES)
    assert len(site.flows()) == 1
    site.silent(10.0)
    assert site.flows() == []
    assert [placement["flows"] for placement in site.expected()] == [0]


def test_a_placement_whose_flow_runs_on_is_known_beyond_its_time_and_one_that_never_comes_is_not(
        site: Site) -> None:
    chain, _ = site.place(replicas=2), site.place(replicas=2)
    site.report(hop(chain, 0), SIZE_BYTES)
    for each in list(site.controller.placements._book):
        each.placed_at -= 1000
    assert [placement["flows"] for placement in site.expected()] == [1]
    site.silent(10.0)
    assert site.expected() == []


@pytest.mark.parametrize("wrong", ["unsigned", "backwards", "elsewhere"])
def test_what_is_not_signed_or_not_on_the_chain_is_no_flow_of_a_placement(site: Site, wrong: str) -> None:
    chain = site.place()
    away = hop(chain, 0)
    if wrong == "unsigned":
        site.report(away, SIZE_BYTES, key=b"another key that is long enough.")
    elif wrong == "backwards":
        site.report(Flow(away.destination, away.source, 7000, 40000), SIZE_BYTES)
    else:
        site.report(Flow(chain[0], chain[2], 40000, DATA_PORT), SIZE_BYTES)
    assert site.flows() == []
    assert [placement["flows"] for placement in site.expected()] == [0]


def test_a_read_that_is_reported_stays_a_read(site: Site) -> None:
    chain = site.place(candidates=[{"host": "10.0.1.1"}, {"host": "10.0.1.2"}, {"host": "10.0.0.2"}])
    source, client = chain[1], chain[2]
    site.controller.ask("POST", "/v1/reads", read_of(
        client=client, client_ports=[DATA_PORT], replicas=[{"host": source, "port": 40000}], size_bytes=SIZE_BYTES))
    site.report(hop(chain, 1), SIZE_BYTES)
    read, = site.controller.ask("GET", "/v1/reads").json["reads"]
    assert read["placement_id"] is None
    assert [placement["flows"] for placement in site.expected()] == [0]


def test_what_a_flow_carries_is_not_taken_for_background_too(site: Site) -> None:
    chain = site.place(replicas=1)
    site.report(hop(chain, 0), SIZE_BYTES)
    record, = site.controller.tables.records.values()
    key = site.controller.state.hosts[WRITER].port_key
    for second in range(3):
        sent = int(CAPACITY_BPS / 8 * second)
        record.counted(sent, 0, float(second), (now := time.monotonic()))
        site.controller.measurements.read_port(key, sent, 0, float(second), now)
    site.controller.flowserver.measured(EventMeasured(now - 1.0))
    link = (WRITER, HOSTS[WRITER])
    assert site.controller.flowserver._selector.background_bps(link) < 0.01 * CAPACITY_BPS


def test_a_chain_has_one_share_and_leaves_others_what_its_narrowest_hop_does_not_let_through(site: Site) -> None:
    state, model = site.controller.state, site.controller.flowserver._selector
    chain = site.place(replicas=2)
    site.report(hop(chain, 0), SIZE_BYTES)
    alone_bps = next(iter(model.flows())).bandwidth_bps
    edge = state.hosts[chain[2]].dpid
    state.network.add_link(edge, chain[2], CAPACITY_BPS / 10)
    site.report(hop(chain, 1), SIZE_BYTES)
    flow, = model.flows()
    assert flow.bandwidth_bps == pytest.approx(CAPACITY_BPS / 10) and alone_bps == pytest.approx(CAPACITY_BPS)
    assert [shown["share_bps"] for shown in site.flows()] == [pytest.approx(flow.bandwidth_bps)] * 2
    answer = site.controller.ask("POST", "/v1/reads", read_of(
        client=chain[1], client_ports=[41000], size_bytes=SIZE_BYTES,
        replicas=[{"host": WRITER, "port": DATA_PORT}], most_parts=1))
    part, = answer.json["parts"]
    assert part["estimated_bps"] == pytest.approx(0.9 * CAPACITY_BPS)


def test_a_chain_loses_the_hops_that_are_over_and_those_before_them(site: Site) -> None:
    model = site.controller.flowserver._selector
    chain = site.place(replicas=3)
    for number in (1, 2, 0):
        site.report(hop(chain, number), SIZE_BYTES)
    flow, = model.flows()
    ends = [node for node in flow.path.nodes if node in HOSTS]
    assert ends == chain
    site.report(hop(chain, 1), 0)
    flow, = model.flows()
    assert [node for node in flow.path.nodes if node in HOSTS] == chain[2:]
    site.report(hop(chain, 0), 0)
    assert len(list(model.flows())) == 1
    site.report(hop(chain, 2), 0)
    assert not list(model.flows()) and site.controller.flowserver.model() == {}
