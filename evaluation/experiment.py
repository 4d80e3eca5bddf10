"""What an experiment is, whichever the paper, and where all of them stand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from speedwell.cluster.tables import Table
from speedwell.evaluation.results.report import Layout
from speedwell.sim.errors import InvalidSetting

PAPERS = ("mayflower", "mincof", "mincof_facebook", "sinbad", "sinbad_fabric", "xco", "metaflow", "together")
"""Modules of `evaluation.papers`. Each has its experiments in EXPERIMENTS, by names that begin with its own."""

GROUP = "speedwell.experiments"
"""Entry points of packages that bring an `Experiment`, each under its name."""

Result = dict[str, Any]
"""What a run gives: JSON values, the run's parameters under `task`."""


@dataclass(frozen=True)
class Choices:
    """What whoever runs an experiment may choose. `seed` is that of the first run; `trace` is a file. `methods` are
    the names of those that it compares, beside the one that ratios are to, `places` those of points; none: all."""

    quick: bool = False
    seed: int = 1
    policies: tuple[str, ...] = ()
    trace: Path | None = None
    methods: tuple[str, ...] = ()
    places: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Experiment(Layout):
    """Methods compared at points of a paper's figure, some runs each.

    `task` makes the run of a method at a point with a seed; it has `parameters`, JSON values that tell it from all
    others, and can be pickled. `run` makes its result; None where an experiment can only be emulated. `method_of`
    makes a method of a policy's name; None where none can be added. `facts` go into the manifest, `chosen` is what
    is taken where the paper is silent, `beside` what is shown after the table. `emulation` names the function that
    plays it on an emulated fabric. `quick_points` are indices of `points`. `needs` is
    an option it does not run without; `minutes` are about those of the simulator on two cores, whole and quick.
    `seed` is the first that the documentation's tables have.
    """

    points: tuple[Any, ...]
    quick_points: tuple[int, ...] = (0,)
    methods: tuple[Any, ...]
    runs: int
    quick_runs: int = 2
    seed: int = 1
    task: Callable[[Any, Any, int, Choices], Any]
    run: Callable[[Any], Result] | None
    method_of: Callable[[str], Any] | None = None
    facts: Callable[[Sequence[Any]], Mapping[str, object]] = lambda tasks: {}
    chosen: Mapping[str, str]
    beside: Callable[[str, Sequence[Result]], Iterable[Table | str]] = lambda name, results: ()
    emulation: str | None = None
    needs: str = ""
    minutes: float = 0
    quick_minutes: float = 0

    def tasks(self, choices: Choices) -> list[Any]:
        """The runs, each once: the same seeds, so the same inputs, for every method. Raises InvalidSetting,
        UnknownPolicy."""
        if choices.seed < 0:
            raise InvalidSetting(f"seed: must be a number from 0 up, not {choices.seed}")
        for what, wanted, there in (("methods", choices.methods, self.methods),
                                    ("points", choices.places, self.points)):
            if unknown := set(wanted) - set(map(_name, there)):
                raise InvalidSetting(f"{what}: there is no {min(unknown)!r} here, but "
                                     + ", ".join(repr(_name(each)) for each in there))
        methods = [method for method in self.methods if method.name in (*choices.methods, self.base)
                   or not choices.methods]
        added = [self.method_of(policy) for policy in choices.policies] if self.method_of is not None else []
        points = [self.points[index] for index in self.quick_points] if choices.quick else self.points
        points = [point for point in self.points if _name(point) in choices.places] or points
        return [self.task(point, method, choices.seed + run, choices) for point in points
                for run in range(self.quick_runs if choices.quick else self.runs)
                for method in dict.fromkeys((*methods, *added))]

    def manifest(self, name: str, mode: str, choices: Choices, tasks: Sequence[Any]) -> dict[str, object]:
        """What is run, and what is taken where the paper is silent, as JSON values. `mode` is how."""
        points: dict[str, dict[str, Any]] = {}
        methods: dict[str, Any] = {}
        for task in tasks:
            place = task.parameters()
            method = place.pop("method")
            methods.setdefault(method["name"], method)
            place.pop("seed")
            points.setdefault(repr(place), place)
        return {"experiment": name, "mode": mode, "quick": choices.quick, "seed": choices.seed, "runs": len(tasks),
                **self.facts(tasks), "methods": list(methods.values()), "points": list(points.values()),
                "chosen_where_the_paper_is_silent": dict(self.chosen)}


def named(name: str) -> Experiment | None:
    """The experiment of this name, if there is one; only its own module is imported. Raises InvalidSetting."""
    found = (import_module(f"speedwell.evaluation.papers.{paper}").EXPERIMENTS.get(name) for paper in PAPERS
             if paper.partition("_")[0] == name.partition("-")[0])
    return next(filter(None, found), None) or _of_packages(name).get(name)


def all_experiments() -> dict[str, Experiment]:
    """By name, paper after paper, then those of packages. Raises InvalidSetting."""
    papers = {name: experiment for paper in PAPERS
              for name, experiment in import_module(f"speedwell.evaluation.papers.{paper}").EXPERIMENTS.items()}
    return papers | {name: experiment for name, experiment in _of_packages().items() if name not in papers}


def _of_packages(name: str | None = None) -> dict[str, Experiment]:
    found = {}
    for entry in entry_points(group=GROUP):
        if name not in (None, entry.name):
            continue
        where = f"entry point {entry.name} = {entry.value}"
        try:
            found[entry.name] = entry.load()
        except Exception as error:
            raise InvalidSetting(f"{where}: {type(error).__name__}: {error}") from error
        if not isinstance(found[entry.name], Experiment):
            raise InvalidSetting(f"{where}: that is no speedwell.evaluation.experiment.Experiment")
    return found


def _name(of: Any) -> str:
    """What a user calls a method or a point: not every point has a name of its own."""
    return str(getattr(of, "name", of))
