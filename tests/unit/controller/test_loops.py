"""What runs for ever in the controller outlives its failures, and says so."""

from __future__ import annotations

import json
import logging
import resource
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from http.client import HTTPConnection
from itertools import pairwise
from pathlib import Path
from typing import Any

import eventlet
import pytest
from eventlet.event import Event
from greenlet import GreenletExit

from speedwell.controller.loops import LAST_PAUSE_SECONDS, MEMORY_SECONDS, Loops, Trouble
from tests.unit.controller.coflows.test_coflows_app import KEY, MB, Site
from tests.unit.controller.controller_process import controller_process, until
from tests.unit.controller.in_process import Controller
from tests.unit.controller.simulated_time import SimulatedHub, run_simulated
from tests.unit.controller.tables.test_forwarding_app import World
from tests.unit.controller.topology.test_discovery_simulated import World as DiscoveredWorld


class Once:
    """Fails the first time, then does what it stands for."""

    def __init__(self, function: Callable[..., Any], error: BaseException | None = None) -> None:
        self._function = function
        self._error: BaseException | None = error or RuntimeError("for once")

    def __call__(self, *arguments: Any) -> Any:
        error, self._error = self._error, None
        if error is not None:
            raise error
        return self._function(*arguments)


def failures(loops: Loops, name: str) -> float:
    return float(loops.failures.labels(name)._value.get())


def names(loops: Loops) -> list[str]:
    return [trouble.name for trouble in loops.troubles()]


def test_a_loop_goes_on_after_a_failure_which_is_logged_counted_and_told_for_a_minute(
        caplog: pytest.LogCaptureFixture) -> None:
    def scenario(hub: SimulatedHub) -> None:
        loops, rounds = Loops(clock=hub.read), []
        loops.run("turns", Once(lambda: rounds.append(hub.now)), every_seconds=1, patience_seconds=5)
        eventlet.sleep(10)
        assert len(rounds) == 9
        (trouble,) = loops.troubles()
        assert (trouble.name, trouble.problem) == ("turns", "RuntimeError: for once")
        assert failures(loops, "turns") == 1
        eventlet.sleep(MEMORY_SECONDS)
        assert loops.troubles() == []

    run_simulated(scenario)
    assert "turns failed: RuntimeError: for once" in caplog.text and "Traceback" in caplog.text


def test_a_loop_that_fails_again_and_again_tries_ever_rarer_but_never_gives_up(
        caplog: pytest.LogCaptureFixture) -> None:
    def scenario(hub: SimulatedHub) -> None:
        loops, tries = Loops(clock=hub.read), []

        def step() -> None:
            tries.append(hub.now)
            raise eventlet.Timeout if len(tries) % 2 else OSError("no room")

        loops.run("turns", step, patience_seconds=5)
        eventlet.sleep(100)
        pauses = [later - earlier for earlier, later in pairwise(tries)]
        assert pauses[0] < pauses[3] < LAST_PAUSE_SECONDS == pytest.approx(max(pauses)) and len(tries) > 45
        assert names(loops) == ["turns"]
        loops.stop()
        eventlet.sleep(10)
        assert hub.now - tries[-1] > 9 and loops._loops == {}

    with caplog.at_level(logging.ERROR):
        run_simulated(scenario)


def test_a_loop_that_does_not_come_round_is_told_until_it_does() -> None:
    def scenario(hub: SimulatedHub) -> None:
        loops, goes_on = Loops(clock=hub.read), Event()
        loops.run("stuck", lambda: goes_on.ready() or goes_on.wait(), every_seconds=1, patience_seconds=5)
        loops.run("idle", lambda: eventlet.sleep(1000), patience_seconds=None)
        eventlet.sleep(5)
        assert loops.troubles() == []
        eventlet.sleep(3)
        assert loops.troubles() == [Trouble("stuck", "It has not come round within 5 s.", pytest.approx(8))]
        goes_on.send()
        eventlet.sleep(2)
        assert loops.troubles() == []
        loops.stop()

    run_simulated(scenario)


@pytest.mark.parametrize("error", [GreenletExit, type("Unheard", (BaseException,), {})])
def test_a_loop_that_somebody_ended_is_told_and_goes_on(error: type[BaseException]) -> None:
    def scenario(hub: SimulatedHub) -> None:
        loops, rounds = Loops(clock=hub.read), []
        loop = loops.run("ended", Once(lambda: rounds.append(hub.now), error()), every_seconds=1,
                         patience_seconds=None)
        eventlet.sleep(10)
        assert len(rounds) >= 5
        assert names(loops) == ["ended"] and failures(loops, "ended") == 1
        loop._thread.kill()
        eventlet.sleep(10)
        assert len(rounds) >= 10 and failures(loops, "ended") == 2
        eventlet.sleep(MEMORY_SECONDS)
        assert names(loops) == []
        loops.stop()
        ended = len(rounds)
        eventlet.sleep(10)
        assert len(rounds) == ended and failures(loops, "ended") == 2

    run_simulated(scenario)


def test_a_loop_that_is_stopped_while_it_is_about_to_go_on_ends() -> None:
    def scenario(hub: SimulatedHub) -> None:
        loops, rounds = Loops(clock=hub.read), []
        loop = loops.run("ended", lambda: rounds.append(hub.now), every_seconds=1, patience_seconds=None)
        eventlet.sleep(3.5)
        loop._thread.kill()
        loops.stop()
        eventlet.sleep(10)
        assert len(rounds) == 3

    run_simulated(scenario)


def test_a_task_that_fails_is_counted_and_told_and_those_who_wait_for_it_go_on() -> None:
    def fails() -> None:
        raise KeyError("x")

    loops = Loops()
    task = loops.spawn(fails)
    assert task.wait() is None and loops.spawn_after(0.01, len, "abc").wait() == 3
    (trouble,) = loops.troubles()
    assert trouble.name.endswith("fails") and "<locals>" not in trouble.name
    assert failures(loops, trouble.name) == 1


def test_links_and_capacities_are_found_though_a_round_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    def scenario(hub: SimulatedHub) -> None:
        world = DiscoveredWorld(hub, monkeypatch, switches=4, ports=4, absent=(1, 2, 3, 4))
        world.app.probing.tick = Once(world.app.probing.tick)
        eventlet.sleep(1)
        asked: list[str] = []
        monkeypatch.setattr("speedwell.controller.topology.capacity_reader.read_capacities",
                            lambda database, refuse: asked.append(database.dpid) or {1: 5e6})
        monkeypatch.setattr("speedwell.controller.topology.capacity_reader.limit_packet_ins", lambda *_: False)
        world.app._capacities._due = FailsOnce(world.app._capacities._due)
        for number in range(1, 5):
            world.connect(number)
        eventlet.sleep(10)
        assert len(world.state.links) == 16 and len(set(asked)) == 4
        assert names(world.app.loops) == ["link probes", "port capacities"]

    run_simulated(scenario)


class FailsOnce(dict[Any, Any]):
    """A dictionary whose items cannot be had the first time."""

    has_failed = False

    def items(self) -> Any:
        if not self.has_failed:
            self.has_failed = True
            raise RuntimeError("dictionary changed size during iteration")
        return super().items()


def test_tables_are_planned_and_audited_though_a_round_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    def scenario(hub: SimulatedHub) -> None:
        world = World(hub, monkeypatch)
        world.app.planner.update = Once(world.app.planner.update)
        world.app._tables.installed.audit = Once(world.app._tables.installed.audit)
        world.app.plan_anew()
        assert world.app.wait_until_synced(30)
        eventlet.sleep(300)
        for name in ("table sync", "table audit"):
            assert failures(world.app.loops, name) == 1
        switch = world.network.switches[world.paths()[0].nodes[1]]
        before = dict(switch.flows)
        switch.flows.popitem()
        eventlet.sleep(130)
        assert switch.flows == before

    run_simulated(scenario)


@pytest.mark.parametrize(("method", "name"), [
    ("apply", "coflow schedule"), ("book.expire", "coflow expiry")])
def test_coflows_are_served_though_a_round_failed(
        method: str, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def scenario(hub: SimulatedHub) -> None:
        site = Site(hub, monkeypatch, tmp_path)
        owner: Any = site.coflows
        for part in method.split(".")[:-1]:
            owner = getattr(owner, part)
        function = method.rpartition(".")[2]
        calls: list[float] = []
        monkeypatch.setattr(owner, function, Once(getattr(owner, function)))
        site.keep_reporting(10, 20 * MB)
        assert len(site.entries) == 1, calls
        eventlet.sleep(60)
        assert site.entries == [] and len(site.coflows.book) == 0
        assert failures(site.coflows.loops, name) == 1

    run_simulated(scenario)


def test_reports_are_taken_though_one_could_not_be(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(KEY)
    coflows = Controller(coflow_key_file=tmp_path / "key", coflow_port=0).coflows
    taken: list[bytes] = []
    coflows.receive = Once(taken.append)
    coflows.start()
    assert coflows.address is not None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        wait_until(lambda: sender.sendto(b"report", coflows.address) and taken)
    assert names(coflows.loops) == ["coflow reports"]
    coflows.loops.stop()


def test_queues_are_looked_after_though_a_round_failed() -> None:
    controller = Controller(queues="mincof")
    queues = controller.queues
    sliced: list[str] = []
    queues._slice = sliced.append
    queues._due = FailsOnce({"0000000000000001": 0.0})
    queues.start()
    wait_until(lambda: sliced)
    assert names(queues.loops) == ["port queues"]
    queues.loops.stop()


def test_health_tells_what_is_in_trouble() -> None:
    controller = Controller()
    controller.measurements.complete_at = time.monotonic()
    assert controller.ask("GET", "/v1/health").json["status"] == "ok"
    controller.rest_api.loops.spawn(Once(lambda: None)).wait()
    health = controller.ask("GET", "/v1/health").json
    assert health["status"] == "degraded"
    assert [(each["name"], each["problem"]) for each in health["troubles"]] == [
        ("Once", "RuntimeError: for once")]
    assert 'speedwell_loop_failures_total{name="Once"} 1.0' in controller.ask("GET", "/metrics").text


# --- the real process, out of file descriptors ---


@pytest.mark.parametrize(("door", "name"), [("openflow", "switch connections"), ("rest", "REST connections")])
def test_a_controller_that_ran_out_of_file_descriptors_accepts_again(door: str, name: str) -> None:
    with controller_process() as process:
        assert process.get("/v1/health")["troubles"] == []
        descriptors = Path(f"/proc/{process.pid}/fd")
        limit = len(list(descriptors.iterdir())) + 4
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (limit, 4096))
        with closing(HTTPConnection(*process.rest, timeout=10)) as asker, ExitStack() as crowd:
            assert health_over(asker)["status"] == "empty"      # its connection is open from here on
            for _ in range(10):
                crowd.enter_context(socket.create_connection(getattr(process, door)))
            # some of them wait in the kernel
            until(lambda: len(list(descriptors.iterdir())) >= limit)
            until(lambda: f"{name} failed" in process.log)
            until(lambda: health_over(asker)["status"] == "degraded")
        health = until(lambda: process.get("/v1/health"))
        # whoever asks over REST at that moment may have met the other door shut too
        assert health["status"] == "degraded" and name in [each["name"] for each in health["troubles"]]
        assert all("Too many open files" in each["problem"] for each in health["troubles"])
        with socket.create_connection(process.openflow, timeout=10) as switch:
            assert switch.recv(2)[1] == 0      # OpenFlow's hello


def health_over(connection: HTTPConnection) -> Any:
    connection.request("GET", "/v1/health")
    answer = connection.getresponse()
    assert answer.status == 200
    return json.loads(answer.read())


def wait_until(condition: Callable[[], Any], seconds: float = 20.0) -> None:
    """As `until`, for what green threads do."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        eventlet.sleep(0.02)
