"""What there is to run, as a table."""

from __future__ import annotations

from cluster.tables import Table
from evaluation.experiment import Experiment, all_experiments


def table() -> Table:
    """Every experiment with what it compares, its runs, about how long they take, and what it needs."""
    columns = ("experiment", "what it compares", "runs", "minutes", "quick", "needs")
    rows = [(name, experiment.title, _runs(experiment), f"{experiment.minutes:g}" if experiment.minutes else "",
             f"{experiment.quick_minutes:g}" if experiment.quick_minutes else "", _needs(experiment))
            for name, experiment in all_experiments().items()]
    return Table("Experiments", columns, rows, columns[2:5],
                 "Minutes are about those of the simulator on two cores, quick ones with --quick. On an emulated "
                 "fabric (--emulate, as root) a run takes minutes, a whole experiment hours.")


def _runs(experiment: Experiment) -> str:
    return str(len(experiment.points) * len(experiment.methods) * experiment.runs)


def _needs(experiment: Experiment) -> str:
    return "an emulated fabric, root" if experiment.run is None else experiment.needs
