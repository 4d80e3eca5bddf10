"""Hosts that vanish and programs that fail: what the coflow application keeps, in simulated time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import eventlet
import pytest

from speedwell.coflow.report import Flow, FlowReport, Report, encode
from speedwell.controller.policy.registry import POLICIES, Kind
from speedwell.controller.topology.events import EventHostChanged
from tests.unit.controller.coflow_site import KEY, LIFETIME_SECONDS, MB, Site
from tests.unit.controller.forwarding_world import DESTINATION
from tests.unit.controller.simulated_time import SimulatedHub, run_simulated


@pytest.fixture(name="run")
def _run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Callable[[Site], None]], None]:
    return lambda scenario: run_simulated(lambda hub: scenario(Site(hub, monkeypatch, tmp_path)))


@pytest.mark.parametrize("policy", [
    name for name in POLICIES.names(Kind.COFLOW) if name != "fair"])
def test_a_host_that_vanishes_takes_no_entry_of_an_unrelated_coflow_with_it(
        policy: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def scenario(hub: SimulatedHub) -> None:
        site = Site(hub, monkeypatch, tmp_path, policy)
        hosts = site.network.hosts
        other = Flow(hosts["p0r1h0"].ip, hosts["p1r0h0"].ip, 7000, 7001)

        def report_other(left: int) -> None:
            site.coflows.receive(encode(Report(b"2" * 16, 9, next(site.sequence), round(hub.now * 1e6), (
                FlowReport(other, left),)), KEY))

        site.report(20 * MB, 10 * MB)
        report_other(30 * MB)
        eventlet.sleep(0.2)
        assert len(site.entries) == 3
        host = site.state.hosts[hosts[DESTINATION].ip]
        site.state.remove_host(host.ip)
        event = EventHostChanged(host.ip, None, host)
        site.report(19 * MB, 9 * MB)                  # before anybody has planned anew
        report_other(29 * MB)
        site.report(5 * MB, coflow_id=b"3" * 16, first=5)
        site.coflows.network_changed(event)
        for step in range(2 * 3 * LIFETIME_SECONDS):
            report_other(29_000_000 - step)
            site.report(19 * MB - step, 9 * MB - step)
            eventlet.sleep(0.5)
            assert {dict(entry.match)["tcp_src"] for entry in site.entries} == {7000}
        site.state.set_host(host)
        site.coflows.network_changed(EventHostChanged(host.ip, host, None))
        for step in range(4):
            report_other(28 * MB - step)
            site.report(18 * MB - step, 8 * MB - step)
            eventlet.sleep(0.5)
        assert {dict(entry.match)["tcp_src"] for entry in site.entries} == {5000, 5001, 7000}
        assert site.coflows.loops.troubles() == []

    run_simulated(scenario)


def test_a_scheduler_that_fails_is_replaced_and_entries_stay(run: Any) -> None:
    def scenario(site: Site) -> None:
        site.keep_reporting(2, 20 * MB)
        failing = site.coflows.planner.scheduler
        failing.progress = lambda *arguments: 1 / 0
        site.keep_reporting(20, 18 * MB)
        assert site.coflows.loops.failures.labels("coflow decisions")._value.get() == 1
        assert site.coflows.planner.scheduler is not failing
        assert len(site.entries) == 1
        site.report(10 * MB, coflow_id=b"2" * 16, first=1)
        for _ in range(20):     # after a decision that took this machine long there is a longer rest
            if len(site.entries) != 2:
                eventlet.sleep(0.1)
        assert len(site.entries) == 2

    run(scenario)


def test_one_round_of_planning_is_one_plan_though_reports_come_meanwhile(run: Any) -> None:
    def scenario(site: Site) -> None:
        site.coflows.loops.stop()
        plan, plans = site.coflows.planner.plan, []

        def plan_while_reports_come(*arguments: Any) -> Any:
            plans.append(arguments)
            assert len(plans) < 10
            site.report(20 * MB - len(plans))
            return plan(*arguments)

        site.coflows.planner.plan = plan_while_reports_come
        site.report(20 * MB)
        site.coflows.plan()
        assert len(plans) == 1 and site.coflows.book.has_updates

    run(scenario)
