"""The one entry of a single flow: on the path that was chosen, or where default traffic goes."""

from __future__ import annotations

import pytest

from speedwell.controller.errors import NoSuchPath
from speedwell.controller.policy.network.five_tuple import FiveTuple
from speedwell.controller.policy.network.graph import Path
from speedwell.controller.switches.entries import LoadLabel, Output, SetQueue, ToGroup
from tests.unit.controller.forwarding_run import FABRICS, Run

NEAR, FAR = "p0r0h0", "p1r1h0"


@pytest.fixture(name="run")
def _run() -> Run:
    run = Run(FABRICS[0])
    run.sync()
    return run


def flow(run: Run, source: str = NEAR, destination: str = FAR) -> FiveTuple:
    return FiveTuple(run.network.hosts[source].ip, run.network.hosts[destination].ip, 6, 5000, 6000)


def shortest(run: Run) -> tuple[Path, ...]:
    return run.state.network.shortest_paths(flow(run).source, flow(run).destination)


def test_every_path_has_a_label_and_a_group_of_its_own_that_lead_to_its_last_switch(run: Run) -> None:
    used = set()
    for path in shortest(run):
        actions = run.paths.entry(flow(run), path, 1, 30).actions
        label, group = actions
        assert isinstance(label, LoadLabel) and isinstance(group, ToGroup)
        assert run.paths.leads_to(path.nodes[1], actions) == path.nodes[-2]
        used.add((label.label, group.group_id))
    assert len(used) == len(shortest(run)) > 1


def test_a_path_that_is_not_live_or_not_shortest_is_refused(run: Run) -> None:
    path = shortest(run)[0]
    with pytest.raises(NoSuchPath, match="no live link from edge-p0r0 to core0"):
        run.paths.entry(flow(run), Path((*path.nodes[:2], run.network.dpid_of["core0"], *path.nodes[-2:])), 0, 30)
    with pytest.raises(NoSuchPath, match="shortest paths"):
        run.paths.label_of(Path((*path.nodes[1:4], path.nodes[2], path.nodes[1])))


def test_a_class_has_its_queue_where_the_switch_can_set_queues(run: Run) -> None:
    path = shortest(run)[0]
    run.state.set_queue_classes[path.nodes[1]] = (2,)
    assert SetQueue(2) in run.paths.entry(flow(run), path, 1, 30, traffic_class=2).actions
    assert SetQueue(1) not in run.paths.entry(flow(run), path, 1, 30, traffic_class=1).actions


def test_default_entries_lead_where_default_traffic_goes_or_nowhere(run: Run) -> None:
    near, far = run.state.hosts[flow(run).source], run.state.hosts[flow(run).destination]
    edge, last = near.dpid, far.dpid
    at_first = run.paths.default_entry(flow(run), edge, 1, 30).actions
    label, group_id = run.planner.default_route(edge, last) or (0, 0)
    assert at_first == (LoadLabel(label), ToGroup(group_id))
    assert run.paths.default_entry(flow(run), last, 1, 30).actions == (Output(far.port_no),)
    run.state.remove_host(flow(run).destination)
    assert run.paths.default_entry(flow(run), edge, 1, 30).actions == ()
