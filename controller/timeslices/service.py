"""The scheduler's loop: datagrams of agents in, directives and classes out, by what the controller says."""

from __future__ import annotations

import logging
import secrets
import select
import socket
import time
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import replace

from speedwell.coflow.report import Flow
from speedwell.controller.policy.errors import PolicyError
from speedwell.controller.timeslices.standby import FirstScheduler
from speedwell.controller.timeslices.turns import Sending, TurnKeeper, later
from speedwell.controller.timeslices.watches import ClassWatch, NetworkWatch
from speedwell.fs import systemd
from speedwell.fs.controller import Controller
from speedwell.host_agent.channel import (
    MAX_DATAGRAM_BYTES,
    MAX_FLOWS,
    BacklogReport,
    FlowClass,
    Registration,
)
from speedwell.host_agent.errors import InvalidDatagram
from speedwell.host_agent.session import SchedulerEnd

TELL_SECONDS = 1.0
"""Between two times that the controller is told turns, and agents classes."""
MAX_TURNS = 256
"""Of which the controller is told."""
BATCH = 256
"""Datagrams that are read before slices have their turn again."""
log = logging.getLogger(__name__)


class TurnService:
    """`run` until `stop`. Counters are for metrics."""

    def __init__(self, keeper: TurnKeeper, master_key: bytes, slice_seconds: float, address: tuple[str, int],
                 controller: Controller, first: FirstScheduler | None = None) -> None:
        """While `first` is there, agents are its own. Raises OSError for an address that cannot be had."""
        self.keeper = keeper
        self.watch = watch = NetworkWatch(controller)
        self._classes = ClassWatch(controller, self._wake_up)
        self._told_classes: dict[Flow, FlowClass] = {}
        self._classes_due = 0.0
        self._network, self._paths = watch.network, watch.paths
        self._first = first
        self._end = SchedulerEnd(master_key, round(slice_seconds * 1e6))
        self._channel = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._channel.bind(address)
        self._places: dict[str, tuple[str, int]] = {}
        self._waking, self._wake = socket.socketpair()
        self._waking.setblocking(False)
        self._wake.setblocking(False)
        self._is_stopped = False
        self._told_at = 0.0
        self.counts: Counter[str] = Counter()

    @property
    def address(self) -> tuple[str, int]:
        host, port = self._channel.getsockname()
        return host, port

    @property
    def stands_by(self) -> bool:
        """Whether another one gives turns."""
        return self._first is not None and self._first.is_there

    @property
    def refused(self) -> Counter[str]:
        """Datagrams, by reason."""
        return self._end.refused

    def stop(self, *_: object) -> None:
        """End `run`, from any thread or a signal's handler."""
        self._is_stopped = True
        self._wake_up()

    def _wake_up(self) -> None:
        with suppress(BlockingIOError):
            self._wake.send(b"x")

    def run(self) -> None:
        """Returns once it is stopped: then leases run out, and everything flows."""
        self.watch.start()
        self._classes.start()
        if self._first is not None:
            self._first.start()
        due = passed_at = 0.0
        watchdog = systemd.Watchdog()
        while not self._is_stopped:
            watchdog.beat(time.monotonic())
            wait = max(0.0, due - time.monotonic())
            readable, _, _ = select.select([self._channel, self._waking], [], [], wait)
            try:
                if self._waking in readable:
                    self._waking.recv(BATCH)
                if self._channel in readable:
                    self._hear()
                if (now := time.monotonic()) >= due:
                    passed_at = now
                    self._pass_time()
                self._tell_classes(time.monotonic())
            except (PolicyError, OSError):
                self.counts["failures"] += 1
                log.exception("a turn failed")
            due = self.keeper.due(passed_at)    # not from now: agents that report more often would put it off
        self._channel.close()

    def _hear(self) -> None:
        for _ in range(BATCH):
            try:
                datagram, place = self._channel.recvfrom(MAX_DATAGRAM_BYTES + 1)
            except BlockingIOError:
                return
            if self.stands_by:
                continue
            match self._end.take(datagram):
                case Registration() as registration:
                    if welcome := self._end.welcome(registration, secrets.randbits(63) + 1, time.monotonic()):
                        self._send(welcome, place)
                case BacklogReport() as report:
                    self.counts["reports"] += 1
                    self._places[report.agent] = place
                    now = time.monotonic()
                    self._tell(self.keeper.reported(report, now), now)

    def _pass_time(self) -> None:
        now = time.monotonic()
        if self.watch.network is not self._network:
            self._network = self.watch.network
            self._tell(self.keeper.network_changed(self._network, now), now)
        if self.watch.paths is not self._paths:
            self._paths = self.watch.paths
            self._tell(self.keeper.pinned(self._paths, now), now)
        self.keeper.ranked(self.watch.ranks)
        self.watch.pin(self.keeper.pairs)
        if now - self._told_at >= TELL_SECONDS and not self.stands_by:
            self._told_at = now
            self.watch.turns = self.keeper.state(now, MAX_TURNS)
        self._tell(self.keeper.pass_time(now), now)
        for agent in self._places.keys() - set(self.keeper.agents):
            log.warning("agent %s is silent, and forgotten", agent)
            self._end.forget(agent)
            del self._places[agent]

    def _tell_classes(self, now: float) -> None:
        """At once what is new, and all of it again each second, as datagrams get lost and agents begin anew.

        Flows that are ranked no more keep their class for a lease: with the next coflow of the same connection they
        would have it back, and its packets overtake those that wait in the last class."""
        before, classes = self._told_classes, self._classes.classes
        is_due = now >= self._classes_due
        if classes is before and not is_due:
            return
        self._told_classes = classes
        told = {flow: replace(before[flow], pacing_bps=0) for flow in before.keys() - classes.keys()} | classes
        if is_due:
            self._classes_due = now + TELL_SECONDS
        else:
            told = {flow: each for flow, each in told.items() if before.get(flow) != each}
        of_agent: defaultdict[str, list[FlowClass]] = defaultdict(list)
        for flow, each in told.items():
            if flow.source in self._places:
                of_agent[flow.source].append(each)
        for agent, flows in of_agent.items():
            for first in range(0, len(flows), MAX_FLOWS):
                with suppress(InvalidDatagram):     # it registers anew: then all of it is told again
                    self._send(self._end.flow_classes(agent, flows[first:first + MAX_FLOWS]), self._places[agent])

    def _tell(self, sending: Sending, decided_at: float) -> None:
        for agent, turns in sending:
            passed = round((time.monotonic() - decided_at) * 1e6)
            try:
                self._send(self._end.directive(agent, [later(each, passed) for each in turns]), self._places[agent])
                self.counts["directives"] += 1
            except InvalidDatagram as error:
                self.counts["failures"] += 1
                log.warning("%s is not told its turns: %s", agent, error)

    def _send(self, datagram: bytes, place: tuple[str, int]) -> None:
        try:
            self._channel.sendto(datagram, place)
        except OSError:         # an agent that is away: its leases run out, and it registers anew
            self.counts["unsent"] += 1
