"""Coflows on a real fabric: `speedwell coflow` reports, the controller schedules, switches enforce, and what dies."""

from __future__ import annotations

import itertools
import re
import socket
import subprocess
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from speedwell.cluster.processes import program
from speedwell.coflow.report import Flow, FlowReport, Report, encode
from speedwell.coflow.reporter import FlowProgress, Reporter
from speedwell.coflow.settings import DEFAULT_PORT, scheduler
from speedwell.controller.switches.entries import COOKIE_MASK
from speedwell.controller.switches.layout import COOKIE_FLOWS
from speedwell.controller.tables.meters import own_range
from speedwell.topo.fabric import spine_leaf
from tests.integration.controller.northbound import MACHINE, Northbound, northbound
from tests.waiting import wait_until

pytestmark = pytest.mark.root

LINK_BPS = 20e6
LIFETIME_SECONDS = 6
ENDLESS_BYTES = 2_000_000_000
SETTINGS = f"""
queues = "mincof"
coflow_host = "{MACHINE}"
coflow_lifetime_seconds = {LIFETIME_SECONDS}
coflow_expiry_seconds = 3.0
probe_interval_seconds = 0.4
echo_interval_seconds = 0.5
echo_misses = 2
"""
PORT = 7300
LOWEST = own_range(1 << 18, 1).start
"""The lowest meter number for flows at a switch with Open vSwitch's userspace datapath."""


class Transfers(Northbound):
    """A fabric on which files are sent as coflows."""

    key_file: Path
    sent = 0
    sending: list[subprocess.Popen[bytes]]

    def receive(self, host: str) -> Path:
        """Start a receiver on a host; its files go into the directory returned."""
        directory = self.directory / f"received-{host}"
        log = self.directory / f"recv-{host}.log"
        self.emulation.popen(host, [program("speedwell"), "coflow", "recv", "--forever", "--listen",
                                    f"0.0.0.0:{PORT}", "--directory", str(directory)], log)
        wait_until(lambda: b"ready" in log.read_bytes(), 20, f"{host} does not receive")
        return directory

    def send(self, source: str, target: str, size_bytes: int, *, flows: int = 2, coflow_id: str | None = None,
             reported: bool = True) -> subprocess.Popen[bytes]:
        Transfers.sent += 1
        path = self.directory / f"file-{Transfers.sent}"
        with path.open("wb") as file:
            file.truncate(size_bytes)
        options = ["--scheduler", MACHINE, "--key-file", str(self.key_file)] if reported else []
        options += ["--coflow-id", coflow_id] if coflow_id else []
        process = self.emulation.popen(source, [program("speedwell"), "coflow", "send", str(path),
                                                f"{self.ip(target)}:{PORT}", "--flows", str(flows), *options],
                                       self.directory / f"send-{Transfers.sent}.log")
        self.sending.append(process)
        return process

    def goes_on_and_leaves_nothing(self, sending: subprocess.Popen[bytes], source: str = "r0h0",
                                   target: str = "r1h0") -> None:
        """More bytes of an endless transfer arrive, until it is ended."""
        leaf = self.fabric.edge_switch_of(target).name
        before = self.sent_bytes(leaf, target)
        wait_until(lambda: self.sent_bytes(leaf, target) > before + 1_000_000, 30,
                   f"the transfer from {source} to {target} stands still")
        assert sending.poll() is None
        for process in self.sending:
            process.kill()
            process.wait()
        self.sending.clear()
        self.wait_until_empty()

    def coflows(self) -> list[dict[str, Any]]:
        return [self.get(f"/v1/coflows/{each['id']}") for each in self.get("/v1/coflows")["coflows"]]

    def placed(self, flows: int) -> list[dict[str, Any]]:
        """The members of all coflows, once so many are in the switches."""
        def found() -> list[dict[str, Any]]:
            members = [flow for coflow in self.coflows() for flow in coflow["members"]]
            return members if len(members) == flows and all(flow["state"] == "placed" for flow in members) else []

        return wait_until(found, 30, f"{flows} flows are not placed")

    def entries(self) -> list[str]:
        """What the switches themselves hold for coflows."""
        return [line for switch in self.fabric.switches for line in self.emulation.ovs_ofctl(
            switch.name, "dump-flows", f"cookie={COOKIE_FLOWS:#x}/{COOKIE_MASK:#x}").splitlines()
            if "cookie=" in line]

    def meters(self) -> list[str]:
        """The meters of flows; those that limit what hosts have handed up count packets."""
        return [line for switch in self.fabric.switches
                for line in self.emulation.ovs_ofctl(switch.name, "dump-meters").splitlines()
                if "meter=" in line and "kbps" in line]

    def cookies(self) -> set[str]:
        """What tells entries apart that the controller made at different times."""
        return {line.split("cookie=")[1].split(",")[0] for line in self.entries()}

    def is_connected(self, switch: str) -> bool:
        [found] = [each for each in self.get("/v1/switches")["switches"] if each["name"] == switch]
        return bool(found["connected"])

    def outcomes(self) -> set[str]:
        """What was made of reports so far, by the controller's count."""
        return set(re.findall(r'speedwell_coflow_reports_total{outcome="(\S+)"} [1-9]',
                              self.ask("GET", "/metrics").text))

    def wait_until_empty(self) -> None:
        wait_until(lambda: not self.get("/v1/coflows")["coflows"], 30, "coflows do not end")
        wait_until(lambda: not self.entries() and not self.meters(), 30, "entries or meters are left")


@pytest.fixture(scope="module")
def fabric(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Transfers]:
    directory = tmp_path_factory.mktemp("coflows")
    (directory / "key").write_bytes(b"a key of good length")
    description = spine_leaf(leaves=2, spines=2, hosts_per_leaf=2, host_bps=LINK_BPS, oversubscription=1)
    settings = SETTINGS + f'coflow_key_file = "{directory / "key"}"\n'
    with northbound(description, directory, settings, Transfers, queues=True) as running:
        running.key_file, running.sending = directory / "key", []
        running.meet_all_hosts()
        for host in ("r1h0", "r1h1"):
            running.receive(host)
        yield running


def test_a_transfer_is_scheduled_while_it_runs_and_leaves_nothing(fabric: Transfers) -> None:
    sending = fabric.send("r0h0", "r1h0", 10_000_000)
    members = fabric.placed(2)
    assert {flow["queue"] for flow in members} == {"scheduled"} and all(flow["rate_bps"] for flow in members)
    assert sum(flow["rate_bps"] for flow in members) <= LINK_BPS * 1.01
    assert len(fabric.meters()) == len(fabric.get("/v1/meters")["meters"]) == 2
    assert all("meter:" in entry and "load:0x1->NXM_NX_REG1[" in entry for entry in fabric.entries())
    assert sending.wait(60) == 0
    fabric.wait_until_empty()
    assert (fabric.directory / "received-r1h0" / f"file-{Transfers.sent}").stat().st_size == 10_000_000


def test_a_metered_transfer_reaches_nine_tenths_of_its_rate(fabric: Transfers) -> None:
    fabric.wait_until_empty()
    sending = fabric.send("r0h0", "r1h0", 12_000_000)
    rate_bps = sum(flow["rate_bps"] for flow in fabric.placed(2))
    samples: list[tuple[float, int]] = []
    while sending.poll() is None:
        samples.append((time.monotonic(), fabric.sent_bytes("leaf1", "r1h0")))
        time.sleep(0.1)
    best_bps = max((last - first) * 8 / (end - begin) for (begin, first), (end, last)
                   in itertools.combinations(samples, 2) if end - begin > 1.5)
    assert best_bps > 0.85 * rate_bps
    fabric.wait_until_empty()


def test_two_processes_share_one_coflow(fabric: Transfers) -> None:
    coflow_id = "c" * 32
    sending = [fabric.send(f"r0h{number}", f"r1h{number}", 20_000_000, coflow_id=coflow_id) for number in (0, 1)]
    members = fabric.placed(4)
    assert [coflow["id"] for coflow in fabric.coflows()] == [coflow_id]
    assert len({flow["source"] for flow in members}) == 2
    assert [process.wait(60) for process in sending] == [0, 0]
    fabric.wait_until_empty()


def test_a_deleted_coflow_goes_on_without_a_schedule(fabric: Transfers) -> None:
    sending = fabric.send("r0h0", "r1h0", ENDLESS_BYTES)
    fabric.placed(2)
    [coflow] = fabric.coflows()
    assert fabric.ask("DELETE", f"/v1/coflows/{coflow['id']}").status_code == 204
    wait_until(lambda: not fabric.entries() and not fabric.meters(), 10, "the schedule stays")
    fabric.goes_on_and_leaves_nothing(sending)


def test_a_sender_that_is_killed_is_forgotten(fabric: Transfers) -> None:
    sending = fabric.send("r0h0", "r1h0", ENDLESS_BYTES)
    fabric.placed(2)
    sending.kill()
    fabric.wait_until_empty()


def test_a_leaf_that_restarts_in_the_middle_gets_its_schedule_back(fabric: Transfers) -> None:
    sending = fabric.send("r0h0", "r1h0", ENDLESS_BYTES)
    fabric.placed(2)
    before = fabric.meters()
    fabric.emulation.kill_switch("leaf0")
    fabric.emulation.start_switch("leaf0")
    wait_until(lambda: len(fabric.entries()) == 2 and len(fabric.meters()) == len(before), 20,
               "the schedule is not back")
    fabric.goes_on_and_leaves_nothing(sending)


def test_a_leaf_that_loses_the_controller_for_a_while_keeps_to_its_schedule(fabric: Transfers) -> None:
    sending = fabric.send("r0h0", "r1h0", ENDLESS_BYTES)
    fabric.placed(2)
    before = fabric.meters(), fabric.cookies()
    record = fabric.emulation.ovs_vsctl("leaf0", "--bare", "get", "Bridge", "br0", "controller").strip("[]\n")
    target = fabric.emulation.ovs_vsctl("leaf0", "get", "Controller", record, "target").strip()
    fabric.emulation.ovs_vsctl("leaf0", "set", "Controller", record, f'target="tcp:{MACHINE}:1"')
    wait_until(lambda: not fabric.is_connected("leaf0"), 10, "the controller does not miss the leaf")
    assert (fabric.meters(), fabric.cookies()) == before
    fabric.emulation.ovs_vsctl("leaf0", "set", "Controller", record, f"target={target}")
    wait_until(lambda: fabric.is_connected("leaf0"), 20, "the leaf does not come back")
    assert fabric.cookies() == before[1], "what runs is not disturbed"
    fabric.goes_on_and_leaves_nothing(sending)


def test_a_controller_that_starts_at_once_takes_live_coflows_over_with_their_meters(fabric: Transfers) -> None:
    sending = fabric.send("r0h0", "r1h0", ENDLESS_BYTES)
    fabric.placed(2)
    fabric.kill_controller()
    fabric.start_controller()
    fabric.placed(2)
    wait_until(lambda: len(fabric.entries()) == len(fabric.meters()) == 2, 15,
               "entries or meters of the earlier controller are left")
    fabric.goes_on_and_leaves_nothing(sending)


def test_datagrams_that_nobody_signed_or_that_are_none_schedule_nothing(fabric: Transfers) -> None:
    flow = FlowReport(Flow(fabric.ip("r0h0"), fabric.ip("r1h0"), 40000, PORT), 50_000_000)
    report = Report(b"s" * 16, 1, 1, time.time_ns() // 1000, (flow,))
    key = fabric.key_file.read_bytes()
    good = encode(report, key)
    late = encode(replace(report, sender=2, sent_at_microseconds=report.sent_at_microseconds - 60_000_000), key)
    ended = encode(replace(report, sequence=2, flows=(replace(flow, remaining_bytes=0),)), key)
    refused = {b"": "malformed", bytes(60_000): "oversized", encode(report, b"not the key that it is"): "unauthentic",
               good[:-1]: "unauthentic", late: "stale"}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sending:
        for datagram in refused:
            sending.sendto(datagram, (MACHINE, DEFAULT_PORT))
        wait_until(lambda: {"malformed", "oversized", "unauthentic", "stale"} <= fabric.outcomes(), 10,
                   "bad datagrams are not counted")
        assert fabric.coflows() == [] and fabric.entries() == []
        for datagram in (good, ended, good):
            sending.sendto(datagram, (MACHINE, DEFAULT_PORT))
        wait_until(lambda: "replayed" in fabric.outcomes(), 10, "a replay is not counted")
    fabric.wait_until_empty()


def test_meters_that_others_add_or_delete_at_a_switch_cost_no_flow_its_own(fabric: Transfers) -> None:
    def ofctl(*command: str) -> str:
        return fabric.emulation.ovs_ofctl("leaf0", *command)

    before = fabric.get("/v1/meters")["without_meter"]
    for number in (1, LOWEST):
        ofctl("add-meter", f"meter={number},kbps,band=type=drop,rate=1000")
    fabric.send("r0h0", "r1h0", ENDLESS_BYTES)
    fabric.placed(2)
    wait_until(lambda: len(fabric.meters()) == 4 and all("meter:" in entry for entry in fabric.entries()), 30,
               lambda: f"{fabric.entries()}, {fabric.meters()}")
    assert not any(f"meter:{LOWEST} " in f"{entry.replace(',', ' ')} " for entry in fabric.entries())
    ofctl("del-meters")
    second = fabric.send("r0h1", "r1h1", ENDLESS_BYTES)
    fabric.placed(4)
    scheduled = [flow for coflow in fabric.coflows() for flow in coflow["members"] if flow["queue"] == "scheduled"]
    assert len(scheduled) >= 2 and all(flow["meter"] for flow in scheduled)

    def are_all_there_again() -> bool:
        """With the deleted meters, the switch has dropped the entries that had them."""
        entries = fabric.entries()
        return len(entries) == 4 and sum("meter:" in entry for entry in entries) == len(fabric.meters())

    wait_until(are_all_there_again, 30, lambda: f"{fabric.entries()}, {fabric.meters()}")
    assert fabric.get("/v1/meters")["without_meter"] == before
    fabric.goes_on_and_leaves_nothing(second, "r0h1", "r1h1")


def test_flows_beyond_the_meters_there_may_be_go_without_one_and_end(fabric: Transfers) -> None:
    settings = fabric.settings
    fabric.stop_controller()
    fabric.settings = settings + "max_meters = 1\n"
    fabric.start_controller()
    try:
        sending = fabric.send("r0h0", "r1h0", ENDLESS_BYTES, flows=3)
        assert {flow["queue"] for flow in fabric.placed(3)} == {"scheduled"}
        assert len(fabric.meters()) == 1 and len(fabric.entries()) == 3
        assert sum("meter:" in entry for entry in fabric.entries()) == 1
        assert fabric.get("/v1/meters")["without_meter"] >= 2
        fabric.goes_on_and_leaves_nothing(sending)
    finally:
        fabric.stop_controller()
        fabric.settings = settings
        fabric.start_controller()


@pytest.mark.full
def test_no_meter_is_left_after_a_thousand_coflows(fabric: Transfers) -> None:
    address, most, live = scheduler(MACHINE, fabric.key_file), 0, 8
    with ExitStack() as stack:
        running: deque[tuple[Reporter, list[FlowProgress]]] = deque()
        for number in range(1000):
            reporter = stack.enter_context(Reporter(address))
            flows = [(Flow(fabric.ip(f"r0h{host}"), fabric.ip(f"r1h{host}"), 10_000 + number, PORT), 5_000_000)
                     for host in (0, 1)]
            running.append((reporter, reporter.add(flows)))
            if len(running) > live:
                running.popleft()[0].close()
            if number % 50 == 0:
                most = max(most, len(fabric.meters()))
    fabric.wait_until_empty()
    assert 0 < most <= 2 * (live + 2)
    highest = fabric.get("/v1/meters")
    assert highest["meters"] == [] and highest["without_meter"] == 0


def test_without_a_controller_traffic_is_best_effort_within_a_lifetime_and_the_next_one_takes_over(
        fabric: Transfers) -> None:
    sending = fabric.send("r0h0", "r1h0", ENDLESS_BYTES)
    fabric.placed(2)
    fabric.kill_controller()
    wait_until(lambda: not fabric.entries(), LIFETIME_SECONDS + 10, "entries outlive their lifetime")
    fabric.start_controller()
    members = fabric.placed(2)
    assert {flow["queue"] for flow in members} == {"scheduled"}
    assert len(fabric.entries()) == 2
    fabric.goes_on_and_leaves_nothing(sending)
