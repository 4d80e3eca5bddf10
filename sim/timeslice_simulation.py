"""XCo's setups (figures 1 and 5): hosts behind gates, a scheduler that runs a timeslice policy, one port for all.

What is simulated: frames, the port's buffer, TCP's windows and timeouts, reports and directives that take their way
and come into force late. What is not: the other links (each carries what its host sends), acknowledgements' own load,
the processors of hosts. The policy is the very object that a scheduler runs.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import NamedTuple

import numpy as np

from speedwell.controller.policy.network.graph import Network
from speedwell.controller.policy.registry import POLICIES, Kind
from speedwell.controller.policy.timeslices.timeslice_policy import Directives, TimeslicePolicy
from speedwell.sim import shallow_switch as port

HOST_BPS = 1e9


class Traffic(NamedTuple):
    """What a host sends, as so many flows: of a kind of `shallow_switch`, in parts of so many frames (a stripe, a
    short flow, a UDP message), UDP at this part of the host's rate, in turns of so many seconds on and off."""

    kind: int
    flows: int = 1
    part: int = 44
    rate: float = 1.0
    turn_seconds: float = 0.0
    first_turn: bool = True
    total_frames: int = port.NEVER


@dataclass(frozen=True, kw_only=True)
class Setup:
    """The hosts' traffic to one receiver; or with `uplink_rate`, in rates of a host, each to its own, over it."""

    traffic: tuple[Traffic, ...]
    uplink_rate: int = 0
    frame_bytes: int = 1500

    @property
    def slot_seconds(self) -> float:
        return 8 * self.frame_bytes / HOST_BPS

    def network(self) -> Network:
        network = Network()
        network.add_switch("a")
        if self.uplink_rate:
            network.add_switch("b")
            for ends in (("a", "b"), ("b", "a")):
                network.add_link(*ends, self.uplink_rate * HOST_BPS)
        pairs = [self.pair(host) for host in range(len(self.traffic))]
        attached = [(source, "a") for source, _ in pairs]
        for host, switch in attached + [(receiver, "b" if self.uplink_rate else "a") for _, receiver in pairs]:
            network.add_host(host)
            network.add_link(host, switch, HOST_BPS)
            network.add_link(switch, host, HOST_BPS)
        return network

    def pair(self, host: int) -> tuple[str, str]:
        return f"s{host:02}", f"r{host:02}" if self.uplink_rate else "r"


@dataclass(frozen=True)
class Conditions:
    """Times in seconds, the same for all methods.

    * rtt: ping without load; opening: TCP's timeout for the frame that opens a connection, before RFC 6298.
    * buffer: the port's, as time of the port; window: what a TCP connection may have under way.
    * control: a report's or a directive's way; late: the mean by which a host's timer is late (exponential).
    * hysteresis: how long a host with nothing to send keeps its slice. Longer than a round trip, as TCP that begins
      waits for one.
    * burst: by how much a rate limit's token bucket may be ahead; think: what passes before each striped block.
    """

    rtt: float = 86e-6
    rto: float = 0.2
    opening: float = 3.0
    buffer: float = 1e-3
    window_bytes: int = 256 * 1024
    control: float = 43e-6
    late: float = 20e-6
    hysteresis: float = 100e-6
    burst: float = 1e-3
    think: float = 0.0


@dataclass(frozen=True)
class Coordination:
    """A timeslice policy, and whether hosts give up what they do not need (the paper's work conservation)."""

    policy: str
    slice_seconds: float = 0.01
    conserves: bool = True


class TimesliceSimulation:
    """One setup under one method; None lets everybody send. Every draw comes of the seed."""

    def __init__(self, setup: Setup, conditions: Conditions, coordination: Coordination | None, seconds: float,
                 seed: int) -> None:
        self._setup, self._conditions, self._coordination = setup, conditions, coordination
        self._random = Random(f"hosts {seed}")
        self._slot = setup.slot_seconds
        self.state = _state(setup, conditions, coordination, seconds, self._random)
        port.seed_chance(seed)
        self._policy: TimeslicePolicy | None = None
        if coordination is not None:
            self._policy = POLICIES.make(Kind.TIMESLICES, coordination.policy, setup.network(),
                                         coordination.slice_seconds)
        self._coming: list[tuple[float, int, Callable[[], None]]] = []
        self._count = count()
        self._host_of = {setup.pair(host)[0]: host for host in range(len(setup.traffic))}

    @property
    def now(self) -> float:
        """Seconds."""
        return float(self.state.counters[port.CLOCK] * self._slot)

    def run(self, until_seconds: float) -> None:
        """Go on until then."""
        while self.now < until_seconds:
            ends = self._policy.next_end if self._policy is not None else math.inf
            stop = min(until_seconds, self._coming[0][0] if self._coming else math.inf, ends)
            report = port.advance(self.state, math.ceil(stop / self._slot - 1e-6))
            if report:
                self._later(self._conditions.control, self._report(abs(report) - 1, report > 0))
            while self._coming and self._coming[0][0] <= self.now + 1e-9:
                heapq.heappop(self._coming)[2]()
            if self._policy is not None and self._policy.next_end <= self.now + 1e-9:
                self._send(self._policy.slice_ended(self.now))

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._coming, (self.now + seconds, next(self._count), action))

    def _report(self, host: int, has_backlog: bool) -> Callable[[], None]:
        def hear() -> None:
            assert self._policy is not None
            source, destination = self._setup.pair(host)
            if has_backlog:
                self._send(self._policy.backlogged(source, [destination], self.now))
            else:
                self._send(self._policy.given_up(source, destination, self.now))

        return hear

    def _send(self, directives: Directives) -> None:
        for source, rates_bps in directives.items():
            late = self._random.expovariate(1 / self._conditions.late)
            self._later(self._conditions.control + late, self._obey(self._host_of[source], rates_bps))

    def _obey(self, host: int, rates_bps: dict[str, float]) -> Callable[[], None]:
        def obey() -> None:
            gate = self.state.hosts[host]
            if gate["reported"]:        # who has given up meanwhile asks anew
                gate["rate"] = rates_bps.get(self._setup.pair(host)[1], 0.0) / HOST_BPS
                gate["depth"] = 1.0 + gate["rate"] * self._conditions.burst / self._slot
                gate["credit"] = min(gate["credit"], gate["depth"]) if gate["rate"] else 0.0

        return obey


def _state(setup: Setup, conditions: Conditions, coordination: Coordination | None, seconds: float,
           random: Random) -> port.State:
    slot = setup.slot_seconds

    def slots(duration: float) -> int:
        return max(round(duration / slot), 1)

    window = conditions.window_bytes // setup.frame_bytes
    per_slot = max(setup.uplink_rate, 1)
    number = sum(traffic.flows for traffic in setup.traffic)
    flows, hosts = np.zeros(number, port.FLOW), np.zeros(len(setup.traffic), port.HOST)
    state = port.State(
        np.zeros(10, np.int64), flows, hosts, np.zeros((number, 4 * window), np.bool_),
        np.zeros((slots(conditions.buffer) * per_slot, 2), np.int64), np.zeros((port.ACKS, 3), np.int64),
        np.zeros((math.ceil(seconds * 1e3) + 1, 2), np.int64), per_slot, window, slots(conditions.rtt),
        slots(conditions.rto), slots(conditions.opening), slots(conditions.think) if conditions.think else 0,
        port.NEVER if coordination and not coordination.conserves else slots(conditions.hysteresis),
        slots(1e-3), coordination is not None)
    flow = 0
    for host, traffic in enumerate(setup.traffic):
        hosts[host] = np.zeros((), port.HOST)
        hosts[host]["first"], hosts[host]["flows"] = flow, traffic.flows
        hosts[host]["rate"], hosts[host]["depth"] = float(coordination is None), 1.0
        for each in flows[flow:flow + traffic.flows]:
            each["kind"], each["host"], each["part"] = traffic.kind, host, traffic.part
            each["begin"] = int(random.uniform(0, 0.01) / slot)
            each["cwnd"], each["ssthresh"] = port.INITIAL_WINDOW, window
            each["rto"], each["deadline"], each["recover"] = state.rto, port.NONE, port.NONE
            each["rate"], each["message"] = traffic.rate, port.NONE
            each["on"] = int(traffic.turn_seconds / slot)
            each["shift"] = 0 if traffic.first_turn else each["on"]
            each["limit"] = {port.BULK: traffic.total_frames, port.STRIPED: traffic.part}.get(
                traffic.kind, 0 if traffic.rate < 1 or traffic.kind == port.SHORT else port.NEVER)
        if traffic.kind == port.SHORT:
            for each in range(flow, flow + traffic.flows):
                port.open_connection(state, each)
        flow += traffic.flows
    state.counters[port.STRIPES_LEFT] = sum(traffic.kind == port.STRIPED for traffic in setup.traffic)
    return state
