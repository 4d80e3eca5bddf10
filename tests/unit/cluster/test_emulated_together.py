"""All five systems on an emulated fabric: which subsets are played, what each is asked for, and what is kept."""

from __future__ import annotations

from itertools import combinations, product
from math import prod
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from speedwell.cluster.fabric_settings import read_settings, with_all_systems
from speedwell.controller.policy.registry import replica_policy_beside
from speedwell.evaluation.commands.experiment import experiment
from speedwell.evaluation.papers.together import (
    HALF,
    KINDS,
    NAMES,
    NONE,
    SUBSETS,
    Subset,
    Task,
    effects,
    fabric,
    load,
)
from speedwell.evaluation.replay.clusters import play_all
from speedwell.evaluation.replay.together import HOST_MBPS, METHODS, RUNS, point_of, settings_of
from speedwell.evaluation.results.results_file import ResultsFile
from speedwell.fs.limits import LEAST_ADVISED_BYTES

POINT = point_of(HOST_MBPS)


def test_the_half_fraction_confounds_no_effect_with_another_nor_with_an_interaction_of_two() -> None:
    signs = {term: tuple(prod(1 if name in each.on else -1 for name in term) for each in HALF)
             for number in (1, 2) for term in combinations(NAMES, number)}
    assert all(sum(of) == 0 for of in signs.values())
    assert all(sum(a * b for a, b in zip(signs[one], signs[other], strict=True)) == 0
               for one, other in combinations(signs, 2))
    assert {SUBSETS[0], *(each for each in SUBSETS if len(each.on) == 1)} < {*HALF}


def test_effects_of_the_half_fraction_are_those_that_its_results_were_made_with() -> None:
    factors = dict(zip(NAMES, (0.8, 0.5, 1.0, 1.25, 1.0), strict=True))
    results = [{"task": Task(POINT, each, seed).parameters(), **{f"{kind}_mean": seed * prod(
        factors[name] for name in each.on) * (0.5 if {"coflows", "turns"} <= {*each.on} else 1) for kind in KINDS}}
        for seed in (1, 2) for each in METHODS]
    table, *goals = effects("together", results, HALF)
    rows = {row[0]: row[1].split(" [")[0] for row in table.rows}
    assert (rows["reads"], rows["placements"], rows["coflows"]) == ("-20 %", "+0 %", "-65 %")
    assert (rows["coflows x turns"], rows["reads x turns"]) == ("-29 %", "+0 %")
    assert any("all five take 0.25" in goal for goal in goals)
    assert not [*effects("together", results[:-1], HALF)]


@pytest.mark.parametrize("subset", SUBSETS, ids=lambda subset: subset.name)
def test_a_cluster_of_a_subset_has_these_systems_and_no_other(subset: Subset) -> None:
    on, everything = fabric(POINT), with_all_systems(fabric(POINT))
    settings = read_settings(fabric=on, **settings_of(subset, on))
    assert settings.replica_policy == (replica_policy_beside(settings.coflows) if "reads" in subset.on else "nearest")
    assert (settings.placement_policy == everything["placement_policy"]) is ("placements" in subset.on)
    for name, setting in (("coflows", "coflows"), ("turns", "host_agents"), ("metadata", "metadata_stores")):
        assert (getattr(settings, setting) or None) == (everything[setting] if name in subset.on else None)


def test_the_load_is_as_heavy_as_the_simulated_one_and_its_writes_are_placed_by_the_load() -> None:
    for mbps in (20.0, 40.0, 80.0):
        point = point_of(mbps)
        assert point.rate * point.size_bytes / point.host_bps == pytest.approx(0.25 * 64 * 2**20 / 1e9)
        asked = load(fabric(point), point, 1)
        assert {each.kind for each in asked} == {"read", "write", "background"}
        assert all(each.size_bits == 8 * LEAST_ADVISED_BYTES for each in asked if each.kind == "write")


def test_a_whole_experiment_has_three_seeds_of_seventeen_subsets() -> None:
    assert len(METHODS) == 17 and METHODS[-1] == NONE and RUNS == 3
    assert len(METHODS) * (RUNS * POINT.seconds) < 30 * 60


def test_what_has_been_played_is_kept_and_not_played_again(tmp_path: Path) -> None:
    tasks = [Task(POINT, subset, seed) for subset, seed in product(SUBSETS[:3], (1, 2))]
    clusters: list[list[Any]] = []

    def play(group: Any, say: object) -> Any:
        clusters.append([*group])
        yield from ({"task": task.parameters()} for task in group)

    first = ResultsFile(tmp_path / "results.jsonl", resume=False)
    play_all("together", tasks[:3], play, first, tmp_path)
    again = ResultsFile(tmp_path / "results.jsonl", resume=True)
    assert [each["task"] for each in play_all("together", tasks, play, again, tmp_path)] == [
        task.parameters() for task in tasks]
    assert clusters == [tasks[:2], tasks[2:3], tasks[3:4], tasks[4:]]


@pytest.mark.parametrize("option", ["--reads", "--slowdown"])
def test_options_that_would_do_nothing_are_refused(tmp_path: Path, option: str) -> None:
    done = CliRunner().invoke(experiment, ["together", "--emulate", option, "20", "--output", str(tmp_path / "out")])
    assert done.exit_code == 2 and "of no use to together" in " ".join(done.output.split())
    assert not (tmp_path / "out").exists()
