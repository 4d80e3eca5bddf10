"""Five systems in one simulated network: what is on acts, what is off does not, and links carry what they can."""

from __future__ import annotations

from dataclasses import asdict, replace
from random import Random

import numpy as np
import pytest

from speedwell.evaluation.experiment import Choices
from speedwell.evaluation.papers.together import (
    ALL,
    EXPERIMENTS,
    KINDS,
    NAMES,
    ON,
    SUBSETS,
    Point,
    Task,
    effects,
    fabric,
    load,
    run_task,
)
from speedwell.evaluation.results.report import rows_of
from speedwell.sim.errors import Overloaded
from speedwell.sim.mixed_load import Messages, Outcome, Systems, Transfer
from speedwell.sim.together import TogetherSimulation

OFF = Systems("", "", "", "", "")
POINT = Point(seconds=3.0)
QUIET = Messages(metadata_rate=1.0, short_rate=1.0)


class Watched(TogetherSimulation):
    """Looks at each moment whether the rates can be had."""

    most_used = 0.0
    held = 0

    def _share(self) -> None:
        super()._share()
        if self._owner:
            self.most_used = max(self.most_used, float((self._used() / self._capacities).max()))
            self.held += any(rate == 0 for rate in self._rates[:len(self._owner)])


@pytest.mark.parametrize("systems", [OFF, ON, replace(ON, coflows="mincof"), *(
    replace(ON, **{name: ""}) for name in NAMES)], ids=lambda systems: "+".join(asdict(systems).values()))
def test_all_that_is_asked_for_ends_and_no_link_carries_more_than_it_can(systems: Systems) -> None:
    asked = load(fabric(), POINT, 5)
    simulation = Watched(fabric(), systems, 5, QUIET)
    outcome = simulation.play(asked, POINT.seconds)
    for kind in ("read", "write", "background"):
        assert len(outcome.seconds[kind]) == sum(each.kind == kind for each in asked)
    assert simulation.most_used <= 1 + 1e-6
    assert simulation.held if systems.turns else not simulation.held or systems.coflows


def test_the_same_run_gives_the_same_times_and_another_seed_others() -> None:
    runs = [{name: value for name, value in run_task(Task(POINT, SUBSETS[0], seed)).items()
             if not name.startswith(("cpu", "us_"))} for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


def test_only_systems_that_are_on_cost_anything_and_pods_are_told_apart_where_hosts_are_more() -> None:
    def run(on: tuple[str, ...], point: Point = POINT) -> dict[str, float]:
        return run_task(Task(point, next(each for each in SUBSETS if each.on == on), 1))

    for on in ((), ("reads",), ("placements", "turns"), NAMES):
        found = run(on)
        assert {name for name in NAMES[:-1] if found[f"cpu_{name}"] > 0} == {*on} - {"metadata"}
        assert found["cpu"] == pytest.approx(sum(found[f"cpu_{name}"] for name in NAMES[:-1]))
    small, large = (run(NAMES, replace(POINT, pods=pods, racks=4)) for pods in (1, 4))
    assert min(small["us_placements"], large["us_placements"]) > 0
    assert small["inside_pods"] == 1 > large["inside_pods"] > 0


def test_the_quick_form_of_the_scale_experiment_tells_what_each_systems_decisions_cost() -> None:
    experiment = EXPERIMENTS["together-scale"]
    tasks = experiment.tasks(Choices(quick=True))
    assert [task.parameters()["x"] for task in tasks] == [16, 128]
    small, pod = (run_task(replace(task, point=replace(task.point, seconds=2.0))) for task in tasks)
    rows = rows_of([small, pod], experiment)
    assert [row.point for row in rows] == ["16 hosts", "one pod of 128 hosts"]
    assert all(0 < rows[0].values[measure.name].value < rows[1].values[measure.name].value
               for measure in experiment.measures if measure.name.startswith("cpu"))
    assert rows[0].values["inside_pods"].value < rows[1].values["inside_pods"].value == 1


def test_fairness_is_jains_index_of_the_rates_of_clients() -> None:
    outcome = Outcome()
    for client, bits, seconds in (("a", 10.0, 1.0), ("b", 20.0, 2.0), ("c", 30.0, 3.0)):
        outcome.bits[client], outcome.waited[client] = bits, seconds
    assert outcome.fairness == pytest.approx(1)
    outcome.waited.update(a=1e9, b=1e9)
    assert outcome.fairness == pytest.approx(1 / 3)


def test_reads_of_one_replica_alone_in_the_network_take_the_time_of_their_bytes() -> None:
    first = next(each for each in load(fabric(), POINT, 1) if len(each.reads) == 1)
    for systems in (OFF, ON):
        outcome = TogetherSimulation(fabric(), systems, 1, QUIET).play([replace(first, arrival=0.0)], 1.0)
        [(_, seconds)] = outcome.seconds["read"]
        assert seconds == pytest.approx(first.reads[0].size_bits / 1e9, rel=0.02)


def test_senders_to_one_host_have_turns_that_keep_the_queue_empty_for_short_messages() -> None:
    hosts = [host.name for host in fabric().hosts]
    incast = [Transfer("background", 0.0, (), sender, hosts[0], 1e9) for sender in hosts[1:4]]
    means = {}
    for name, systems in (("off", OFF), ("on", replace(OFF, turns="xco-plus"))):
        outcome = TogetherSimulation(fabric(), systems, 1, Messages(short_rate=2000.0)).play(incast, 2.5)
        means[name] = np.mean([seconds for _, seconds in outcome.seconds["short"]])
        assert max(seconds for _, seconds in outcome.seconds["background"]) == pytest.approx(3.0, rel=0.03)
    assert means["on"] < means["off"]


def test_one_nameserver_for_all_is_a_queue_that_four_stores_shorten() -> None:
    busy = Messages(metadata_rate=1900.0)
    means = [np.mean([seconds for _, seconds in TogetherSimulation(fabric(), systems, 1, busy).play([], 5.0)
             .seconds["metadata"]]) for systems in (OFF, replace(OFF, metadata="metaflow"))]
    assert means[0] > 3 * means[1] > 3 * busy.service


def test_too_much_is_refused_as_overloaded() -> None:
    with pytest.raises(Overloaded):
        TogetherSimulation(fabric(), OFF, 1, QUIET).play(load(fabric(), POINT, 1), POINT.seconds, most_running=5)


def test_effects_and_goals_are_those_that_results_were_made_with() -> None:
    factors = {"reads": 0.8, "coflows": 0.5, "placements": 1.0, "turns": 1.25, "metadata": 1.0}
    results = []
    for seed in (1, 2, 3):
        noise = Random(seed).uniform(0.9, 1.1)
        for subset in SUBSETS:
            value = noise * float(np.prod([factors[name] for name in subset.on]))
            if {"coflows", "turns"} <= {*subset.on}:
                value *= 0.5
            results.append({"task": Task(POINT, subset, seed).parameters(),
                            **{f"{kind}_mean": value for kind in KINDS}})
    table, *goals = effects("together", results)
    rows = {row[0]: row[1] for row in table.rows}
    assert rows["reads"].startswith("-20 %") and rows["placements"].startswith("+0 %")
    assert rows["coflows"].startswith("-65 %"), "0.5, and half the time 0.5 again"
    assert rows["coflows x turns"].startswith("-29 %") and rows["reads x turns"].startswith("+0 %")
    assert any("read: all five take 0.25" in goal for goal in goals)
    overloaded = [{"task": each["task"], "overloaded": "too much"} for each in results]
    assert not [*effects("together", [*results[1:], overloaded[0]])] and not [*effects("together", overloaded)]
    assert len({subset.name for subset in SUBSETS}) == 32 and SUBSETS[0].name == ALL
    assert SUBSETS[0].systems == ON and asdict(SUBSETS[-1].systems) == dict.fromkeys(NAMES, "")
