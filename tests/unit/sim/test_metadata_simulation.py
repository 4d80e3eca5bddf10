"""The simulated evaluation of MetaFlow: known laws hold, and methods are measured by the policies' own tables."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from speedwell.controller.policy.metadata.blocks import walk
from speedwell.evaluation.experiment import Choices
from speedwell.evaluation.papers import metaflow
from speedwell.sim import metadata_simulation as metadata

SERVERS = 64


def visits(method: str, ratio: float = 1.0) -> metadata.Visits:
    return metadata.visits(method, SERVERS, ratio, 100 * SERVERS, 1)


@pytest.mark.parametrize(("method", "ratio", "of_ideal"), [
    ("Hash mapping", 1.0, 1.0), ("One-Hop", 1.0, 0.5), ("One-Hop", 2.0, 2 / 3), ("Chord", 1.0, 1 / 4),
    ("Central coordinator", 1.0, 1 / SERVERS)])
def test_servers_sustain_their_time_over_that_of_a_request(method: str, ratio: float, of_ideal: float) -> None:
    assert metadata.sustained(visits(method, ratio), SERVERS) * ratio / SERVERS == pytest.approx(of_ideal, rel=0.1)


def test_chord_asks_half_the_logarithm_of_the_servers_and_ends_before_the_owner() -> None:
    at, _ = visits("Chord")
    hops = (at[:, :-1] >= 0).sum(axis=1)
    assert hops.mean() == pytest.approx(3, abs=0.1)
    assert hops.max() == 6


def test_servers_that_drop_what_is_too_much_answer_the_rest() -> None:
    chains = np.array([[0]] * 3 + [[1]]), np.ones((4, 1))
    assert metadata.sustained(chains, 2) == pytest.approx(4 / 3)
    assert metadata.answered(chains, 2, 2.0) == pytest.approx(1.5, rel=0.01)


def test_an_md1_queue_waits_as_pollaczek_and_khinchine_say() -> None:
    requests, load = 60_000, 0.5
    chains = np.zeros((requests, 1), np.int32), np.ones((requests, 1))
    seconds = metadata.latencies(chains, 1, load, 1.0, np.zeros(requests, np.int32), 3)
    assert seconds.mean() / metadata.LOOK_UP_SECONDS == pytest.approx(1 + load / (2 * (1 - load)), rel=0.1)


def test_ours_and_the_papers_keys_are_where_their_tables_lead() -> None:
    for system in (metadata.tree(SERVERS, 1), metadata.layout(SERVERS)):
        made = metadata.tables_of(system)
        for block in system.blocks:
            assert walk(made, "edge3", block.first)[-1] == block.server
    tree = metadata.tree(SERVERS, 1)
    smallest, paper = metadata.smallest_tables(tree), metadata.tables_of(tree)
    for block in tree.blocks:
        assert walk(smallest, "edge3", block.end - 1)[-1] == block.server
    assert sum(map(len, smallest.values())) <= sum(map(len, paper.values()))


def test_a_tree_splits_by_the_keys_and_a_layout_evenly() -> None:
    run, point = metaflow.tables, metaflow.Point(57)
    assert run("MetaFlow", point, 2)["busiest_over_mean"] > 1.4
    assert run("Speedwell", point, 2)["busiest_over_mean"] <= 1.03


@pytest.mark.parametrize("system", [metadata.tree(40, 1, 8), metadata.layout(40)])
def test_changes_keep_all_keys_and_say_what_they_move(system: object) -> None:
    after = metadata.changed(system, 48, 20, Random(5))     # type: ignore[arg-type]
    blocks = after.system.blocks
    assert [block.first for block in blocks] == [0, *(block.end for block in blocks[:-1])]
    assert 0.2 < after.moved < 4


@pytest.mark.parametrize("name", metaflow.EXPERIMENTS)
def test_a_run_of_each_experiment_has_every_measure(name: str) -> None:
    figure = replace(metaflow.EXPERIMENTS[name],
                     points=(metaflow.Point(32, changes=2, file_bytes=1 << 16),), quick_points=(0,))
    assert figure.run is not None
    for task in figure.tasks(Choices())[:3]:
        result = figure.run(task)
        assert {measure.name for measure in figure.measures} <= result.keys()
        assert result["task"] == task.parameters()


def test_a_coordinator_that_cannot_carry_the_load_is_called_overloaded() -> None:
    result = metaflow.latency("Central coordinator", metaflow.Point(SERVERS), 1)
    assert "cannot carry" in str(result["overloaded"])
