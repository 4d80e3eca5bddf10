"""The coflow policies themselves on the Facebook trace, one big switch: beside what others publish of it.

`big_switch` says what holds there. Points are the rules by which policies decide.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from speedwell.controller.policy.coflows.coflow import CoflowScheduler
from speedwell.controller.policy.coflows.coflow_comparators import Aalo
from speedwell.controller.policy.network.graph import Network
from speedwell.evaluation.experiment import Choices, Experiment
from speedwell.evaluation.papers.mincof import CoflowMethod, method_of, scheduler
from speedwell.sim.big_switch import run
from speedwell.sim.coflow_trace import CoflowTrace, read_coflows
from speedwell.sim.errors import InvalidSetting

PORT_BPS = 1e9
QUICK_COFLOWS = 60
"""All of them have ended when the next one comes."""
COFLOWSIMS_AALO = CoflowMethod("Aalo, strict queues", "aalo")
METHODS = (CoflowMethod("Varys", "varys"), CoflowMethod("Aalo", "aalo"), COFLOWSIMS_AALO,
           CoflowMethod("Sincronia", "sincronia"), CoflowMethod("coflow-plus", "coflow-plus"),
           CoflowMethod("fair sharing", "fair"))
EVENTS, OFTEN = "arrivals and ends of coflows", "reports and ends of flows too"
PUBLISHED = {"Varys": (23.185, "Ximulator"), "Aalo, strict queues": (45.080411, "coflowsim's DARK"),
             "fair sharing": (58.791, "true max-min shares")}
"""Means of the whole trace in seconds, by decisions at arrivals and ends of coflows."""
CHOSEN = {"queues": "on all ports, by the policy: three, or eight priorities", "decisions": "take no time",
          "Aalo": "ten queues that share by the weights 10 to 1; `strict` one before the next, as in coflowsim"}


@dataclass(frozen=True)
class Rules:
    name: str
    x: float
    often: bool


@dataclass(frozen=True)
class FacebookTask:
    """One run. `coflows`: the first so many of the trace, None for all."""

    point: Rules
    method: CoflowMethod
    seed: int
    trace: Path
    coflows: int | None

    def parameters(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {"point": self.point.name, "x": self.point.x, "method": {"name": self.method.name}, "seed": self.seed,
                "trace": self.trace.name, "coflows": self.coflows}


def _task(point: Rules, method: CoflowMethod, seed: int, choices: Choices) -> FacebookTask:
    if choices.trace is None:
        raise InvalidSetting("trace: name the file of a coflow-benchmark trace, such as FB2010-1Hr-150-0.txt of "
                             "https://github.com/coflow/coflow-benchmark")
    return FacebookTask(point, method, seed, choices.trace, QUICK_COFLOWS if choices.quick else None)


@cache
def _trace(path: Path) -> CoflowTrace:
    return read_coflows(path)


def run_task(task: FacebookTask) -> dict[str, Any]:
    """One run as a JSON object: mean and 95th percentile of the coflows' completion times in seconds."""
    trace = _trace(task.trace)
    ended = run(replace(trace, coflows=trace.coflows[:task.coflows]), PORT_BPS,
                lambda network: _scheduler(task.method, network), task.point.often)
    seconds = list(ended.values())
    return {"task": task.parameters(), "mean_seconds": float(np.mean(seconds)),
            "p95_seconds": float(np.percentile(seconds, 95)), "counted": len(seconds)}


def _scheduler(method: CoflowMethod, network: Network) -> CoflowScheduler:
    return Aalo(network, strict=True) if method == COFLOWSIMS_AALO else scheduler(method.policy, network)


EXPERIMENTS = {"mincof-facebook": Experiment(
    title="The Facebook trace on one switch, by when policies decide", x_label="decisions at", base="fair sharing",
    runs=1, quick_runs=1, quick_points=(0,), points=(Rules(EVENTS, 0, False), Rules(OFTEN, 1, True)), methods=METHODS,
    task=_task, run=run_task, method_of=method_of, chosen=CHOSEN, bounds={}, normalised=True, needs="--trace FILE",
    claims_of="Published by others",
    claims=tuple(f"{method} {seconds} s ({source})" for method, (seconds, source) in PUBLISHED.items()),
    palette=tuple(method.name for method in METHODS), minutes=60, quick_minutes=0.3,
    facts=lambda tasks: {"port_bps": PORT_BPS})}
