"""What there is to run, as a table."""

from __future__ import annotations

from speedwell.cluster.tables import Table
from speedwell.evaluation.experiment import Experiment, all_experiments


def table() -> Table:
    """Every experiment with what it compares, its runs, about how long they take, and what it needs."""
    columns = ("experiment", "what it compares", "runs", "minutes", "quick", "needs")
    rows = [(name, experiment.title, _runs(experiment), _minutes(experiment, experiment.minutes),
             _minutes(experiment, experiment.quick_minutes), _needs(experiment))
            for name, experiment in all_experiments().items()]
    return Table("Experiments", columns, rows, columns[2:5],
                 "Minutes are about those of the simulator on two cores, beside it those with --quick; the first "
                 "run after the installation compiles for two more. On an emulated "
                 "fabric (--emulate, as root) a run takes minutes, a whole experiment hours.")


def _minutes(experiment: Experiment, minutes: float) -> str:
    return "" if experiment.run is None else f"{minutes:g}"


def _runs(experiment: Experiment) -> str:
    return str(len(experiment.points) * len(experiment.methods) * experiment.runs)


def _needs(experiment: Experiment) -> str:
    return "an emulated fabric, root" if experiment.run is None else experiment.needs
