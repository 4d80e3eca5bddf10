"""Flow records: who owns which part, what is counted for whom, and what they are compared with and diverted to."""

from __future__ import annotations

from typing import Any

from speedwell.controller.policy.network.five_tuple import FiveTuple
from speedwell.controller.policy.network.graph import Path
from speedwell.controller.switches import openflow
from speedwell.controller.switches.entries import FlowEntry, LoadLabel, Output, ToGroup
from speedwell.controller.tables.flow_records import Claim, Claimant, FlowRecord, FlowRecords, Withdrawal
from tests.unit.controller.forwarding_run import FABRICS, Run

LOW, HIGH = Claimant("low", 1), Claimant("high", 2)


class TestFlowRecords:
    def setup_method(self) -> None:
        self.run = Run(FABRICS[0])
        self.run.sync()
        self.book = FlowRecords(self.run.paths)
        hosts = self.run.network.hosts
        self.source, self.destination = hosts["p0r0h0"].ip, hosts["p1r1h0"].ip
        self.five_tuple = FiveTuple(self.source, self.destination, 6, 5000, 6000)

    def claim(self, claimant: Claimant = LOW, path: Path | None = None, **details: Any) -> FlowRecord:
        record = self.book.open(self.five_tuple)
        record.claims[claimant] = Claim(self.five_tuple, claimant, details.pop("subject", None), path, **details)
        return record

    def add(self, path: Path) -> FlowRecord:
        record = self.claim(path=path, idle_timeout_seconds=30)
        self.book.place(record, self.book.planned(record, self.book.new_cookie()))
        return record

    def entry(self, record: FlowRecord) -> FlowEntry:
        assert record.placement is not None
        return record.placement.entry

    def paths(self) -> tuple[Path, ...]:
        return self.run.state.network.shortest_paths(self.source, self.destination)

    def test_a_path_that_loses_a_link_takes_the_default_until_it_is_moved(self) -> None:
        path = self.paths()[0]
        record = self.add(path)
        name_of = self.run.network.name_of
        switch = self.run.network.switches[path.nodes[1]]
        switch.receive([openflow.flow_add(switch.datapath, self.entry(record))])
        self.run.fail(name_of[path.nodes[2]], name_of[path.nodes[3]])
        assert self.book.divert_dead() == [(record, path)] and record.path is None
        switch.receive([openflow.flow_modify(switch.datapath, self.entry(record))])
        self.run.sync()
        arrivals = self.run.network.send("p0r0h0", self.run.network.tcp("p0r0h0", "p1r1h0"))
        assert {arrival.where for arrival in arrivals} == {self.destination}
        assert self.book.divert_dead() == []

    def test_a_path_that_loses_a_link_falls_back_to_the_one_that_another_system_claims(self) -> None:
        first, second = self.paths()[0], self.paths()[-1]
        self.claim(LOW, second)
        record = self.claim(HIGH, first)
        self.book.place(record, self.book.planned(record, self.book.new_cookie()))
        assert record.path == first
        self.run.fail(*map(self.run.network.name_of.get, first.nodes[2:4]))
        assert self.book.divert_dead() == [(record, first)] and record.path == second

    def test_each_part_has_one_owner_and_later_systems_only_narrow(self) -> None:
        first, second = self.paths()[:2]
        record = self.claim(LOW, first, traffic_class=2, rate_bps=5e6, idle_timeout_seconds=30)
        assert (record.traffic_class, record.rate_bps, record.idle_timeout_seconds) == (2, 5e6, 30)
        self.claim(HIGH, second, rate_bps=7e6, lifetime_seconds=15)
        planned = self.book.planned(record, 1)
        assert planned.path == second and planned.entry.hard_timeout_seconds == 15
        assert (record.traffic_class, record.rate_bps) == (2, 5e6), "the class is nobody else's, the rate no higher"
        assert planned.entry.idle_timeout_seconds == 0, "whoever renews it vouches for it"
        record.withdraw(Withdrawal(self.five_tuple, HIGH))
        assert self.book.planned(record, 1).path == first

    def test_a_class_without_a_path_goes_with_the_path_of_whoever_has_one(self) -> None:
        for path in self.paths():
            self.claim(LOW, path)
            record = self.claim(HIGH, traffic_class=7)
            planned = self.book.planned(record, 1)
            assert planned.path == path and planned.entry.actions[0] == LoadLabel(
                self.run.paths.label_of(Path(path.nodes[1:-1])), 7)

    def test_a_class_for_which_nobody_has_a_path_is_hashed_onto_one_that_lives(self) -> None:
        record = self.claim(HIGH, traffic_class=7)
        self.book.place(record, self.book.planned(record, self.book.new_cookie()))
        first = record.path
        assert first in self.paths()
        self.run.fail(*map(self.run.network.name_of.get, first.nodes[2:4]))
        assert self.book.divert_dead() == [(record, first)]
        assert record.path in self.paths(), "another one, with the class"

    def test_a_withdrawal_is_of_what_it_names(self) -> None:
        record = self.claim(LOW, subject="second")
        record.withdraw(Withdrawal(self.five_tuple, LOW, "first"))
        assert LOW in record.claims
        record.withdraw(Withdrawal(self.five_tuple, LOW, "second"))
        assert record.claims == {}

    def test_every_claim_sees_what_was_counted_since_it_came(self) -> None:
        record = self.claim(LOW, subject="read")
        record.count_anew()
        record.counted(1000, 0, 1.0, 1.0)
        former = dict(record.claims)
        self.claim(HIGH, subject="coflow")
        record.count_on(former)
        assert (record.transferred_bytes(LOW), record.transferred_bytes(HIGH)) == (1000, 0)
        record.counted(1500, 0, 2.0, 2.0)
        record.counted(4000, 0, 3.0, 3.0)
        assert (record.transferred_bytes(LOW), record.transferred_bytes(HIGH)) == (4000, 2500)
        former = dict(record.claims)
        record.withdraw(Withdrawal(self.five_tuple, HIGH))
        record.count_on(former)
        assert (record.transferred_bytes(LOW), record.transferred_bytes(HIGH)) == (4000, 0)

    def test_a_restarted_switch_gets_its_entries_back(self) -> None:
        record = self.add(self.paths()[0])
        dpid = self.paths()[0].nodes[1]
        assert self.book.compare(dpid, []) == ([self.entry(record)], [])
        assert self.book.compare(dpid, [self.entry(record)]) == ([], [])

    def test_an_earlier_controllers_entry_stays_while_it_leads_to_its_destination(self) -> None:
        entry = self.entry(self.add(self.paths()[0]))
        dpid = self.paths()[0].nodes[1]
        self.book = FlowRecords(self.run.paths)
        assert self.book.compare(dpid, [entry]) == ([], [])

    def test_an_earlier_controllers_entry_that_leads_astray_is_taken_out(self) -> None:
        dpid = self.paths()[0].nodes[1]
        good = self.entry(self.add(self.paths()[0]))
        self.book = FlowRecords(self.run.paths)
        (load, to_group) = good.actions
        assert isinstance(load, LoadLabel) and isinstance(to_group, ToGroup)
        for actions in ((LoadLabel(load.label + 999), to_group), (load, ToGroup(to_group.group_id + 1)),
                        (Output(77),), ()):
            bad = FlowEntry(*good.key, actions, None, good.cookie, 30, True)
            assert self.book.compare(dpid, [bad]) == ([], [good.key])
