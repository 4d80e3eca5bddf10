"""What mayflower-plus brings on Figure 4's reads, which of its ideas brings it, and how far it is from the best."""

import json
import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
from rich.table import Table

from controller.policy.mayflower_plus import PATIENCE
from sim.clairvoyant import clairvoyant_mean_seconds
from sim.errors import InvalidSetting, Overloaded
from sim.experiments.statistics import Estimate, mean_estimate, ratio_estimate
from sim.simulation import Simulation
from sim.workload import Workload, generate
from topo.fabric import three_tier

HOST_BPS = 1e9
OVERSUBSCRIPTION = {"edge": 2.0, "aggregation": 4.0}
RATES = {0.07: "the one that the paper's text names", 0.10: "highest of Figure 6 here",
         0.12: "highest at which the paper's algorithm keeps up"}
QUICK_RATES = (0.07, 0.12)
WARM_UP = 0.1
"""The part of the reads at the start that does not count: the network is still emptier than later."""
MEAN_GOAL, P95_GOAL = 0.85, 0.75


@dataclass(frozen=True)
class Variant:
    """A way to place reads. `patience` and `revises` count for mayflower-plus alone."""

    name: str
    replica_policy: str
    parts: int = 1
    patience: float = PATIENCE
    revises: bool = True


BASE = Variant("Mayflower", "mayflower")
VARIANTS = (
    BASE,
    Variant("Mayflower, two replicas", "mayflower", parts=2),
    Variant("exact shares", "mayflower-plus", parts=1, patience=0, revises=False),
    Variant("exact shares, 3 parts", "mayflower-plus", parts=3, patience=0, revises=False),
    Variant("exact shares, 3 parts, re-decision", "mayflower-plus", parts=3, patience=0),
    Variant("exact shares, turns, re-decision", "mayflower-plus", parts=1),
    Variant("mayflower-plus (all)", "mayflower-plus", parts=3),
)


@dataclass(frozen=True)
class PlusTask:
    """One run. Equal tasks give equal results."""

    variant: Variant
    rate: float
    reads: int
    seed: int


def tasks(quick: bool, seed: int) -> list[PlusTask]:
    """The same seeds, so the same reads, for every variant."""
    runs, reads = (3, 400) if quick else (5, 1000)
    return [PlusTask(variant, rate, reads, seed + run)
            for rate in (QUICK_RATES if quick else RATES) for variant in VARIANTS for run in range(runs)]


def workload(rate: float) -> Workload:
    """Figure 4's, at another rate. With 2,000 files a sixth of all reads want the most popular one."""
    return Workload(reads_per_server_second=rate, locality=(0.5, 0.3, 0.2), files=2000)


def run_task(task: PlusTask) -> dict[str, Any]:
    """One run as a JSON object: parameters, times in seconds; `overloaded` has the reason where it was."""
    fabric = three_tier(pods=4, racks_per_pod=4, hosts_per_rack=4, aggregations_per_pod=2, cores=2, host_bps=HOST_BPS,
                        oversubscription=OVERSUBSCRIPTION)
    variant = task.variant
    simulation = Simulation(fabric, variant.replica_policy, "mayflower", Random(task.seed), parts=variant.parts,
                            patience=variant.patience, revises=variant.revises)
    result: dict[str, Any] = {"task": asdict(task)}
    reads = generate(workload(task.rate), fabric, Random(f"reads {task.seed}"))
    try:
        outcomes = simulation.run(reads, task.reads)
    except Overloaded as error:
        return result | {"overloaded": str(error)}
    counted = outcomes[int(WARM_UP * task.reads):]
    seconds = [outcome.seconds for outcome in counted]
    return result | {
        "mean_seconds": float(np.mean(seconds)), "p95_seconds": float(np.percentile(seconds, 95)),
        "longest_seconds": float(np.max(seconds)), "divisions": fmean(outcome.divisions for outcome in counted),
        "bound_seconds": clairvoyant_mean_seconds([outcome.read for outcome in counted], HOST_BPS),
    }


def run_all(tasks: Sequence[PlusTask], file: Path, resume: bool,
            finished: Callable[[int], None]) -> list[dict[str, Any]]:
    """Run what `file` (JSON lines) does not have yet on all cores, adding each result as it comes.

    `finished` hears how many are done. Raises InvalidSetting if the file exists and `resume` is not set.
    """
    if file.exists() and not resume:
        raise InvalidSetting(f"{file} exists: give --resume to go on with it, or another --output")
    done = {_key(result["task"]): result for result in _whole_lines(file)}
    missing = [task for task in tasks if _key(asdict(task)) not in done]
    finished(len(tasks) - len(missing))
    if missing:
        workers = min(os.cpu_count() or 1, len(missing))
        pool = ProcessPoolExecutor(max_workers=workers, mp_context=multiprocessing.get_context("spawn"))
        try:
            futures = [pool.submit(run_task, task) for task in missing]
            with file.open("a") as lines:
                for number, future in enumerate(as_completed(futures), len(tasks) - len(missing) + 1):
                    result = future.result()
                    lines.write(json.dumps(result) + "\n")
                    lines.flush()
                    done[_key(result["task"])] = result
                    finished(number)
        finally:
            pool.shutdown(cancel_futures=True)
    return [done[_key(asdict(task))] for task in tasks]


def _whole_lines(file: Path) -> list[dict[str, Any]]:
    """What has finished; half a line that a killed run left is taken off the file."""
    if not file.exists():
        return []
    text = file.read_text()
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        file.write_text(whole)
    return [json.loads(line) for line in whole.splitlines()]


def _key(parameters: dict[str, Any]) -> str:
    return json.dumps(parameters, sort_keys=True)


class Row(NamedTuple):
    """A variant at a rate: estimates are None where a run overloaded the network. Ratios are to Mayflower."""

    rate: float
    variant: str
    runs: int
    mean: Estimate | None = None
    mean_ratio: Estimate | None = None
    p95: Estimate | None = None
    p95_ratio: Estimate | None = None
    above_bound: float | None = None        # mean over the clairvoyant bound's mean
    divisions: float | None = None          # of a read, on average


def rows_of(results: Sequence[dict[str, Any]]) -> list[Row]:
    """By rate and variant, in the order of the results."""
    groups: dict[tuple[float, str], list[dict[str, Any]]] = {}
    for result in results:
        groups.setdefault((result["task"]["rate"], result["task"]["variant"]["name"]), []).append(result)
    rows = []
    for (rate, name), runs in groups.items():
        base = groups[rate, BASE.name]
        if any("overloaded" in run for run in (*runs, *base)):
            rows.append(Row(rate, name, len(runs)))
            continue
        means, tails = ([run[key] for run in runs] for key in ("mean_seconds", "p95_seconds"))
        rows.append(Row(
            rate, name, len(runs), mean_estimate(means), ratio_estimate(means, [run["mean_seconds"] for run in base]),
            mean_estimate(tails), ratio_estimate(tails, [run["p95_seconds"] for run in base]),
            fmean(means) / fmean(run["bound_seconds"] for run in runs), fmean(run["divisions"] for run in runs)))
    return rows


def table_of(rows: Sequence[Row]) -> Table:
    table = Table(title="mayflower-plus on Figure 4's reads", caption_justify="left",
                  caption=f"Goal: mean / Mayflower at most {MEAN_GOAL}, p95 / Mayflower at most {P95_GOAL}")
    for column in ("rate", "variant", "mean s", "/ Mayflower", "p95 s", "/ Mayflower", "mean / bound", "divisions"):
        table.add_column(column)
    for row in rows:
        values = [_text(estimate) for estimate in (row.mean, row.mean_ratio, row.p95, row.p95_ratio)]
        rest = [f"{row.above_bound:.2f}", f"{row.divisions:.2f}"] if row.mean else ["-", "-"]
        table.add_row(f"{row.rate:g}", row.variant, *values, *rest)
    return table


def write_csv(rows: Sequence[Row], path: Path) -> None:
    import csv

    estimates = ("mean", "mean_ratio", "p95", "p95_ratio")
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        names = [f"{name}_{end}" for name in estimates for end in ("value", "low", "high")]
        writer.writerow(["rate", "variant", "runs", *names, "above_bound", "divisions"])
        for row in rows:
            values = [value for name in estimates for value in (getattr(row, name) or ("", "", ""))]
            writer.writerow([row.rate, row.variant, row.runs, *values, row.above_bound, row.divisions])


def plot(rows: Sequence[Row], path: Path) -> None:
    """Ratios to Mayflower by rate, with their confidence intervals and the goal; the bound's mean beside them."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    rates = list(dict.fromkeys(row.rate for row in rows))
    names = list(dict.fromkeys(row.variant for row in rows))
    canvas, axes = pyplot.subplots(2, 1, figsize=(3 + 3 * len(rates), 8), sharex=True)
    for axis, key, label, goal in zip(axes, ("mean_ratio", "p95_ratio"), ("mean", "95th percentile"),
                                      (MEAN_GOAL, P95_GOAL), strict=True):
        width = 0.8 / len(names)
        for number, name in enumerate(names):
            drawn = [(rates.index(row.rate) + (number - len(names) / 2) * width, getattr(row, key))
                     for row in rows if row.variant == name and row.mean is not None]
            errors = [max(estimate.high - estimate.value, 0.0) if np.isfinite(estimate.high) else 0.0
                      for _, estimate in drawn]
            axis.bar([x for x, _ in drawn], [estimate.value for _, estimate in drawn], width, yerr=errors, label=name,
                     align="edge")
        axis.axhline(goal, color="black", linestyle="--", linewidth=1, label="goal")
        axis.set_ylabel(f"{label} / Mayflower")
    bounds = [(rates.index(row.rate), 1 / row.above_bound)
              for row in rows if row.above_bound and row.variant == BASE.name]
    axes[0].hlines([y for _, y in bounds], [x - 0.4 for x, _ in bounds], [x + 0.4 for x, _ in bounds], color="red",
                   label="no policy below")
    axes[0].legend(fontsize="small")
    axes[1].set_xticks(range(len(rates)), [f"{rate:g}" for rate in rates])
    axes[1].set_xlabel("reads per server and second")
    canvas.tight_layout()
    canvas.savefig(path, dpi=120)
    pyplot.close(canvas)


def _text(estimate: Estimate | None) -> str:
    return f"{estimate.value:.2f} [{estimate.low:.2f}, {estimate.high:.2f}]" if estimate else "overloaded"
