"""The paths of single flows: entered, compared with what switches hold, diverted and struck out."""

from __future__ import annotations

import pytest

from controller import openflow
from controller.errors import NoSuchPath
from controller.explicit_paths import ExplicitPath, ExplicitPaths
from controller.openflow import COOKIE_READS, Output, PushLabel
from controller.policy.five_tuple import FiveTuple
from controller.policy.network import Path
from tests.unit.controller.forwarding_run import FABRICS, Run


class TestExplicitPaths:
    def setup_method(self) -> None:
        self.run = Run(FABRICS[0])
        self.run.sync()
        self.book = ExplicitPaths(self.run.planner)
        hosts = self.run.network.hosts
        self.source, self.destination = hosts["p0r0h0"].ip, hosts["p1r1h0"].ip
        self.five_tuple = FiveTuple(self.source, self.destination, 6, 5000, 6000)

    def add(self, path: Path) -> ExplicitPath:
        explicit = ExplicitPath(self.five_tuple, path, COOKIE_READS | 1, 30)
        self.book.add(explicit)
        return explicit

    def paths(self) -> tuple[Path, ...]:
        return self.run.state.network.shortest_paths(self.source, self.destination)

    def test_a_path_that_loses_a_link_takes_the_default_until_it_is_moved(self) -> None:
        explicit = self.add(self.paths()[0])
        name_of = self.run.network.name_of
        switch = self.run.network.switches[explicit.first_switch]
        switch.receive([openflow.flow_add(switch.datapath, self.book.entry(explicit))])
        self.run.fail(name_of[explicit.path.nodes[2]], name_of[explicit.path.nodes[3]])
        ((diverted, entry),) = self.book.divert_dead()
        assert diverted.diverted and self.book.get(self.five_tuple) == diverted
        switch.receive([openflow.flow_modify(switch.datapath, entry)])
        self.run.sync()
        arrivals = self.run.network.send("p0r0h0", self.run.network.tcp("p0r0h0", "p1r1h0"))
        assert {arrival.where for arrival in arrivals} == {self.destination}
        assert self.book.divert_dead() == []

    def test_a_restarted_switch_gets_its_explicit_entries_back(self) -> None:
        explicit = self.add(self.paths()[0])
        assert self.book.compare(explicit.first_switch, []) == ([self.book.entry(explicit)], [])
        assert self.book.compare(explicit.first_switch, [self.book.entry(explicit)]) == ([], [])

    def test_an_earlier_controllers_entry_stays_while_it_leads_to_its_destination(self) -> None:
        entry = self.book.entry(self.add(self.paths()[0]))
        dpid = self.paths()[0].nodes[1]
        self.book = ExplicitPaths(self.run.planner)
        assert self.book.compare(dpid, [entry]) == ([], [])

    def test_an_earlier_controllers_entry_that_leads_astray_is_taken_out(self) -> None:
        dpid = self.paths()[0].nodes[1]
        good = self.book.entry(self.add(self.paths()[0]))
        self.book = ExplicitPaths(self.run.planner)
        (push, output) = good.actions
        assert isinstance(push, PushLabel) and isinstance(output, Output)
        for actions in ((PushLabel(push.label + 999), output), (push, Output(output.port_no + 1)),
                        (Output(77),), ()):
            bad = openflow.FlowEntry(*good.key, actions, None, good.cookie, 30, True)
            assert self.book.compare(dpid, [bad]) == ([], [good.key])

    def test_a_path_that_is_not_live_or_not_shortest_is_refused(self) -> None:
        path = self.paths()[0]
        with pytest.raises(NoSuchPath, match="no live link from edge-p0r0 to core0"):
            self.run.planner.explicit_entry(
                self.five_tuple, Path((*path.nodes[:2], self.run.network.dpid_of["core0"], *path.nodes[-2:])), 0, 30)
        with pytest.raises(NoSuchPath, match="shortest paths"):
            self.run.planner.label_of(Path((*path.nodes[1:4], path.nodes[2], path.nodes[1])))

    def test_an_entry_that_idled_out_is_struck_from_the_book(self) -> None:
        explicit = self.add(self.paths()[0])
        self.book.entry_gone(explicit.cookie, "00000000000000ff")
        assert len(self.book) == 1
        self.book.entry_gone(explicit.cookie, explicit.first_switch)
        assert self.five_tuple not in self.book
