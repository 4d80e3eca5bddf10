"""The coflow application on a fabric of fake switches, in simulated time, and who reports to it."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import eventlet
import pytest

from speedwell.coflow.report import Flow, FlowReport, Report, encode
from speedwell.controller.coflows import app as coflows_module
from speedwell.controller.coflows.app import Coflows
from speedwell.controller.counters.poller import EventMeasured
from speedwell.controller.loops import Loops
from speedwell.controller.rest import RestApplication
from speedwell.controller.services import Services
from speedwell.controller.settings import Settings
from speedwell.controller.switches.layout import Priority
from tests.unit.controller.forwarding_world import DESTINATION, SOURCE, World
from tests.unit.controller.simulated_time import SimulatedHub

KEY = b"k" * 32
MB = 1_000_000
ONE = b"1" * 16
LIFETIME_SECONDS = 15


class Site(World):
    """A fabric with the coflow application, and a sender of reports."""

    def __init__(self, hub: SimulatedHub, patch: pytest.MonkeyPatch, directory: Path, policy: str = "mincof") -> None:
        super().__init__(hub, patch)
        (directory / "key").write_bytes(KEY)
        self.state.settings = Settings(coflow_key_file=directory / "key", coflow_lifetime_seconds=LIFETIME_SECONDS,
                                       coflow_policy=policy)
        patch.setattr(coflows_module, "time", SimpleNamespace(
            monotonic=hub.read, time=hub.read, thread_time=time.thread_time))
        self.sequence = itertools.count(1)
        self.coflows = self.new_application()
        eventlet.spawn(self.poll_for_ever)

    def new_application(self) -> Coflows:
        coflows = Coflows(Services(self.state, RestApplication(), Loops()))
        coflows.forwarding = self.app
        coflows.hosts = SimpleNamespace(locate=lambda host, seconds: None)
        coflows.start_loops()
        return coflows

    def flow_of(self, number: int) -> Flow:
        hosts = self.network.hosts
        return Flow(hosts[SOURCE].ip, hosts[DESTINATION].ip, 5000 + number, 6000)

    def report(self, *remaining: int, coflow_id: bytes = ONE, first: int = 0) -> bytes:
        datagram = encode(Report(coflow_id, 7, next(self.sequence), round(self.hub.now * 1e6), tuple(
            FlowReport(self.flow_of(number), left) for number, left in enumerate(remaining, first))), KEY)
        self.coflows.receive(datagram)
        return datagram

    def poll_for_ever(self) -> None:
        """The poller's part, once a second."""
        while True:
            eventlet.sleep(1)
            began_at = self.hub.now
            self.poll_flows()
            self.coflows.measured(EventMeasured(began_at))

    def keep_reporting(self, seconds: float, *remaining: int, coflow_id: bytes = ONE) -> None:
        """Report twice a second, a little less each time."""
        for step in range(round(2 * seconds)):
            self.report(*(left - step for left in remaining), coflow_id=coflow_id)
            eventlet.sleep(0.5)

    @property
    def entries(self) -> list[Any]:
        return [entry for switch in self.network.switches.values() for entry in switch.flows.values()
                if entry.priority == Priority.EXPLICIT_PATH]

    @property
    def meters(self) -> list[Any]:
        return [meter for switch in self.network.switches.values() for meter in switch.meters.values()]

    def count(self, outcome: str) -> float:
        return self.coflows.metrics.reports.labels(outcome)._value.get()
