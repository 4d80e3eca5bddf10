"""Reports in, entries and meters out: the application with fake switches in simulated time."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import eventlet
import pytest

from speedwell.coflow.report import Flow, FlowReport, Report, encode
from speedwell.controller import loops
from speedwell.controller.coflows.api import CoflowsApi
from speedwell.controller.coflows.app import Coflows
from speedwell.controller.counters.poller import EventMeasured
from speedwell.controller.errors import InvalidSettings
from speedwell.controller.loops import TURN_SECONDS, Loops
from speedwell.controller.policy.coflows.live_coflows import TableScheduler
from speedwell.controller.policy.network.five_tuple import FiveTuple
from speedwell.controller.policy.network.traffic_classes import PRIORITIES, SCHEDULED
from speedwell.controller.rest import RestApplication
from speedwell.controller.services import Services
from speedwell.controller.settings import Settings
from speedwell.controller.switches.entries import ToGroup
from speedwell.controller.tables.meters import meter_for, own_range
from speedwell.controller.topology.events import EventLinkChanged, EventSwitchChanged
from speedwell.controller.topology.state import NetworkState
from tests.unit.controller.coflow_site import KEY, LIFETIME_SECONDS, MB, ONE, Site
from tests.unit.controller.forwarding_world import DESTINATION, SOURCE
from tests.unit.controller.simulated_time import run_simulated


@pytest.fixture(name="run")
def _run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Callable[[Site], None]], None]:
    return lambda scenario: run_simulated(lambda hub: scenario(Site(hub, monkeypatch, tmp_path)))


def test_a_report_puts_its_flows_on_metered_paths_in_the_scheduled_queue(run: Any) -> None:
    def scenario(site: Site) -> None:
        site.report(20 * MB, 10 * MB)
        eventlet.sleep(0.1)
        schedule = site.coflows.book.schedule
        assert len(site.entries) == 2
        assert {entry.actions[0].traffic_class for entry in site.entries} == {1}
        assert {meter.rate_kbps for meter in site.meters} == {
            meter_for(1, assignment.rate_bps or 0).rate_kbps for assignment in schedule.values()}
        assert all(entry.hard_timeout_seconds == LIFETIME_SECONDS for entry in site.entries)

    run(scenario)


def test_flows_are_placed_when_the_switches_have_confirmed_it_and_not_before(run: Any) -> None:
    def scenario(site: Site) -> None:
        def states() -> set[str]:
            return {member.state for member in CoflowsApi(site.coflows, site.state).get_coflow(ONE.hex()).members}

        apply, told = site.app.apply, []

        def confirmed_late(*arguments: Any) -> Any:
            failures = apply(*arguments)
            told.append(states())
            return failures

        site.app.apply = confirmed_late
        site.report(20 * MB, 10 * MB)
        eventlet.sleep(0.1)
        assert told[0] == {"waiting"}
        assert states() == {"placed"}

    run(scenario)


def test_no_meter_lets_so_little_pass_that_tcp_stands_still(run: Any) -> None:
    def scenario(site: Site) -> None:
        site.report(20 * MB, 1)
        eventlet.sleep(0.1)
        rates = sorted(meter.rate_kbps for meter in site.meters)
        assert rates[0] == site.state.settings.meter_min_rate_bps / 1000 < rates[1]

    run(scenario)


def come_about(condition: Callable[[], Any]) -> None:
    """Within ten simulated seconds: planning rests for as long as it really took, which a busy machine stretches."""
    for _ in range(1000):
        if condition():
            return
        eventlet.sleep(0.01)
    pytest.fail("it has not come about")


def test_nothing_is_left_in_the_switches_after_a_thousand_coflows(run: Any) -> None:
    def scenario(site: Site) -> None:
        most = 0
        for number in range(1000):
            coflow_id = number.to_bytes(16)
            site.report(20 * MB, coflow_id=coflow_id)
            come_about(lambda: site.meters)
            most = max(most, *(meter.meter_id for meter in site.meters))
            site.report(0, coflow_id=coflow_id)
            come_about(lambda: not site.entries and not site.meters)
        assert most == own_range(None, 1 << 16).start
        assert site.entries == [] and site.meters == [] and len(site.coflows.book) == 0

    run(scenario)


def test_others_have_their_turn_while_counts_of_many_flows_are_taken_in(run: Any) -> None:
    def scenario(site: Site) -> None:
        site.coflows._placed = {FiveTuple("10.0.0.1", "10.0.0.2", 6, number >> 16, number & 0xFFFF): (None, None)
                                for number in range(200_000)}
        others: list[int] = []
        eventlet.spawn(others.append, 1)
        site.coflows.measured(EventMeasured(site.hub.now))
        assert others
        site.coflows._placed = {}

    run(scenario)


def test_reports_of_progress_alone_let_the_switches_be(run: Any) -> None:
    def scenario(site: Site) -> None:
        site.report(200 * MB)
        eventlet.sleep(1)
        looked, apply = [], site.coflows.apply
        site.coflows.apply = lambda: (looked.append(site.hub.now), apply())
        for step in range(80):
            site.report(190 * MB - step * MB // 2)
            eventlet.sleep(0.05)
        assert 4 <= len(looked) <= 12, "what is to be renewed is looked for all the same"
        assert len(site.entries) == 1

    run(scenario)


def test_schedules_are_renewed_as_long_as_reports_come_and_no_longer(run: Any) -> None:
    def scenario(site: Site) -> None:
        site.report(20 * MB)
        eventlet.sleep(0.1)
        sent = []
        switch = site.network.switches[site.paths()[0].nodes[1]]
        take = switch.take
        switch.take = lambda buffer: (sent.append((site.hub.now, buffer[1])), take(buffer))
        site.keep_reporting(30, 20 * MB)
        flow_mods = [at for at, kind in sent if kind == 14]
        assert len(flow_mods) > 3
        assert max(b - a for a, b in itertools.pairwise(flow_mods)) < LIFETIME_SECONDS / 2
        eventlet.sleep(8)
        assert site.entries == [] and site.meters == []

    run(scenario)


def test_many_lifetimes_are_renewed_a_few_at_a_time(run: Any) -> None:
    flows = 40

    def scenario(site: Site) -> None:
        site.keep_reporting(10, *[20 * MB] * flows)
        sent: Counter[float] = Counter()
        switch = site.network.switches[site.paths()[0].nodes[1]]
        take = switch.take
        switch.take = lambda buffer: (sent.update([site.hub.now] * (buffer[1] == 14)), take(buffer))
        site.keep_reporting(LIFETIME_SECONDS, *[19 * MB] * flows)
        placed = len(site.entries)
        assert placed > flows / 2 and sent.total() >= 2 * placed
        assert max(sent.values()) < placed / 2

    run(scenario)


def test_bad_datagrams_change_nothing_and_are_counted_by_reason(run: Any) -> None:
    def scenario(site: Site) -> None:
        good = site.report(20 * MB)
        eventlet.sleep(0.1)
        before = site.entries
        for datagram, reason in ((b"x", "malformed"), (b"", "malformed"), (b"y" * 3000, "oversized"),
                                 (good, "replayed"), (good[:-1] + b"\0", "unauthentic"),
                                 (b"SPCF\x02" + good[5:], "version")):
            site.coflows.receive(datagram)
            assert site.count(reason) >= 1, reason
        site.hub.stall(120)
        site.coflows.receive(good)
        assert site.count("stale") == 1
        assert site.coflows.book.get(ONE) is not None and site.entries == before
        assert site.count("taken") == 1

    run(scenario)


def test_a_flow_that_never_sends_keeps_no_bandwidth_from_others(run: Any) -> None:
    def scenario(site: Site) -> None:
        most = 0
        for step in range(40):
            site.report(20 * MB)
            site.report(20 * MB - step, coflow_id=b"2" * 16, first=1)
            eventlet.sleep(0.5)
            most = max(most, len(site.entries))
        assert most == 2 and site.coflows.book.get(ONE) is not None, "it is still heard of"
        (entry,) = site.entries
        assert site.flow_of(1).source_port in dict(entry.match).values()
        assert site.coflows.book.order == (b"2" * 16,)
        flow = site.flow_of(1)
        assert site.coflows.forwarding.records.ranks[flow.source, flow.destination] == 0

    run(scenario)


def test_a_coflow_that_lies_about_its_size_loses_its_schedule(run: Any) -> None:
    def scenario(site: Site) -> None:
        site.keep_reporting(1, 20 * MB)
        [entry] = site.entries
        _counts_of(site, entry)[entry.key] = 50 * MB
        site.keep_reporting(3, 20 * MB)
        assert site.entries == [] and site.meters == []
        liar = site.coflows.book.get(ONE)
        assert liar is not None and "announced" in (liar.distrusted or "")
        assert site.coflows.metrics.distrusted._value.get() == 1

    run(scenario)


@pytest.mark.parametrize("told", [True, False], ids=["its-end-is-told", "its-end-is-lost"])
def test_what_a_connection_moved_for_an_earlier_coflow_is_no_lie_of_the_next(
        run: Any, told: bool) -> None:
    def scenario(site: Site) -> None:
        site.keep_reporting(1, 50 * MB)
        [entry] = site.entries
        _counts_of(site, entry)[entry.key] = 50 * MB
        if told:
            site.report(0)
        site.keep_reporting(5, 10 * MB, coflow_id=b"2" * 16)
        following = site.coflows.book.get(b"2" * 16)
        assert following is not None and following.distrusted is None
        [entry] = site.entries
        _counts_of(site, entry)[entry.key] = 50 * MB
        site.keep_reporting(5, 10 * MB, coflow_id=b"2" * 16)
        assert following.distrusted is not None, "what it moved itself counts"

    run(scenario)


def test_what_a_flow_moved_under_an_earlier_controller_is_no_lie(run: Any) -> None:
    def scenario(site: Site) -> None:
        site.keep_reporting(1, 50 * MB)
        site.coflows.loops.stop()
        for record in list(site.app.records):
            site.app.records.drop(record)
        site.app.flow_installer.meters._ids.clear()
        [entry] = site.entries
        _counts_of(site, entry)[entry.key] = 45 * MB
        for dpid in site.connections:
            site.app.switch_changed(EventSwitchChanged(dpid, connected=True))
        site.coflows = site.new_application()
        site.keep_reporting(5, 5 * MB)
        taken_over = site.coflows.book.get(ONE)
        assert taken_over is not None and taken_over.distrusted is None

    run(scenario)


def _counts_of(site: Site, entry: Any) -> dict[Any, int]:
    [switch] = [switch for switch in site.network.switches.values() if entry in switch.flows.values()]
    return switch.byte_counts


def test_a_controller_that_starts_anew_takes_live_coflows_over(run: Any) -> None:
    def scenario(site: Site) -> None:
        site.keep_reporting(1, 20 * MB, 10 * MB)
        site.coflows.loops.stop()
        for record in list(site.app.records):
            site.app.records.drop(record)
        site.app.flow_installer.meters._ids.clear()
        for dpid in site.connections:
            site.app.switch_changed(EventSwitchChanged(dpid, connected=True))
        site.coflows = site.new_application()
        eventlet.sleep(2)
        assert len(site.entries) == 2, "what runs is not disturbed"
        site.keep_reporting(1, 18 * MB, 9 * MB)
        assert len(site.entries) == 2 and len(site.coflows.book) == 1
        used = {entry.meter_id for entry in site.entries}
        site.keep_reporting(70, 17 * MB, 8 * MB)
        assert {meter.meter_id for meter in site.meters} == used

    run(scenario)


def test_a_lost_link_moves_flows_and_a_switch_that_comes_back_empty_is_filled(run: Any) -> None:
    def scenario(site: Site) -> None:
        site.keep_reporting(1, 20 * MB)
        (assignment,) = site.coflows.book.schedule.values()
        nodes = assignment.path.nodes
        names = [site.network.name_of[node] for node in nodes[2:4]]
        site.network.dead.add(frozenset(names))
        for link in site.state.remove_link(site.network.ends(*names)[0]):
            site.app.link_changed(EventLinkChanged(link, live=False))
            site.coflows.network_changed(EventLinkChanged(link, live=False))
        site.keep_reporting(1, 19 * MB)
        (assignment,) = site.coflows.book.schedule.values()
        assert nodes[2:4] not in assignment.path.links
        assert site.coflows.failures == {}
        switch = site.network.switches[nodes[1]]
        before = dict(switch.meters)
        switch.flows, switch.groups, switch.meters, switch._by_table = {}, {}, {}, None
        site.app.switch_changed(EventSwitchChanged(nodes[1], connected=True))
        site.keep_reporting(2, 18 * MB)
        assert switch.meters == before and len(site.entries) == 1

    run(scenario)


class Ranking(TableScheduler):
    """Gives every flow a rate, or a priority, and leaves the path to the switches."""

    priority: int | None = None

    def _place(self, flows: Any, now: float) -> None:
        pass

    def _decide(self, now: float) -> Any:
        for flow in self._flows.values():
            flow.rate_bps, flow.priority = (1e6, None) if self.priority is None else (None, self.priority)
        return list(self._coflows.values())


def test_a_rate_without_a_path_is_enforced_on_the_default_paths(run: Any) -> None:
    def scenario(site: Site) -> None:
        site.coflows.planner.scheduler = Ranking(site.state.network)
        site.keep_reporting(8, 20 * MB)
        (entry,) = site.entries
        assert isinstance(entry.actions[-1], ToGroup) and entry.meter_id == own_range(None, 1 << 16).start
        assert len(site.taken()) == len(site.paths())

    run(scenario)


@pytest.mark.parametrize(("priority", "traffic_class"), [(0, 7), (3, 4), (7, 0)])
def test_a_priority_is_a_traffic_class_on_a_path_of_the_flows_own(
        run: Any, priority: int, traffic_class: int) -> None:
    def scenario(site: Site) -> None:
        site.coflows.planner.scheduler = ranking = Ranking(site.state.network)
        ranking.priority = priority
        site.report(20 * MB)
        eventlet.sleep(0.1)
        (entry,) = site.entries
        assert entry.actions[0].traffic_class == traffic_class and entry.meter_id is None
        assert len(site.taken()) == 1

    run(scenario)


@pytest.mark.parametrize("trusted", [False, True])
def test_hosts_are_told_the_classes_of_a_policy_without_priorities_only_where_their_dscp_is_trusted(
        run: Any, trusted: bool) -> None:
    def scenario(site: Site) -> None:
        site.state.settings = site.state.settings.model_copy(update={"trust_dscp": trusted})
        site.report(20 * MB)
        eventlet.sleep(0.1)
        (entry,) = site.entries
        assert entry.actions[0].traffic_class == SCHEDULED.number
        told = list(site.coflows.forwarding.records.priorities.values())
        assert told == ([PRIORITIES - 1 - SCHEDULED.number] if trusted else [])

    run(scenario)


@pytest.mark.parametrize("trusted", [False, True])
def test_hosts_are_told_the_last_class_for_a_coflow_that_was_deleted_while_it_is_reported(
        run: Any, trusted: bool) -> None:
    def scenario(site: Site) -> None:
        site.state.settings = site.state.settings.model_copy(update={"trust_dscp": trusted})
        site.keep_reporting(2, 20 * MB)
        site.coflows.remove(ONE)
        site.keep_reporting(2, 20 * MB)
        assert list(site.coflows.forwarding.records.priorities.values()) == ([PRIORITIES - 1] if trusted else [])
        site.report(0)
        site.keep_reporting(2, 20 * MB)     # the next one's
        told = list(site.coflows.forwarding.records.priorities.values())
        assert told == ([PRIORITIES - 1 - SCHEDULED.number] if trusted else [])

    run(scenario)


def test_rates_that_hosts_keep_make_no_meters(run: Any) -> None:
    def scenario(site: Site) -> None:
        site.state.settings = site.state.settings.model_copy(update={"coflow_rates": "hosts"})
        site.report(20 * MB)
        eventlet.sleep(0.1)
        (entry,) = site.entries
        assert entry.meter_id is None and site.meters == []
        (assignment,) = site.coflows.book.schedule.values()
        assert assignment.rate_bps, "it is told"
        assert list(site.coflows.forwarding.records.paces_bps.values()) == [math.ceil(assignment.rate_bps)]
        site.coflows.planner.scheduler = Ranking(site.state.network)
        site.coflows.book.start_over()
        site.keep_reporting(1, 19 * MB)
        assert site.entries == [], "a rate alone leaves the flow to the switches"

    run(scenario)


def test_a_leaf_that_is_away_keeps_no_other_leaf_waiting(run: Any) -> None:
    def scenario(site: Site) -> None:
        hosts = site.network.hosts
        leaf = site.state.hosts[hosts[SOURCE].ip].dpid
        away = site.state.datapaths.pop(leaf)
        site.report(20 * MB)
        eventlet.sleep(0.1)
        assert site.entries == [] and site.coflows.failures
        back = Flow(hosts[DESTINATION].ip, hosts[SOURCE].ip, 5000, 6000)
        for number in range(3):
            site.coflows.receive(encode(Report(bytes([number]) * 16, 8, 1, round(site.hub.now * 1e6), (
                FlowReport(back._replace(source_port=5000 + number), 10 * MB),)), KEY))
            eventlet.sleep(0.1)
            assert len(site.entries) == number + 1
        assert site.coflows.failures, "it is still told"
        site.state.datapaths[leaf] = away
        eventlet.sleep(1.6)
        assert len(site.entries) == 4 and not site.coflows.failures

    run(scenario)


def test_nothing_is_kept_of_a_flow_that_ends_while_its_leaf_is_away(run: Any) -> None:
    def scenario(site: Site) -> None:
        leaf = site.state.hosts[site.network.hosts[SOURCE].ip].dpid
        away = site.state.datapaths.pop(leaf)
        site.report(20 * MB)
        eventlet.sleep(0.1)
        assert site.coflows.failures
        site.report(0)
        eventlet.sleep(0.1)
        assert not site.coflows.failures and not list(site.app.records)
        site.state.datapaths[leaf] = away
        site.app.switch_changed(EventSwitchChanged(leaf, connected=True))
        eventlet.sleep(2)
        assert site.entries == [] and site.meters == []

    run(scenario)


@pytest.fixture(name="turns_in")
def _turns_in(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object], int], int]:
    """How often others have their turn meanwhile, where so many things take as long as a turn may."""
    def turns_in(call: Callable[[], object], things: int) -> int:
        turns, looks = [0], itertools.count()

        def take_turns() -> None:
            while True:
                turns[0] += 1
                eventlet.sleep(0)

        others = eventlet.spawn(take_turns)
        with monkeypatch.context() as patched:
            patched.setattr(loops, "time", SimpleNamespace(monotonic=lambda: next(looks) * TURN_SECONDS / things))
            call()
        others.kill()
        return turns[0]

    return turns_in


def test_the_flows_of_a_great_coflow_are_told_while_others_have_their_turn(run: Any, turns_in: Any) -> None:
    def scenario(site: Site) -> None:
        flows = [Flow("10.9.0.1", "10.9.0.2", number, 6000) for number in range(1, 20_001)]
        site.coflows.book.report(ONE, [FlowReport(flow, MB) for flow in flows], site.hub.now)
        api = CoflowsApi(site.coflows, site.state)
        page = api.list_coflow_flows(limit=500)
        assert (page.total, page.next_offset) == (20_000, 500)
        assert [flow.number for flow in page.flows] == list(range(500))
        assert {(flow.coflow, flow.coflow_state) for flow in page.flows} == {(ONE.hex(), "best-effort")}
        assert api.list_coflow_flows(offset=19_999).flows[0].source_port == 20_000
        assert api.list_coflow_flows(link="10.9.0.1,10.9.0.2").total == 0
        # All flows are walked through twice: which are asked for, and what their coflow is.
        assert turns_in(lambda: api.list_coflow_flows(limit=500), 100) >= 1.9 * len(flows) / 100

    run(scenario)


def test_meters_are_told_while_others_have_their_turn(run: Any, turns_in: Any) -> None:
    def scenario(site: Site) -> None:
        site.report(*[20 * MB] * 20)
        eventlet.sleep(0.5)
        api = CoflowsApi(site.coflows, site.state)
        meters = api.list_meters().meters
        assert len(meters) == len(site.entries) == 20
        assert meters == sorted(meters, key=lambda each: (each.dpid, each.meter))
        assert turns_in(api.list_meters, 2) >= 15

    run(scenario)


def test_small_coflows_are_left_to_the_default_paths(run: Any) -> None:
    def scenario(site: Site) -> None:
        site.report(1 * MB)
        eventlet.sleep(0.1)
        assert len(site.coflows.book) == 1 and site.entries == []

    run(scenario)


def test_a_key_that_is_of_no_use_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"short")
    state = NetworkState(Settings(coflow_key_file=tmp_path / "key"))
    with pytest.raises(InvalidSettings, match="openssl"):
        Coflows(Services(state, RestApplication(), Loops()))
