"""Pairs of hosts that have turns run on the one path that the scheduler is told of."""

from __future__ import annotations

from types import SimpleNamespace

import eventlet
import pytest

from speedwell.controller.policy.network.graph import Path
from speedwell.controller.timeslices import app as app_module
from speedwell.controller.timeslices.app import KEEP_SECONDS, TABLE, PairOfHosts, PairsRequest, Timeslices
from tests.unit.controller.forwarding_world import World
from tests.unit.controller.simulated_time import SimulatedHub, run_simulated


class Pins:
    """The application in a world whose default flow may take several paths."""

    def __init__(self, hub: SimulatedHub, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(app_module, "time", SimpleNamespace(monotonic=hub.read))
        self.world = World(hub, patch)
        self.app = Timeslices(self.world.services)
        self.app.start()
        self.pair = self.world.flow.source, self.world.flow.destination

    def ask(self, *pairs: tuple[str, str]) -> dict[tuple[str, str], tuple[str, ...]]:
        body = PairsRequest(pairs=[PairOfHosts(source=a, destination=b) for a, b in pairs])
        return {(each.source, each.destination): tuple(each.path) for each in self.app.pin(body).pairs}

    def entries(self) -> list[str]:
        return [dpid for dpid, switch in self.world.network.switches.items() for entry in switch.flows.values()
                if entry.cookie == TABLE.cookie and entry.match]

    def takes(self, path: tuple[str, ...]) -> bool:
        return self.world.taken() == {(self.pair[1], path[1:-1])}


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch):
    def run(scenario):
        run_simulated(lambda hub: scenario(Pins(hub, monkeypatch)))
    return run


def test_a_pair_takes_the_path_that_is_told_and_no_other(simulated) -> None:
    def scenario(pins: Pins) -> None:
        assert len(pins.world.taken()) > 1 and pins.entries() == []
        told = pins.ask(pins.pair)
        assert pins.takes(told[pins.pair])
        assert pins.entries() == [told[pins.pair][1]]

    simulated(scenario)


def test_every_address_has_its_name_beside_it(simulated) -> None:
    def scenario(pins: Pins) -> None:
        path = pins.ask(pins.pair)[pins.pair]
        name = pins.world.state.name_of
        [told] = pins.app.list_pairs().pairs
        assert (told.source_name, told.destination_name) == tuple(map(name, pins.pair))
        assert told.path_names == list(map(name, path)) and told.path_names[1] != path[1]
        assert told.rank is None
        pins.world.app.records.ranks = {pins.pair: 3}
        assert pins.app.list_pairs().pairs[0].rank == 3

    simulated(scenario)


def test_pairs_between_the_same_racks_are_spread(simulated) -> None:
    def scenario(pins: Pins) -> None:
        there, back = pins.pair, pins.pair[::-1]
        others = [(host.ip, pins.pair[1]) for host in pins.world.network.hosts.values() if host.ip not in pins.pair]
        told = pins.ask(there, back, *others)
        assert set(told) == {there, back, *others}
        assert len({path[2:4] for pair, path in told.items() if pair[1] == pins.pair[1]}) > 1

    simulated(scenario)


def test_a_pair_that_nobody_asks_for_is_let_go(simulated) -> None:
    def scenario(pins: Pins) -> None:
        pins.ask(pins.pair)
        eventlet.sleep(KEEP_SECONDS - 1)
        assert pins.ask(pins.pair)
        eventlet.sleep(KEEP_SECONDS - 1)
        assert pins.entries()
        eventlet.sleep(KEEP_SECONDS / 2)
        assert pins.entries() == [] and pins.app.list_pairs().pairs == []
        assert len(pins.world.taken()) > 1

    simulated(scenario)


def test_a_flow_with_a_path_of_its_own_keeps_it_and_the_pair_goes_there_too(simulated) -> None:
    def scenario(pins: Pins) -> None:
        first = pins.ask(pins.pair)[pins.pair]
        other = next(path for path in pins.world.paths() if path != Path(first))
        pins.world.install(other)
        assert pins.takes(other.nodes)
        assert pins.ask(pins.pair)[pins.pair] == other.nodes
        pins.world.withdraw()
        eventlet.sleep(1)
        assert pins.takes(other.nodes)

    simulated(scenario)


def test_a_pair_moves_off_a_link_that_fails(simulated) -> None:
    def scenario(pins: Pins) -> None:
        before = pins.ask(pins.pair)[pins.pair]
        pins.world.fail(*before[1:3])
        eventlet.sleep(2)
        after = pins.ask(pins.pair)[pins.pair]
        assert after != before and pins.takes(after)

    simulated(scenario)


def test_a_path_that_no_switch_has_confirmed_yet_is_not_told(simulated) -> None:
    def scenario(pins: Pins) -> None:
        before = pins.ask(pins.pair)[pins.pair]
        other = next(path for path in pins.world.paths() if path != Path(before))
        pins.world.install(other)
        pins.app._forwarding.wait_until_synced = lambda timeout_seconds: False
        assert pins.ask(pins.pair) == {}
        del pins.app._forwarding.wait_until_synced
        assert pins.ask(pins.pair)[pins.pair] == other.nodes

    simulated(scenario)


def test_no_more_pairs_are_pinned_than_there_may_be(simulated, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_module, "MAX_PAIRS", 1)

    def scenario(pins: Pins) -> None:
        there, back = pins.pair, pins.pair[::-1]
        for _ in range(2):
            assert pins.ask(there, back).keys() == {there}
        eventlet.sleep(KEEP_SECONDS * 2)
        assert pins.ask(back).keys() == {back}

    simulated(scenario)


def test_hosts_that_are_not_there_are_left_out(simulated) -> None:
    def scenario(pins: Pins) -> None:
        assert pins.ask(("10.9.9.9", pins.pair[1]), (pins.pair[0], pins.pair[0])) == {}
        assert pins.entries() == []

    simulated(scenario)


def test_ranked_flows_are_told_with_a_revision_that_changes_with_them(simulated) -> None:
    def scenario(pins: Pins) -> None:
        told = pins.app._classes.classes()
        assert told.flows == [] and pins.app._classes.classes().revision == told.revision
        clock = eventlet.hubs.get_hub().clock
        began = clock()
        waiting = [eventlet.spawn(pins.app._classes.classes, after=told.revision, wait_seconds=5.0) for _ in range(2)]
        eventlet.sleep(1)
        pins.world.app.records.order_hosts({pins.world.flow: 3}, {})
        later, same = [each.wait() for each in waiting]
        assert clock() - began == pytest.approx(1.0) and later == same        # told at once, by the simulated clock
        pins.world.app.records.order_hosts({pins.world.flow: 3}, {})
        unchanged = pins.app._classes.classes(after=later.revision, wait_seconds=5.0)
        assert unchanged == later and clock() - began == pytest.approx(6.0)
        [flow] = later.flows
        assert later.revision != told.revision and flow.priority == 3
        assert (flow.source, flow.destination_port) == (pins.world.flow.source, pins.world.flow.destination_port)
        pins.world.app.records.order_hosts({}, {pins.world.flow: 10**6})
        [flow] = pins.app._classes.classes().flows
        assert (flow.priority, flow.pacing_bps) == (7, 10**6)

    simulated(scenario)
