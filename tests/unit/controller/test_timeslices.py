"""The scheduler's turns: what agents are told of what they report, with the very sessions that agents have."""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

from speedwell.coflow.report import Flow
from speedwell.controller.policy.network import graph
from speedwell.controller.policy.network.graph import Network
from speedwell.controller.policy.timeslices.xco_plus import AGED_SLICES
from speedwell.controller.timeslices import watches as watches_module
from speedwell.controller.timeslices.main import command
from speedwell.controller.timeslices.metrics import SchedulerMetrics
from speedwell.controller.timeslices.service import TELL_SECONDS, TurnService
from speedwell.controller.timeslices.standby import FirstScheduler
from speedwell.controller.timeslices.turns import CALM_SECONDS, SILENT_SECONDS, TurnKeeper, later
from speedwell.controller.timeslices.watches import LEAST_SECONDS, ClassWatch, NetworkWatch, network_of
from speedwell.fs.controller import Controller as ControllerAt
from speedwell.host_agent.channel import (
    Backlog,
    BacklogReport,
    Directive,
    FlowClasses,
    Slice,
    Turns,
    agent_key,
    encode,
)
from speedwell.host_agent.session import AgentEnd
from tests.waiting import wait_until

MASTER, BPS, SLICE = b"a master key of 16 bytes or more", 20e6, 0.01
HOSTS = [f"10.0.0.{number}" for number in range(1, 5)]
A, B, C, D = HOSTS
LINKS = [ends for host in HOSTS for ends in ((host, "0000000000000001"), ("0000000000000001", host))]


def star() -> Network:
    return network_of((*ends, BPS) for ends in LINKS)


def report(agent: str, *destinations: str, queued_bytes: int = 10**6) -> BacklogReport:
    return BacklogReport(agent, 1, 1, 0, tuple(Backlog(to, queued_bytes, 0, 0) for to in destinations))


class Agents:
    """What agents know; they obey."""

    def __init__(self, keeper: TurnKeeper) -> None:
        self.keeper, self.now = keeper, 10.0
        self.turns: dict[tuple[str, str], Turns] = {}
        self.heard_at: dict[tuple[str, str], float] = {}
        self.words: dict[str, float] = {}

    def hear(self, sending: list[tuple[str, tuple[Turns, ...]]]) -> None:
        for agent, turns in sending:
            self.words[agent] = self.now
            self.turns |= {(agent, each.destination): each for each in turns}
            self.heard_at |= dict.fromkeys([(agent, each.destination) for each in turns], self.now)

    def report(self, agent: str, *destinations: str) -> None:
        self.hear(self.keeper.reported(report(agent, *destinations), self.now))

    def pass_slices(self, number: int, *reporting: tuple[str, ...]) -> None:
        for _ in range(number):
            self.now += SLICE
            for agent, *to in reporting:
                self.report(agent, *to)
            self.hear(self.keeper.pass_time(self.now))

    @property
    def sending(self) -> set[tuple[str, str]]:
        """In their slices in the next millisecond."""
        def microseconds(pair: tuple[str, str]) -> float:
            return 1e6 * (self.now - self.heard_at[pair]) + 1000

        return {pair for pair, turns in self.turns.items() if any(
            each.start_microseconds < microseconds(pair) < each.start_microseconds + each.duration_microseconds
            for each in turns.slices)}

    @property
    def free(self) -> set[tuple[str, str]]:
        return {pair for pair, turns in self.turns.items() if not turns.lease_microseconds}


@pytest.fixture(params=["xco", "xco-plus"])
def agents(request: pytest.FixtureRequest) -> Agents:
    return Agents(TurnKeeper(request.param, SLICE, star()))


def test_who_contends_with_nobody_is_left_alone(agents: Agents) -> None:
    agents.report(A, C)
    agents.report(B, D)
    assert agents.turns == {} and not agents.keeper.coordinated


def moved(agent: str, to: str, sent_bytes: int, retransmitted: int = 0, dropped: int = 0) -> BacklogReport:
    """Nothing is queued any more when it is looked."""
    return BacklogReport(agent, 1, 1, dropped, (Backlog(to, 0, sent_bytes, retransmitted),))


def test_senders_whose_packets_are_lost_take_turns_though_they_have_never_something_queued_together(
        agents: Agents) -> None:
    """As in incast, where they wait for timeouts."""
    for sender in (A, B):
        agents.hear(agents.keeper.reported(moved(sender, D, 1000), agents.now))
    agents.hear(agents.keeper.reported(moved(C, A, 1000), agents.now))
    agents.now += 0.1
    agents.hear(agents.keeper.reported(moved(B, D, 2000), agents.now))
    assert not agents.keeper.coordinated
    agents.hear(agents.keeper.reported(moved(A, D, 2000, retransmitted=1), agents.now))
    assert agents.keeper.coordinated == {A: {D}, B: {D}}
    agents.pass_slices(round((CALM_SECONDS + 0.3) / SLICE), (A,), (B,), (C,))
    assert not agents.keeper.coordinated and {(A, D), (B, D)} <= agents.free


def test_what_a_senders_own_uplink_drops_begins_turns_where_others_send_too(agents: Agents) -> None:
    for sender, dropped in ((A, 7), (B, 0)):
        agents.hear(agents.keeper.reported(moved(sender, D, 1000, dropped=dropped), agents.now))
    agents.hear(agents.keeper.reported(moved(A, D, 2000, dropped=7), agents.now))
    agents.hear(agents.keeper.reported(moved(B, D, 2000), agents.now))
    assert not agents.keeper.coordinated
    agents.hear(agents.keeper.reported(moved(A, D, 3000, dropped=8), agents.now))
    assert agents.keeper.coordinated == {A: {D}, B: {D}}


def test_who_loses_packets_where_nobody_else_sends_is_left_alone(agents: Agents) -> None:
    agents.hear(agents.keeper.reported(moved(A, D, 1000), agents.now))
    agents.hear(agents.keeper.reported(moved(B, C, 1000), agents.now))
    agents.hear(agents.keeper.reported(moved(A, D, 2000, retransmitted=9), agents.now))
    agents.pass_slices(20, (A,), (B,))
    assert not agents.keeper.coordinated


def test_a_scheduler_that_begins_anew_takes_no_old_losses_for_new_ones(agents: Agents) -> None:
    for sender in (A, B):
        agents.hear(agents.keeper.reported(moved(sender, D, 10**9, retransmitted=500, dropped=50), agents.now))
    agents.pass_slices(20, (A,), (B,))
    assert not agents.keeper.coordinated


def test_without_turns_nobody_is_held_and_no_path_is_asked_for() -> None:
    agents = Agents(TurnKeeper("xco-plus", SLICE, star(), gives_turns=False))
    for sender in (A, B):
        agents.report(sender, D)
        agents.hear(agents.keeper.reported(moved(sender, D, 1000), agents.now))
        agents.hear(agents.keeper.reported(moved(sender, D, 2000, retransmitted=5), agents.now))
    agents.pass_slices(20, (A, D), (B, D))
    assert not agents.keeper.coordinated and not agents.keeper.pairs and not agents.turns and len(agents.words) == 2


def test_senders_to_one_receiver_take_turns_with_a_lease_of_three_slices(agents: Agents) -> None:
    agents.report(A, D)
    agents.report(B, D)
    agents.report(C, D)
    seen = []
    for _ in range(9):
        agents.pass_slices(1, (A, D), (B, D), (C, D))
        assert len(agents.sending) == 1
        seen += agents.sending
    assert sorted(seen) == sorted([(A, D), (B, D), (C, D)] * 3)
    assert {each.lease_microseconds for each in agents.turns.values()} == {30_000}
    assert {slice_.rate_bps for each in agents.turns.values() for slice_ in each.slices} == {round(BPS)}


def test_xco_plus_gives_turns_in_the_order_of_coflows_until_others_have_waited_long() -> None:
    agents = Agents(TurnKeeper("xco-plus", SLICE, star()))
    agents.keeper.ranked({(B, D): 1, (C, D): 0})
    for sender in (A, B, C):
        agents.report(sender, D)
    seen: list[tuple[str, str]] = []
    for _ in range(AGED_SLICES + 5):
        agents.pass_slices(1, (A, D), (B, D), (C, D))
        [sending] = agents.sending
        seen.append(sending)
    assert set(seen[1:AGED_SLICES - 1]) == {(C, D)} and set(seen) == {(A, D), (B, D), (C, D)}
    agents.keeper.network_changed(star(), agents.now)
    agents.pass_slices(3, (A, D), (B, D), (C, D))
    assert agents.sending == {(C, D)}


LEAVES, SPINES = ("1", "2"), ("3", "4")


@pytest.fixture(params=["xco", "xco-plus"])
def on_two_leaves(request: pytest.FixtureRequest) -> Agents:
    """A and B on one leaf, C and D on the other, two spines."""
    ends = [*zip(HOSTS, (LEAVES[0], LEAVES[0], LEAVES[1], LEAVES[1]), strict=True),
            *((leaf, spine) for leaf in LEAVES for spine in SPINES)]
    network = network_of((*link, BPS) for a, b in ends for link in ((a, b), (b, a)))
    return Agents(TurnKeeper(request.param, SLICE, network))


def by(first_spine: str, second_spine: str) -> dict[tuple[str, str], graph.Path]:
    return {(A, C): graph.Path((A, LEAVES[0], first_spine, LEAVES[1], C)),
            (B, D): graph.Path((B, LEAVES[0], second_spine, LEAVES[1], D))}


def test_pairs_contend_where_the_network_keeps_them(on_two_leaves: Agents) -> None:
    keeper = on_two_leaves.keeper
    together = {A: {C}, B: {D}}
    for paths, coordinated in ((by("3", "3"), together), (by("3", "4"), {}), (by("4", "4"), together)):
        on_two_leaves.hear(keeper.pinned(paths, on_two_leaves.now))
        on_two_leaves.pass_slices(round(2 * CALM_SECONDS / SLICE), (A, C), (B, D))
        assert dict(keeper.coordinated) == coordinated
    assert keeper.pairs == {(A, C), (B, D)}


def test_paths_over_links_that_are_not_known_are_left_alone(on_two_leaves: Agents) -> None:
    assert on_two_leaves.keeper.pinned(by("5", "5"), on_two_leaves.now) == []
    on_two_leaves.pass_slices(3, (A, C), (B, D))


def test_three_slices_are_planned_ahead_so_that_a_late_scheduler_leaves_no_gap(agents: Agents) -> None:
    for agent in (A, B, C):
        agents.report(agent, D)
    agents.pass_slices(6, (A, D), (B, D), (C, D))
    for late in (0.0, SLICE):
        agents.now += late
        assert len(agents.sending) == 1
    starts = sorted(each.start_microseconds for turns in agents.turns.values() for each in turns.slices)
    assert starts == pytest.approx([0, 10_000, 20_000], abs=2)
    agents.now += 0.4 * SLICE
    agents.hear(agents.keeper.pass_time(agents.now))
    assert len(agents.sending) == 1


def test_whoever_is_held_hears_so_again_before_its_lease_is_over(agents: Agents) -> None:
    for agent in (A, B, C):
        agents.report(agent, D)
    for _ in range(20):
        agents.pass_slices(1, (A, D), (B, D), (C, D))
        assert all(agents.now - agents.words[agent] < 2.5 * SLICE for agent in (A, B, C))


def test_what_is_given_up_is_held_and_the_other_is_free_once_it_is_alone(agents: Agents) -> None:
    agents.report(A, D)
    agents.report(B, D)
    (first, _), = agents.sending
    other = B if first == A else A
    agents.report(first)
    assert agents.sending == {(other, D)} and agents.turns[first, D] == Turns(D, 30_000)
    agents.pass_slices(round(2 * CALM_SECONDS / SLICE), (other, D))
    assert agents.free == {(other, D)}


def test_a_silent_agent_is_forgotten_and_its_turn_goes_to_others(agents: Agents) -> None:
    agents.report(A, D)
    agents.report(B, D)
    agents.pass_slices(round((SILENT_SECONDS + CALM_SECONDS) / SLICE) + 20, (B, D))
    assert set(agents.keeper.agents) == {B} and agents.free == {(B, D)}


def test_idle_agents_hear_a_sign_of_life(agents: Agents) -> None:
    agents.report(A)
    agents.pass_slices(50, *())
    assert agents.now - agents.words[A] < 0.45


def test_destinations_that_nobody_knows_are_free_until_the_network_has_them() -> None:
    agents = Agents(TurnKeeper("xco", SLICE, Network()))
    agents.report(A, D)
    agents.report(B, D)
    assert agents.turns == {}
    agents.hear(agents.keeper.network_changed(star(), agents.now))
    assert len(agents.sending) == 1
    agents.hear(agents.keeper.network_changed(Network(), agents.now))
    assert agents.free == {(A, D), (B, D)}


def test_rate_limits_hold_for_their_lease() -> None:
    agents = Agents(TurnKeeper("rate-limits", SLICE, star()))
    agents.report(A, D)
    agents.report(B, D)
    assert {each.slices for each in agents.turns.values()} == {(Slice(0, 30_000, round(BPS / 2)),)}


def test_a_report_that_comes_just_after_a_slice_finds_the_next_one_begun(agents: Agents) -> None:
    agents.report(A, D)
    agents.report(B, D)
    agents.now += SLICE + 0.001
    agents.report(C, D)
    assert len(agents.sending) == 1
    assert all(each.start_microseconds >= 0 for turns in agents.turns.values() for each in turns.slices)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(["xco", "xco-plus", "rate-limits"]), st.floats(0.001, 1), st.floats(0, 1e7),
       st.lists(st.integers(4, 12).map(lambda megabits: megabits * 1e6), min_size=len(HOSTS), max_size=len(HOSTS)),
       st.lists(st.tuples(st.floats(0, 2) | st.sampled_from([1.0, 1 - 1e-6, 1 + 1e-6]), st.none() | st.tuples(
           st.sampled_from([A, B, C]), st.sets(st.sampled_from([C, D]), min_size=1))), min_size=5, max_size=20))
def test_whatever_the_times_of_reports_and_slices_agents_can_be_told_their_turns(
        policy: str, slice_seconds: float, now: float, rates_bps: list[float],
        happenings: list[tuple[float, tuple[str, set[str]] | None]]) -> None:
    capacity_bps = dict(zip(HOSTS, rates_bps, strict=True))
    keeper = TurnKeeper(policy, slice_seconds, network_of(
        (a, b, capacity_bps.get(a) or capacity_bps[b]) for a, b in LINKS))
    for slices, reported in happenings:
        now += slices * slice_seconds
        for agent, turns in (keeper.pass_time(now) if reported is None else
                             keeper.reported(report(reported[0], *reported[1] - {reported[0]}), now)):
            encode(Directive(agent, 1, 1, turns), agent_key(MASTER, agent))


# --- over the wire


GOOD = json.dumps({"links": [{"source": a, "destination": b, "capacity_bps": BPS} for a, b in LINKS]}).encode()


def with_link(source: object, destination: object, capacity_bps: object) -> bytes:
    return json.dumps({"links": [{"source": source, "destination": destination,
                                  "capacity_bps": capacity_bps}]}).encode()


class Controller(HTTPServer):
    """Gives its answers one after the other, and the last one for ever; None dies in the middle of it."""

    classes: tuple[dict[str, object], ...] = ()

    def __init__(self, *answers: bytes | None) -> None:
        super().__init__(("127.0.0.1", 0), Answering)
        self.answers = list(answers)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Answering(BaseHTTPRequestHandler):
    server: Controller

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answer = json.dumps({"pairs": [{**pair, "path": [pair["source"], "0000000000000001", pair["destination"]]}
                                       for pair in asked["pairs"]]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def do_GET(self) -> None:
        answers = self.server.answers
        answer: bytes | None
        if self.path.startswith("/v1/timeslices/classes"):
            answer = json.dumps({"revision": len(self.server.classes), "flows": self.server.classes}).encode()
        else:
            answer = answers.pop(0) if len(answers) > 1 else answers[0]
        self.send_response(200)
        self.send_header("Content-Length", str(len(GOOD if answer is None else answer)))
        self.end_headers()
        self.wfile.write(GOOD[:100] if answer is None else answer)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def service() -> Iterator[TurnService]:
    controller = Controller(GOOD)
    service = TurnService(TurnKeeper("xco-plus", SLICE, Network()), MASTER, SLICE, ("127.0.0.1", 0),
                          ControllerAt(controller.url))
    running = threading.Thread(target=service.run)
    running.start()
    yield service
    service.stop()
    running.join(10)
    controller.shutdown()
    assert not running.is_alive() and service.counts["failures"] == 0


@pytest.mark.parametrize("answer", [
    None, b"[]", b"not json", b'{"links": 5}', b"[" * 100_000, with_link(5, A, BPS), with_link(A, None, BPS),
    with_link(A, "1", "fast"), with_link(A, "1", None), with_link(A, "1", 0), with_link(A, "1", float("nan")),
    with_link(A, "1", 1e300), with_link(A, A, BPS), with_link(A, B, BPS)])
def test_the_watch_survives_and_tells_what_is_no_network(answer: bytes | None, monkeypatch: pytest.MonkeyPatch,
                                                         caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(watches_module, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(watches_module, "ORDER_SECONDS", 0.06)
    with Controller(answer, answer, GOOD) as controller, caplog.at_level(logging.INFO):
        watch = NetworkWatch(ControllerAt(controller.url))
        watch.start()
        wait_until(lambda: watch.network.hosts == set(HOSTS), 10, lambda: f"it has given up: {caplog.messages}")
        controller.shutdown()
    assert [f"{controller.url} does not tell the network's links" in each for each in caplog.messages
            if controller.url in each][:1] == [True]


def test_the_watch_asks_for_the_paths_of_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches_module, "ORDER_SECONDS", 3600.0)
    with Controller(GOOD) as controller:
        watch = NetworkWatch(ControllerAt(controller.url))
        watch.start()
        wait_until(lambda: watch.network.hosts == set(HOSTS), 10, "it does not ask for the network")
        for pairs in ({(A, B)}, {(A, B), (C, D)}):
            watch.pin(frozenset(pairs))
            wait_until(lambda wanted=pairs: watch.paths.keys() == wanted, 10, "new pairs wait")
        assert watch.paths[C, D] == graph.Path((C, "0000000000000001", D)) and watch.is_answered
        controller.shutdown()


def test_the_watch_forgets_paths_that_the_network_keeps_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches_module, "ORDER_SECONDS", 0.1)
    with Controller(GOOD) as controller:
        watch = NetworkWatch(ControllerAt(controller.url))
        watch.start()
        for pairs in ({(A, B)}, set()):
            watch.pin(frozenset(pairs))
            wait_until(lambda wanted=pairs: watch.paths.keys() == wanted, 10, "it goes by old paths")
        controller.shutdown()


def test_a_controller_that_answers_at_once_and_has_no_news_is_not_asked_on_and_on(
        monkeypatch: pytest.MonkeyPatch) -> None:
    def sleep(seconds: float) -> None:
        raise SystemExit(seconds)

    news: list[int] = []
    with Controller(GOOD) as controller:
        watch = ClassWatch(ControllerAt(controller.url), lambda: news.append(1))
        monkeypatch.setattr(watches_module, "time", SimpleNamespace(sleep=sleep))
        with pytest.raises(SystemExit, match=str(LEAST_SECONDS)):
            watch.run()
        controller.shutdown()
    assert news == [1]


class Remote:
    """An agent with its socket."""

    def __init__(self, agent: str, service: TurnService, key: bytes | None = None) -> None:
        self.end = AgentEnd(agent, key or agent_key(MASTER, agent), round(BPS))
        self.channel = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.channel.connect(service.address)
        self.channel.settimeout(0.05)
        self.now_or_later: Counter[bool] = Counter()
        self.orders: dict[Flow, tuple[int, int]] = {}
        self.channel.send(self.end.register(agent.encode().ljust(16)))

    def turn(self) -> None:
        if self.end.is_registered:
            self.channel.send(self.end.report(0, [Backlog(D, 10**6, 0, 0)]))
        try:
            message = self.end.take(self.channel.recv(2000))
        except TimeoutError:
            return
        if isinstance(message, FlowClasses):
            self.orders |= {each.flow: (each.priority, each.pacing_bps) for each in message.flows}
        for turns in message.turns if isinstance(message, Directive) else ():
            self.now_or_later[not turns.slices or turns.slices[0].start_microseconds > 0] += 1


def test_a_scheduler_stands_by_while_the_first_one_is_there_gives_turns_when_it_is_not_and_steps_back(
        service: TurnService) -> None:
    host, port = service.address
    second = TurnService(TurnKeeper("xco-plus", SLICE, Network()), MASTER, SLICE, (host, 0),
                         ControllerAt(service.watch._url), FirstScheduler((host, port), MASTER, "127.0.0.1"))

    def agents_of(which: TurnService) -> set[str]:
        return set(which.keeper.agents)

    def turn(remotes: list[Remote]) -> None:
        for remote in remotes:
            remote.turn()

    running = threading.Thread(target=second.run)
    running.start()
    try:
        wait_until(lambda: agents_of(service) == {"127.0.0.1"}, 10, "it does not register with the first")
        early = [Remote(agent, second) for agent in (A, B)]
        turn(early)
        assert second.stands_by and not any(each.end.is_registered for each in early)
        service.stop()
        wait_until(lambda: not second.stands_by and service._channel.fileno() < 0, 10,
                   "it does not see that the first is gone")
        remotes = [Remote(agent, second) for agent in (A, B)]

        def have_turns() -> bool:
            turn(remotes)
            return all(each.now_or_later.total() > 5 for each in remotes)

        wait_until(have_turns, 20, "nobody has turns")
        again = TurnService(TurnKeeper("xco-plus", SLICE, Network()), MASTER, SLICE, (host, port),
                            ControllerAt(service.watch._url))
        running_again = threading.Thread(target=again.run)
        running_again.start()
        try:
            wait_until(lambda: turn(remotes) is None and second.stands_by and not agents_of(second), 10,
                       "it goes on beside the first")
        finally:
            again.stop()
            running_again.join(10)
    finally:
        second.stop()
        running.join(10)
    assert not running.is_alive() and second.counts["failures"] == 0


def test_registered_agents_take_turns_and_strangers_are_counted(service: TurnService) -> None:
    remotes, stranger = [Remote(A, service), Remote(B, service)], Remote(C, service, b"another key of 16 bytes")

    def have_all_had_turns() -> bool:
        for remote in (*remotes, stranger):
            remote.turn()
        now_or_later = remotes[0].now_or_later + remotes[1].now_or_later
        return all(remote.now_or_later.total() > 5 for remote in remotes) and min(
            now_or_later[False], now_or_later[True]) > 2

    wait_until(have_all_had_turns, 30, "somebody has had no turn")
    assert not stranger.end.is_registered and service.refused["unauthentic"] >= 1
    registry = CollectorRegistry()
    registry.register(SchedulerMetrics(service))
    told = {name.removeprefix("speedwell_timeslices_"): float(value) for name, _, value in (
        line.rpartition(" ") for line in generate_latest(registry).decode().splitlines()) if name[0] != "#"}
    wait_until(lambda: service.watch.paths.keys() == {(A, D), (B, D)}, 10, "the scheduler knows no paths")
    assert (told["agents"], told["hosts"], told["controller_up"], told["failures_total"]) == (2, len(HOSTS), 1, 0)
    assert told['refused_total{reason="unauthentic"}'] >= 1 and told["directives_total"] > 10
    for remote in remotes:
        remote.channel.close()
    stranger.channel.close()


def test_agents_that_report_more_often_than_slices_end_put_nothing_off() -> None:
    controller = Controller(GOOD)
    service = TurnService(TurnKeeper("xco-plus", 0.5, Network()), MASTER, 0.5, ("127.0.0.1", 0),
                          ControllerAt(controller.url))
    running = threading.Thread(target=service.run)
    running.start()
    remotes = [Remote(A, service), Remote(B, service)]

    def is_known() -> bool:
        for remote in remotes:
            remote.turn()
        return service.keeper.coordinated == {A: {D}, B: {D}}

    try:
        wait_until(is_known, 30, "the network is never looked at", interval_seconds=0.001)
    finally:
        service.stop()
        running.join(10)
        controller.shutdown()
        for remote in remotes:
            remote.channel.close()


def test_agents_are_told_the_classes_of_their_hosts_flows_which_keep_them_for_a_lease_and_no_pace() -> None:
    controller = Controller(GOOD)
    service = TurnService(TurnKeeper("xco-plus", SLICE, Network()), MASTER, SLICE, ("127.0.0.1", 0),
                          ControllerAt(controller.url))
    running = threading.Thread(target=service.run)
    running.start()
    remote, flow = Remote(A, service), Flow(A, D, 1, 2)

    def is_told(orders: dict[Flow, tuple[int, int]]) -> bool:
        remote.turn()
        return remote.orders == orders

    try:
        controller.classes = tuple({
            "source": source, "destination": D, "protocol": 6, "source_port": 1, "destination_port": 2, "priority": 2,
            "pacing_bps": 5 * 10**6} for source in (A, B))
        wait_until(lambda: is_told({flow: (2, 5 * 10**6)}), 30, "it is not told its host's class and pace")
        controller.classes = ()
        wait_until(lambda: is_told({flow: (2, 0)}), 30, "it is not told that the flow is ranked no more")
        remote.orders.clear()
        deadline = time.monotonic() + 2 * TELL_SECONDS
        while time.monotonic() < deadline:
            remote.turn()
        assert remote.orders == {}, "it is told again, so the lease does not end"
    finally:
        service.stop()
        running.join(10)
        controller.shutdown()
        remote.channel.close()


def test_the_command_refuses_what_it_cannot_use(tmp_path: Path) -> None:
    (tmp_path / "short").write_text("short")
    (tmp_path / "long").write_bytes(MASTER)
    for arguments, reason in ((["--key-file", str(tmp_path / "none")], "cannot read"),
                              (["--key-file", str(tmp_path / "short")], "at least"),
                              (["--key-file", str(tmp_path / "short"), "--policy", "none"], "not one of xco-plus"),
                              (["--key-file", str(tmp_path / "long"), "--listen", "192.0.2.1:1"], "--listen: cannot"),
                              (["--key-file", str(tmp_path / "short"), "--listen", "nowhere"], "HOST:PORT")):
        done = CliRunner().invoke(command, arguments)
        assert done.exit_code != 0 and reason in str(done.exception) + done.output


def test_turns_that_are_told_late_begin_and_end_as_decided() -> None:
    turns = Turns(D, 30_000, (Slice(0, 1000, 7), Slice(2000, 3000, 8), Slice(8000, 1000, 9)))
    assert later(turns, 2500) == Turns(D, 30_000, (Slice(0, 2500, 8), Slice(5500, 1000, 9)))


def test_who_begins_again_soon_after_links_were_contended_waits_for_a_turn(agents: Agents) -> None:
    """As senders of many answers to one host do, each time it asks."""
    agents.report(A, D)
    agents.report(B, D)
    agents.report(A)
    agents.report(B)
    agents.pass_slices(round(CALM_SECONDS / SLICE) - 10, (A,), (B,))
    assert not agents.sending & {(A, D), (B, D)} and not agents.free & {(A, D), (B, D)}
    agents.report(A, D)
    agents.report(B, D)
    assert len(agents.sending & {(A, D), (B, D)}) == 1
    agents.report(A)
    agents.report(B)
    agents.pass_slices(round(CALM_SECONDS / SLICE) + 30, (A,), (B,))
    assert agents.free >= {(A, D), (B, D)}
