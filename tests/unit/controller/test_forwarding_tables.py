"""The planned tables, walked packet by packet through fabrics of fake switches."""

from __future__ import annotations

import pathlib
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller import openflow, reconcile
from controller.network_state import HostLocation
from controller.openflow import COOKIE_READS, PushLabel, Table
from controller.policy.five_tuple import FiveTuple
from controller.policy.labels import LabelTable
from controller.read_back import sort_read_back
from controller.switch_tables import STATIC_ENTRIES, Planner, known_hosts
from tests.unit.controller.fake_switch import Packet
from tests.unit.controller.forwarding_run import FABRICS, Run
from topo.fabric import Fabric


def switch_links(fabric: Fabric) -> list[tuple[str, str]]:
    names = {switch.name for switch in fabric.switches}
    return [(link.a, link.b) for link in fabric.links if {link.a, link.b} <= names]


@pytest.mark.parametrize("fabric", FABRICS, ids=lambda fabric: f"{fabric.name}-{len(fabric.switches)}")
def test_every_host_reaches_every_other_over_every_shortest_path_and_no_other(fabric: Fabric) -> None:
    run = Run(fabric)
    run.sync()
    run.assert_everybody_reaches_everybody()
    hosts = run.network.hosts
    for a, b in permutations(hosts, 2):
        taken = {arrival.switches for arrival in run.network.send(a, run.network.tcp(a, b))}
        paths = run.state.network.shortest_paths(hosts[a].ip, hosts[b].ip)
        assert taken == {path.nodes[1:-1] for path in paths}


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_packets_arrive_or_are_dropped_but_never_loop_whatever_links_fail_and_return(data: st.DataObject) -> None:
    fabric = data.draw(st.sampled_from(FABRICS))
    run = Run(fabric)
    run.sync()
    links = switch_links(fabric)
    down: list[tuple[str, str]] = []
    for _ in range(data.draw(st.integers(1, 6))):
        if down and data.draw(st.booleans()):
            run.restore(*down.pop(data.draw(st.integers(0, len(down) - 1))))
        else:
            alive = [link for link in links if link not in down]
            if not alive:
                continue
            down.append(data.draw(st.sampled_from(alive)))
            run.fail(*down[-1])
        run.sync()
        run.assert_everybody_reaches_everybody()


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_an_explicit_path_follows_exactly_the_chosen_switches(data: st.DataObject) -> None:
    fabric = data.draw(st.sampled_from(FABRICS))
    run = Run(fabric)
    for link in data.draw(st.lists(st.sampled_from(switch_links(fabric)), unique=True, max_size=3)):
        run.fail(*link)
    run.sync()
    a, b = data.draw(st.sampled_from(list(permutations(run.network.hosts, 2))))
    source, destination = run.network.hosts[a].ip, run.network.hosts[b].ip
    for path in run.state.network.shortest_paths(source, destination):
        switch = run.network.switches[path.nodes[1]]
        entry = run.planner.explicit_entry(FiveTuple(source, destination, 6, 5000, 6000), path, COOKIE_READS | 7, 30)
        switch.receive([openflow.flow_add(switch.datapath, entry)])
        arrivals = run.network.send(a, run.network.tcp(a, b))
        assert {(arrival.where, arrival.switches) for arrival in arrivals} == {(destination, path.nodes[1:-1])}
        assert all(not arrival.packet.labels for arrival in arrivals)


def test_an_explicit_path_carries_its_one_flow_alone() -> None:
    run = Run(FABRICS[0])
    run.sync()
    a, b = "p0r0h0", "p1r1h0"
    source, destination = run.network.hosts[a].ip, run.network.hosts[b].ip
    path = run.state.network.shortest_paths(source, destination)[0]
    switch = run.network.switches[path.nodes[1]]
    entry = run.planner.explicit_entry(FiveTuple(source, destination, 6, 5000, 6000), path, COOKIE_READS | 7, 30, 2)
    switch.receive([openflow.flow_add(switch.datapath, entry)])
    assert len(run.network.send(a, run.network.tcp(a, b))) == 1
    assert len(run.network.send(a, run.network.tcp(a, b, destination_port=6001))) == 8
    assert isinstance(entry.actions[0], PushLabel) and entry.actions[0].traffic_class == 2
    assert switch.flows[entry.key] == entry


def test_no_packet_is_lost_between_the_steps_in_which_a_link_returns() -> None:
    fabric = FABRICS[0]
    for link in switch_links(fabric):
        run = Run(fabric)
        run.fail(*link)
        run.sync()
        run.restore(*link)
        run.sync(between_steps=run.assert_everybody_reaches_everybody)


def test_no_packet_is_lost_between_the_steps_after_groups_were_pruned_of_a_dead_link() -> None:
    fabric = FABRICS[0]
    for link in switch_links(fabric):
        run = Run(fabric)
        run.sync()
        run.fail(*link)
        for dpid, switch in run.network.switches.items():
            for group in run.planner.groups(dpid).values():
                if group != run.installed[dpid].groups[group.group_id]:
                    switch.receive([openflow.group_modify(switch.datapath, group)])
                    run.installed[dpid].groups[group.group_id] = group
        run.assert_everybody_reaches_everybody()
        run.sync(between_steps=run.assert_everybody_reaches_everybody)


def test_a_link_that_goes_and_returns_leaves_the_tables_as_they_were() -> None:
    run = Run(FABRICS[5])
    run.sync()
    before = {dpid: (dict(switch.flows), dict(switch.groups)) for dpid, switch in run.network.switches.items()}
    for link in switch_links(FABRICS[5])[:6]:
        run.fail(*link)
        run.sync()
        run.restore(*link)
        run.sync()
        old_labels = {key for flows, _ in before.values() for key in flows}
        for dpid, switch in run.network.switches.items():
            flows = {key: entry for key, entry in switch.flows.items() if key in old_labels}
            assert (flows, switch.groups) == before[dpid]


def test_a_controller_that_starts_anew_on_an_unchanged_fabric_changes_nothing() -> None:
    first, second = Run(FABRICS[5]), Run(FABRICS[5])
    first.sync()
    second.planner.assign_labels()
    for dpid, installed in first.installed.items():
        assert not reconcile.changes(installed, second.planner.tables(dpid))


def test_a_new_hosts_arp_is_answered_by_its_switch_only_when_its_answers_find_the_way_back() -> None:
    run = Run(FABRICS[0])
    newcomer, target = run.network.hosts["p0r0h0"], run.network.hosts["p1r1h0"]
    location = run.state.hosts[newcomer.ip]
    run.state.remove_host(newcomer.ip)
    run.sync()
    run.state.set_host(location)
    request = Packet.of(eth_type=0x0806, eth_src=newcomer.mac, arp_op=1, arp_sha=newcomer.mac, arp_spa=newcomer.ip,
                        arp_tha="00:00:00:00:00:00", arp_tpa=target.ip)
    answered = []

    def is_reached_if_answered() -> None:
        if {arrival.where for arrival in run.network.send("p0r0h0", request)} == {newcomer.ip}:
            answered.append(True)
            back = run.network.send("p1r1h0", run.network.tcp("p1r1h0", "p0r0h0"))
            assert {arrival.where for arrival in back} == {newcomer.ip}

    run.sync(between_steps=is_reached_if_answered)
    assert answered


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_a_controller_that_starts_anew_loses_no_packet_whatever_happened_before(data: st.DataObject) -> None:
    fabric = data.draw(st.sampled_from(FABRICS[:4]))
    links = switch_links(fabric)
    run = Run(fabric)
    # The first controller's labels depend on the order in which it saw links go and come ...
    for link in data.draw(st.lists(st.sampled_from(links), unique=True, max_size=4)):
        run.fail(*link)
    run.sync()
    for dead in list(run.network.dead):
        if data.draw(st.booleans()):
            run.restore(*sorted(dead))
            run.sync()
    # ... of which the second one knows nothing.
    run.state = run.network.state()
    run.planner = Planner(run.state)
    run.planner.adopt_labels(run.installed)
    run.sync(between_steps=run.assert_everybody_reaches_everybody)
    again = {dpid: reconcile.changes(tables, run.planner.tables(dpid)) for dpid, tables in run.installed.items()}
    assert not any(again.values())
    for link in data.draw(st.lists(st.sampled_from(links), unique=True, max_size=2)):
        (run.restore if frozenset(link) in run.network.dead else run.fail)(*link)
        run.sync()
        run.assert_everybody_reaches_everybody()


def test_labels_that_contradict_themselves_are_not_taken_over() -> None:
    run = Run(FABRICS[0])
    run.sync()
    label = next(iter(run.planner.labels.labels))
    next_hops = run.planner.labels.next_hops(label)
    table = LabelTable()
    first, second = next(iter(next_hops.items()))
    destination = run.planner.labels.destination(label)
    assert not table.adopt(label, destination, next_hops | {second: first})
    assert not table.adopt(label, first, next_hops)
    assert not table.adopt(3, destination, next_hops)
    assert len(table.labels) == 0
    assert table.adopt(label, destination, next_hops)
    assert not table.adopt(label, destination, next_hops)


def test_a_host_that_moves_is_reached_at_its_new_place_only() -> None:
    run = Run(FABRICS[0])
    run.sync()
    mover, other = run.network.hosts["p0r0h0"], run.network.hosts["p1r1h0"]
    edge = run.network.fabric.edge_switch_of("p0r1h0").dpid_hex
    run.state.set_host(HostLocation(mover.ip, mover.mac, edge, 9))
    run.sync()
    for dpid, switch in run.network.switches.items():
        out = switch.execute(Packet.of(eth_type=0x0800, ipv4_dst=mover.ip, ipv4_src=other.ip, eth_src=other.mac), 1)
        ports = {port_no for port_no, packet in out if not packet.labels and port_no < openflow.PORT_MAX}
        assert ports == ({9} if dpid == edge else set())


def test_switches_answer_arp_for_known_hosts_of_known_hosts() -> None:
    run = Run(FABRICS[0])
    run.sync()
    asker, target = run.network.hosts["p0r0h0"], run.network.hosts["p1r1h0"]
    request = Packet.of(eth_type=0x0806, eth_src=asker.mac, eth_dst="ff:ff:ff:ff:ff:ff", arp_op=1, arp_sha=asker.mac,
                        arp_spa=asker.ip, arp_tha="00:00:00:00:00:00", arp_tpa=target.ip)
    (arrival,) = run.network.send("p0r0h0", request)
    assert arrival.where == asker.ip
    answer = dict(arrival.packet.fields)
    assert (answer["arp_op"], answer["arp_sha"], answer["arp_spa"]) == (2, target.mac, target.ip)
    assert (answer["arp_tha"], answer["arp_tpa"], answer["eth_dst"]) == (asker.mac, asker.ip, asker.mac)


@pytest.mark.parametrize("change", [{"arp_spa": "10.9.9.9"}, {"arp_sha": "02:00:00:00:00:99"},
                                    {"arp_tpa": "10.9.9.9"}, {"arp_op": 2}])
def test_the_controller_sees_arp_that_tells_or_asks_something_new(change: dict[str, Any]) -> None:
    run = Run(FABRICS[0])
    run.sync()
    asker, target = run.network.hosts["p0r0h0"], run.network.hosts["p1r1h0"]
    request = Packet.of(eth_type=0x0806, eth_src=asker.mac, arp_op=1, arp_sha=asker.mac, arp_spa=asker.ip,
                        arp_tha="00:00:00:00:00:00", arp_tpa=target.ip).with_fields(**change)
    assert {arrival.where for arrival in run.network.send("p0r0h0", request)} == {"controller"}


def test_the_controller_sees_an_unknown_sender_whose_packet_goes_on() -> None:
    run = Run(FABRICS[0])
    run.sync()
    packet = run.network.tcp("p0r0h0", "p0r1h0").with_fields(ipv4_src="10.9.9.9")
    wheres = {arrival.where for arrival in run.network.send("p0r0h0", packet)}
    assert wheres == {"controller", run.network.hosts["p0r1h0"].ip}


@pytest.mark.parametrize(("fields", "where"), [
    ({"ipv4_dst": "10.9.9.9"}, "controller"), ({"ipv4_dst": "224.0.0.251"}, "nowhere"),
    ({"ipv4_dst": "255.255.255.255"}, "nowhere"), ({"eth_type": 0x86DD}, "nowhere"),
    ({"eth_type": 0x88CC}, "controller"),
])
def test_other_packets_go_where_the_documentation_says(fields: dict[str, Any], where: str) -> None:
    run = Run(FABRICS[0])
    run.sync()
    packet = run.network.tcp("p0r0h0", "p0r1h0").with_fields(**fields)
    assert {arrival.where for arrival in run.network.send("p0r0h0", packet)} == {where}


def test_what_switches_hold_tells_an_amnesiac_controller_where_hosts_are() -> None:
    run = Run(FABRICS[0])
    run.sync()
    for dpid, tables in run.installed.items():
        assert sorted(known_hosts(tables)) == sorted(
            (host.port_no, host.mac, host.ip) for host in run.state.hosts_at(dpid))


def test_entries_of_others_are_left_alone_and_reads_are_kept_apart() -> None:
    foreign = openflow.FlowEntry(Table.ROUTES, 7, (), cookie=0x1234)
    read = openflow.FlowEntry(Table.ROUTES, 300, (), cookie=COOKIE_READS | 5)
    found = sort_read_back([foreign, read, *STATIC_ENTRIES], [])
    assert set(found.tables.flows.values()) == set(STATIC_ENTRIES)
    assert found.explicit == [read]


def test_the_documentation_names_all_tables_priorities_and_cookies_as_they_are() -> None:
    text = (pathlib.Path(__file__).parents[3] / "docs" / "switch-tables.md").read_text()
    rows = [f"| {table.value} `{table.name}` |" for table in Table]
    rows += [f"| `{priority.name}` | {priority.value} |" for priority in openflow.Priority]
    rows += [f"| `{name}` | `{value >> 48:#x}` |" for name, value in vars(openflow).items()
             if name.startswith("COOKIE_") and name != "COOKIE_MASK"]
    assert [row for row in rows if row not in text] == []
