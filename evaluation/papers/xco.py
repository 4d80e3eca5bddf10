"""XCo's evaluation (Rajanna et al., HPDC 2010, section 4): what each experiment compares, a run, the paper beside it.

All figures are parts of the link that all share. Every method meets the same hosts, buffer and seeds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from speedwell.cluster.tables import Table
from speedwell.controller.own_policies import POLICIES
from speedwell.controller.policy.registry import Kind
from speedwell.evaluation.experiment import Choices, Experiment, Result
from speedwell.evaluation.results.report import Measure, text_of
from speedwell.evaluation.results.statistics import mean_estimate
from speedwell.sim import shallow_switch as port
from speedwell.sim.timeslice_simulation import HOST_BPS, Conditions, Coordination, Setup, TimesliceSimulation, Traffic

WARM_UP_SECONDS = 1.0
LONGEST_SECONDS = 60.0
MIGRATED_BYTES = 256 * 1000 * 1000
BLOCK_BYTES = 1_000_000
TURN_SECONDS = 0.5
TCP, UDP = Traffic(port.BULK), Traffic(port.UDP)
FRAGMENT = Traffic(port.STRIPED, part=-(-256 * 1024 // 1500))
CHOSEN = {
    "buffer": "1 ms of the port: 125 KB at 1 Gbit/s; the paper does not say what its switches have",
    "slices": "10 ms, above 13 senders 2 ms: the paper has both, and a cycle stays below TCP's 200 ms",
    "TCP": "NewReno, windows of at most 256 KiB, timeout 200 ms, 3 s for the frame that opens a connection",
    "striped": "frames of 9,000 bytes; 1.4 ms pass before each block, as one server's 842 Mbit/s in the paper say",
    "incast": "256 KiB from each server at a time, frames of 1,500 bytes",
    "response": "turns of 0.5 s instead of 2 s, on six hosts instead of six machines of one host",
    "rate limits": "exactly C/n; a token bucket of 1 ms, as Linux' HTB had",
    "order": "which host is first at a full buffer is drawn anew each 44 frames in the mean: a UDP message",
    "control": "43 us each way, and timers late by 20 us in the mean; a host gives up after 100 us without a frame",
    "ping": "what waits in the port's buffer each millisecond; it is never held",
}


@dataclass(frozen=True)
class XCoMethod:
    """A timeslice policy, or None: everybody sends."""

    name: str
    policy: str | None
    conserves: bool = True


NOTHING, RATES = XCoMethod("nothing", None), XCoMethod("rate limits", "rate-limits")
XCO, PLUS = XCoMethod("xco", "xco"), XCoMethod("xco-plus", "xco-plus")
KEEPING = XCoMethod("xco, slices kept", "xco", conserves=False)
METHODS = (NOTHING, RATES, XCO, PLUS)


def method_of(policy: str) -> XCoMethod:
    """A timeslice policy under its own name. Raises UnknownPolicy."""
    return XCoMethod(policy, POLICIES.get(Kind.TIMESLICES, policy).name)


@dataclass(frozen=True)
class XCoPoint:
    """A setup, `x` its place on the axis. With `until_done` it runs until the first flow is through."""

    name: str
    x: float
    setup: Setup
    panel: str = ""
    think: float = 0.0
    until_done: bool = False


def _stripes(servers: int) -> Setup:
    stripe = Traffic(port.STRIPED, part=-(-BLOCK_BYTES // 9000 // servers))
    return Setup(traffic=(stripe,) * servers, frame_bytes=9000)


def _mix(senders: int, udp: int, uplink: int) -> XCoPoint:
    return XCoPoint(f"{udp} UDP", udp, Setup(traffic=(TCP,) * (senders - udp) + (UDP,) * udp, uplink_rate=uplink),
                    f"{senders} to {senders if uplink else 1}")


def _migration(others: int, kind: Traffic, name: str) -> XCoPoint:
    moved = Traffic(port.BULK, total_frames=MIGRATED_BYTES // 1500)
    return XCoPoint(f"{others} {name}", others, Setup(traffic=(moved, *[kind] * others)), f"beside {name}",
                    until_done=True)


def _beside_short_flows(sequences: int) -> Setup:
    short = (Traffic(port.SHORT, sequences, part=20),) if sequences else ()
    return Setup(traffic=(TCP, *short), uplink_rate=1)


def _alternating() -> Setup:
    sets = [UDP._replace(turn_seconds=TURN_SECONDS, first_turn=first) for first in (True, False)]
    return Setup(traffic=(sets[0],) * 3 + (sets[1],) * 3)


SECONDS, QUICK_SECONDS = 5.0, 2.5


@dataclass(frozen=True)
class XCoTask:
    """One run. Equal tasks give equal results."""

    point: XCoPoint
    method: XCoMethod
    seed: int
    seconds: float

    def parameters(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {"panel": self.point.panel, "point": self.point.name, "x": self.point.x, "seconds": self.seconds,
                "method": asdict(self.method), "seed": self.seed, "slice_seconds": slice_seconds(self.point.setup)}


def slice_seconds(setup: Setup) -> float:
    return 0.01 if len(setup.traffic) <= 13 else 0.002


def _task(point: XCoPoint, method: XCoMethod, seed: int, choices: Choices) -> XCoTask:
    return XCoTask(point, method, seed, QUICK_SECONDS if choices.quick else SECONDS)


def run_task(task: XCoTask) -> dict[str, Any]:
    """One run as a JSON object: parts of the link's capacity, times as their names say."""
    point, method = task.point, task.method
    coordination = method.policy and Coordination(method.policy, slice_seconds(point.setup), method.conserves)
    longest = LONGEST_SECONDS if point.until_done else task.seconds
    simulation = TimesliceSimulation(point.setup, Conditions(think=point.think), coordination or None, longest,
                                     task.seed)
    state, flows, counters = simulation.state, simulation.state.flows, simulation.state.counters
    if point.until_done:
        good_before, before = np.zeros(len(flows)), np.zeros_like(counters)
        while simulation.now < longest and flows[0]["una"] < flows[0]["limit"]:
            simulation.run(simulation.now + 0.02)
    else:
        simulation.run(WARM_UP_SECONDS)
        good_before, before = flows["good"].copy(), counters.copy()
        simulation.run(task.seconds)
    passed = counters - before
    capacity = passed[port.CLOCK] * state.per_slot
    good = (flows["good"] - good_before) / capacity
    each = np.array([good[host["first"]:host["first"] + host["flows"]].sum() for host in state.hosts])
    begin, end = (int(clock) // state.sample_slots + 1 for clock in (before[port.CLOCK], counters[port.CLOCK] - 1))
    samples = state.samples[begin:end]
    ping_ms = 1e3 * (Conditions.rtt + samples[:, 0] / state.per_slot * point.setup.slot_seconds)
    return {"task": task.parameters(), "good": float(good.sum()), "link": float(passed[port.SERVED] / capacity),
            "first": float(good[0]), "drops": float(passed[port.DROPPED] / max(passed[port.OFFERED], 1)),
            "tcp": _mean(good[flows["kind"] == port.BULK]), "udp": _mean(good[flows["kind"] == port.UDP]),
            "jain": float(each.sum() ** 2 / max(len(each) * (each ** 2).sum(), 1e-12)),
            "ping_p99_ms": float(np.percentile(ping_ms, 99)), "ping_max_ms": float(ping_ms.max()),
            "gap_ms": _longest_gap(np.diff(samples[:, 1]) < 0.5 * state.sample_slots * state.per_slot),
            "seconds": simulation.now, "timeouts": int(flows["timeouts"].sum())}


def _mean(values: Any) -> float:
    return float(values.mean()) if len(values) else 0.0


def _longest_gap(is_low: Any) -> float:
    """In milliseconds, of as many samples."""
    longest = run = 0
    for low in is_low:
        run = run + 1 if low else 0
        longest = max(longest, run)
    return float(longest)


class Claim(NamedTuple):
    """What the paper measured at a point, by method."""

    text: str
    point: str
    measure: str
    paper: Mapping[str, str]
    panel: str = ""


_NEAR = {NOTHING.name: "collapses", RATES.name: "between", XCO.name: "near 1"}
CLAIMS = {
    "xco-striped": (Claim("one server, of the link", "1 servers", "good", {NOTHING.name: "0.84"}),
                    Claim("most servers, of the link", "8 servers", "good",
                          {NOTHING.name: "0.31", RATES.name: "between", XCO.name: "best"})),
    "xco-mixed": (Claim("5 to 1, all TCP", "0 UDP", "good", {NOTHING.name: "above 0.9"}, "5 to 1"),
                  Claim("5 to 1, 2 UDP", "2 UDP", "good", _NEAR, "5 to 1"),
                  Claim("the same, each TCP flow", "2 UDP", "tcp",
                        {NOTHING.name: "negligible", XCO.name: "0.2"}, "5 to 1"),
                  Claim("13 to 13, 8 UDP", "8 UDP", "good", _NEAR, "13 to 13")),
    "xco-short-flows": (Claim("400 sequences: the long flow", "400 sequences", "first",
                              {NOTHING.name: "0.09", XCO.name: "0.43"}),
                        Claim("400 sequences: all", "400 sequences", "good",
                              {NOTHING.name: "0.28", XCO.name: "more"})),
    "xco-rtt": (Claim("longest ping, ms", "7 UDP", "ping_max_ms", {NOTHING.name: "20", XCO.name: "2"}),),
    "xco-migration": (Claim("link used beside 4 TCP", "4 TCP", "link",
                            {NOTHING.name: "below 0.5", XCO.name: "0.95"}, "beside TCP"),),
    "xco-fairness": (Claim("each TCP flow", "2 UDP", "tcp", {XCO.name: "about as UDP"}),
                     Claim("each UDP flow", "2 UDP", "udp", {XCO.name: "about as TCP"})),
    "xco-conservation": (Claim("received, of the link", "5 UDP", "good",
                               {NOTHING.name: "0.3", KEEPING.name: "above 0.5", XCO.name: "above 0.8"}),),
    "xco-response": (Claim("longest gap, ms", "3 and 3 UDP", "gap_ms", {XCO.name: "below 10"}),),
}


def beside_the_paper(name: str, results: Sequence[Result]) -> Iterable[Table]:
    """A table of ours with the paper's figures, where the paper has some."""
    methods = list(dict.fromkeys(result["task"]["method"]["name"] for result in results))
    rows = []
    for claim in CLAIMS.get(name, ()):
        runs = [result for result in results if (result["task"]["point"], result["task"]["panel"])
                == (claim.point, claim.panel)]
        cells = [claim.text]
        for method in methods:
            values = [run[claim.measure] for run in runs if run["task"]["method"]["name"] == method]
            paper = f" (paper: {claim.paper[method]})" if method in claim.paper else ""
            cells.append(text_of(mean_estimate(values)) + paper if values else "")
        rows.append(tuple(cells))
    return [Table(f"{name} beside the paper", ("", *methods), rows, tuple(methods))] if rows else []


def _facts(tasks: Sequence[XCoTask]) -> Mapping[str, object]:
    return {"host_bps": HOST_BPS, "conditions": asdict(Conditions()), "warm_up_seconds": WARM_UP_SECONDS}


# no ratios: without coordination some receive nothing
_figure = partial(Experiment, base="", bounds={}, claims=(), quick_points=(0, -1), methods=METHODS, runs=10,
                  task=_task, run=run_task, method_of=method_of, facts=_facts, chosen=CHOSEN, beside=beside_the_paper,
                  palette=tuple(method.name for method in (*METHODS, KEEPING)))
_LINK, _GOOD = Measure("link", "link used"), Measure("good", "received by programs, of the link")
_TCP_FLOW, _UDP_FLOW = Measure("tcp", "each TCP flow, of the link"), Measure("udp", "each UDP flow, of the link")
EXPERIMENTS = {
    "xco-incast": _figure(minutes=0.7, quick_minutes=0.1,
        title="Incast: 256 KiB from each server at once", x_label="servers", measures=(_GOOD,), lines=True,
        points=tuple(XCoPoint(f"{servers} servers", servers, Setup(traffic=(FRAGMENT,) * servers))
                     for servers in (5, 16, 64))),
    "xco-striped": _figure(minutes=0.3, quick_minutes=0.1,
        title="Striped reads of blocks of 1 MB (figures 2 and 12)", x_label="servers", measures=(_GOOD,), lines=True,
        points=tuple(XCoPoint(f"{servers} servers", servers, _stripes(servers), think=1.4e-3)
                     for servers in (1, 2, 4, 6, 8))),
    "xco-mixed": _figure(minutes=0.6, quick_minutes=0.1,
        title="TCP and UDP (figures 3, 4, 13, 14)", x_label="UDP senders", measures=(_GOOD, _LINK, _TCP_FLOW),
        lines=True, quick_points=(0, 2, 6, 8),
        points=(*(_mix(5, udp, 0) for udp in range(6)), *(_mix(13, udp, 10) for udp in (0, 4, 8, 13)))),
    "xco-short-flows": _figure(minutes=0.1, quick_minutes=0.1,
        title="A long TCP flow beside sequences of 30 KB (figures 6 and 15)", x_label="sequences", lines=True,
        measures=(Measure("first", "the long flow, of the link"), _GOOD),
        points=tuple(XCoPoint(f"{number} sequences", number, _beside_short_flows(number))
                     for number in (0, 25, 100, 400))),
    "xco-rtt": _figure(minutes=0.1, quick_minutes=0.1,
        title="Ping beside 13 senders on a link of ten (figures 7 and 16)", x_label="",
        measures=(Measure("ping_p99_ms", "99th percentile, ms"), Measure("ping_max_ms", "longest, ms")),
        quick_points=(0,), points=(replace(_mix(13, 7, 10), panel=""),)),
    "xco-migration": _figure(minutes=0.2, quick_minutes=0.1,
        title="Migration of 256 MB beside other senders (figure 17)", x_label="other senders", lines=True,
        measures=(Measure("seconds", "time, s"), _LINK), quick_points=(0, 4, 9), runs=5,
        points=tuple(_migration(others, kind, name) for kind, name in ((TCP, "TCP"), (UDP, "UDP"))
                     for others in range(5))),
    "xco-fairness": _figure(minutes=0.1, quick_minutes=0.1,
        title="Three TCP and two UDP flows (figure 18)", x_label="", measures=(_TCP_FLOW, _UDP_FLOW,
                                                                               Measure("jain", "Jain's index")),
        quick_points=(0,), points=(replace(_mix(5, 2, 0), panel=""),)),
    "xco-conservation": _figure(minutes=1, quick_minutes=0.1,
        title="Three UDP flows of 50 Mbit/s and two of all they can (figure 19)", x_label="", measures=(_GOOD, _LINK),
        quick_points=(0,), methods=(NOTHING, RATES, KEEPING, XCO, PLUS),
        points=(XCoPoint("5 UDP", 5, Setup(traffic=(UDP._replace(rate=0.05),) * 3 + (UDP,) * 2, uplink_rate=1)),)),
    "xco-response": _figure(minutes=0.1, quick_minutes=0.1,
        title="Two sets of three senders take turns (figure 20)", x_label="", quick_points=(0,),
        measures=(Measure("gap_ms", "longest gap, ms"), _LINK), points=(XCoPoint("3 and 3 UDP", 6, _alternating()),)),
}
EXPERIMENTS = {name: replace(experiment, papers={
    (claim.panel, claim.point, method, claim.measure): float(value) for claim in CLAIMS.get(name, ())
    for method, value in claim.paper.items() if value.replace(".", "", 1).isdigit()})
    for name, experiment in EXPERIMENTS.items()}
