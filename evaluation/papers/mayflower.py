"""Figures 4 to 8 of Mayflower's evaluation (Rizvi et al., "Mayflower", section 6): what each compares.

The text leaves some of it open: see `CHOSEN`. Section 6.4 has the upper tier the more oversubscribed one, and section
6.1 varies "the higher tier links capacity", so at another ratio all links above the hosts have another rate.
docs/results/mayflower.md has what other readings give (`speedwell experiment mayflower-readings`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial

from speedwell.controller.policy.reads import mayflower_plus
from speedwell.evaluation.experiment import Choices, Experiment
from speedwell.evaluation.papers.reads import AGGREGATION_RATIO, HOST_BPS, WARM_UP, Method, Task, method_of, run_task
from speedwell.sim.simulation import Delays
from speedwell.sim.workload import Workload

RACK_LOCAL, POD_LOCAL, REMOTE, EVEN = (0.5, 0.3, 0.2), (0.3, 0.5, 0.2), (0.2, 0.3, 0.5), (0.33, 0.33, 0.33)
RATE = 0.07
CHOSEN = {
    "reads_per_server_second of figures 4, 5 and 7": "0.07, the only one that the text names",
    "split of the over-subscription": "2:1 at the edge, 4:1 above it; other ratios change the one at the edge, as "
                                      "when all links above the hosts change together",
    "files": "2000, in runs of 1000 reads: the other methods are as far behind as the text says",
    "poll_interval": "1 s",
}
"""Where the paper is silent: what is taken here, because the whole set of its claims fits best so."""


MAYFLOWER = Method("Mayflower", "mayflower", "mayflower")
SINBAD_MAYFLOWER = Method("Sinbad-R Mayflower", "sinbad-r", "mayflower")
TWO_REPLICAS = Method("Mayflower, two replicas", "mayflower", "mayflower", parts=2)
PAPER_METHODS = (
    MAYFLOWER, SINBAD_MAYFLOWER, Method("Sinbad-R ECMP", "sinbad-r", "ecmp"),
    Method("Nearest Mayflower", "nearest", "mayflower"), Method("Nearest ECMP", "nearest", "ecmp"),
)
HDFS_METHODS = (Method("HDFS Mayflower", "nearest", "mayflower"), Method("HDFS ECMP", "nearest", "ecmp"))
"""HDFS's client takes the nearest replica. In the simulator it is a policy, on the emulated fabric a real HDFS."""
OTHER_METHODS = (
    Method("Rack-aware Mayflower", "hdfs", "mayflower"), Method("Rack-aware ECMP", "hdfs", "ecmp"),
    Method("Two choices ECMP", "power-of-two-choices", "ecmp"), Method("Random ECMP", "random", "ecmp"),
)
"""More to compare with in the simulator; rack-aware is HDFS's rule as the paper puts it, which knows no pods."""
PLUS = Method("mayflower-plus", "mayflower-plus", "mayflower", parts=3)
PLUS_METHODS = (
    MAYFLOWER, TWO_REPLICAS,
    Method("exact shares", "mayflower-plus", "mayflower", patience=0, revises=False),
    Method("exact shares, 3 parts", "mayflower-plus", "mayflower", parts=3, patience=0, revises=False),
    Method("exact shares, 3 parts, re-decision", "mayflower-plus", "mayflower", parts=3, patience=0),
    Method("exact shares, turns, re-decision", "mayflower-plus", "mayflower"),
    PLUS,
)
"""What goes beyond the paper, and which of its ideas brings what."""
METHODS = (*PAPER_METHODS, *OTHER_METHODS)


@dataclass(frozen=True)
class Point:
    """Where a figure looks: `x` is the place on the axis, `rate` in reads per server and second."""

    name: str
    x: float
    rate: float = RATE
    locality: tuple[float, float, float] = RACK_LOCAL
    oversubscription: float = 8.0
    panel: str = ""
    aggregation_ratio: float = AGGREGATION_RATIO


READS, QUICK_READS = 1000, 500


def _task(point: Point, method: Method, seed: int, choices: Choices) -> Task:
    return Task(point.name, point.x, method, point.rate, point.locality, point.oversubscription,
                QUICK_READS if choices.quick else READS, seed, point.panel, point.aggregation_ratio)


def _facts(tasks: Sequence[Task]) -> Mapping[str, object]:
    return {"fabric": "three-tier, 4 pods of 4 racks of 4 hosts, 2 aggregation switches in a pod, 2 core switches",
            "host_bps": HOST_BPS, "workload": asdict(Workload()), "delays_seconds": asdict(Delays()),
            "warm_up": WARM_UP, "mayflower_plus": {
                "free": mayflower_plus.FREE, "patience": mayflower_plus.PATIENCE,
                "worth_seconds": mayflower_plus.WORTH_SECONDS}}


_figure = partial(Experiment, runs=10, quick_runs=3, task=_task, run=run_task, method_of=partial(method_of, parts=1),
                  facts=_facts, chosen=CHOSEN, emulation="speedwell.evaluation.replay.emulation:figure",
                  palette=tuple(method.name for method in (*PAPER_METHODS, TWO_REPLICAS, PLUS, *HDFS_METHODS,
                                                           *OTHER_METHODS, *PLUS_METHODS)))


def _rates(locality: tuple[float, float, float], letter: str) -> list[Point]:
    return [Point(f"{rate:g}", rate, rate, locality, panel=f"({letter}) locality {locality}")
            for rate in (0.02, 0.04, 0.06, 0.07, 0.08, 0.09, 0.10)]


def _readings() -> list[Point]:
    """8:1 and 16:1 with each way to split them, by lambda and locality."""
    splits = ((1.0, 8.0), (2.0, 4.0), (4.0, 2.0), (8.0, 1.0),
              (1.0, 16.0), (2.0, 8.0), (4.0, 4.0), (8.0, 2.0), (16.0, 1.0))
    return [Point(f"{edge:g}:1 x {above:g}:1", rate, rate, locality, edge * above,
                  f"locality {locality}, lambda {rate:g}", above)
            for locality, rate in ((RACK_LOCAL, 0.04), (RACK_LOCAL, 0.07), (RACK_LOCAL, 0.1), (REMOTE, 0.07))
            for edge, above in splits]


EXPERIMENTS = {
    "mayflower-fig4": _figure(minutes=1.4, quick_minutes=0.2,
        title="Completion times by method, locality (0.5, 0.3, 0.2)", x_label="", normalised=True,
        methods=(*METHODS, TWO_REPLICAS, PLUS), points=(Point("", 0.0),), quick_points=(0,), runs=20,
        claims=("others' average: 1.4 to 3.4 times Mayflower's", "others' 95th percentile: up to 12.4 times",
                "more than 25 % below Sinbad-R Mayflower: a ratio above 1.33",
                "two replicas at once: up to 10 % off the average (section 4.3)")),
    "mayflower-fig5": _figure(minutes=1.9, quick_minutes=0.3,
        title="Completion times by locality of the clients", x_label="(R, P, O)", normalised=True, methods=METHODS,
        points=tuple(Point(str(locality), number, locality=locality)
                     for number, locality in enumerate((RACK_LOCAL, POD_LOCAL, REMOTE, EVEN))),
        quick_points=(0, 1, 2, 3), claims=("Mayflower consistently ahead (the values are only drawn)",)),
    "mayflower-fig6": _figure(minutes=8, quick_minutes=0.4,
        title="Completion times by arrival rate", x_label="reads per server and second", lines=True, methods=METHODS,
        points=(*_rates(RACK_LOCAL, "a"), *_rates(REMOTE, "b")), quick_points=(1, 3, 5, 8, 10),
        claims=("Nearest fails at high rates, Mayflower grows little",
                "at (0.2, 0.3, 0.5) Sinbad-R ECMP is about Nearest ECMP",
                "more than 80 % below HDFS ECMP (abstract): a ratio above 5")),
    "mayflower-fig7": _figure(minutes=0.9, quick_minutes=0.1,
        title="Completion times by over-subscription", x_label="core-to-rack ratio",
        methods=(MAYFLOWER, SINBAD_MAYFLOWER), base_points={"16:1": "8:1"},
        points=tuple(Point(f"{ratio:g}:1", ratio, oversubscription=ratio) for ratio in (4.0, 8.0, 12.0, 16.0)),
        quick_points=(1, 3), runs=20, claims=("completion times almost double from 8:1 to 16:1",)),
    "mayflower-readings": _figure(minutes=4, quick_minutes=0.1,
        title="8:1 and 16:1 as the text may be read: ratio at the edge x ratio above it", x_label="split",
        methods=(MAYFLOWER, SINBAD_MAYFLOWER), points=tuple(_readings()), quick_points=(10, 11, 14, 15, 16),
        base_points={"1:1 x 16:1": "1:1 x 8:1", "2:1 x 8:1": "2:1 x 4:1", "4:1 x 4:1": "2:1 x 4:1",
                     "8:1 x 2:1": "4:1 x 2:1", "16:1 x 1:1": "8:1 x 1:1"},
        claims=("completion times almost double from 8:1 to 16:1",)),
    "mayflower-plus": _figure(minutes=1.4, quick_minutes=0.2,
        title="mayflower-plus on Figure 4's reads, by arrival rate", x_label="reads per server and second",
        normalised=True, methods=PLUS_METHODS, runs=5, quick_points=(0, 2),
        # the rate that the paper's text names, the highest of figure 6, the highest at which Mayflower keeps up
        points=tuple(Point(f"{rate:g}", rate, rate) for rate in (0.07, 0.10, 0.12)),
        claims_of="Goal at the highest rate",
        claims=("mean / Mayflower at most 0.85, 95th percentile at most 0.75",)),
    "mayflower-fig8": _figure(minutes=0.6, quick_minutes=0.1,
        title="The prototype and HDFS, by arrival rate, locality (0.5, 0.3, 0.2)",
        x_label="reads per server and second", lines=True, methods=(MAYFLOWER, *HDFS_METHODS),
        points=tuple(Point(f"{rate:g}", rate, rate) for rate in (0.03, 0.05, 0.07)), quick_points=(2,),
        claims=("Mayflower more than 80 % below HDFS ECMP (abstract)", "HDFS's times grow quickly with the rate",
                "HDFS Mayflower is better than HDFS ECMP (section 6.7)")),
}
EXPERIMENTS["mayflower-agreement"] = replace(
    EXPERIMENTS["mayflower-fig4"], title="Figure 4's reads, emulated and simulated", run=None,
    emulation="speedwell.evaluation.replay.emulation:agreement")
EXPERIMENTS["mayflower-fig8"] = replace(EXPERIMENTS["mayflower-fig8"],
                                        emulation="speedwell.evaluation.replay.emulation:beside_hdfs")
