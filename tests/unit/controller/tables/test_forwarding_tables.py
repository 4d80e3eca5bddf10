"""The planned tables, walked packet by packet through fabrics of fake switches."""

from __future__ import annotations

import pathlib
from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speedwell.controller.policy.network.five_tuple import FiveTuple
from speedwell.controller.switches import openflow
from speedwell.controller.switches.entries import PORT_MAX, Bucket, FlowEntry, Group, LoadLabel, ToGroup
from speedwell.controller.switches.layout import COOKIE_FLOWS, FIRST_GROUP, Priority, Table
from speedwell.controller.tables import reconcile, registry
from speedwell.controller.tables.entries import STATIC_ENTRIES, known_hosts
from speedwell.controller.tables.plan import TablePlanner
from speedwell.controller.tables.read_back import sort_read_back
from speedwell.controller.topology.state import HostLocation
from speedwell.topo.fabric import Fabric, spine_leaf, three_tier
from tests.unit.controller.fake_switch import Packet
from tests.unit.controller.forwarding_run import FABRICS, Run

ENTRIES_OF_A_HOST = 6


def switch_links(fabric: Fabric) -> list[tuple[str, str]]:
    names = {switch.name for switch in fabric.switches}
    return [(link.a, link.b) for link in fabric.links if {link.a, link.b} <= names]


def arp_request(run: Run, asker: str, target_ip: str, **changes: Any) -> Packet:
    host = run.network.hosts[asker]
    return Packet.of(eth_type=0x0806, eth_src=host.mac, eth_dst="ff:ff:ff:ff:ff:ff", arp_op=1, arp_sha=host.mac,
                     arp_spa=host.ip, arp_tha="00:00:00:00:00:00", arp_tpa=target_ip).with_fields(**changes)


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
        entry = run.paths.entry(FiveTuple(source, destination, 6, 5000, 6000), path, COOKIE_FLOWS | 7, 30)
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
    entry = run.paths.entry(FiveTuple(source, destination, 6, 5000, 6000), path, COOKIE_FLOWS | 7, 30, 2)
    switch.receive([openflow.flow_add(switch.datapath, entry)])
    assert len(run.network.send(a, run.network.tcp(a, b))) == 1
    assert len(run.network.send(a, run.network.tcp(a, b, destination_port=6001))) == 8
    assert isinstance(entry.actions[0], LoadLabel) and entry.actions[0].traffic_class == 2
    assert switch.flows[entry.key] == entry


@pytest.mark.parametrize(("trust_dscp", "traffic_class"), [(False, 0), (True, 6)])
def test_default_traffic_has_the_class_of_its_dscp_only_where_that_is_trusted(
        trust_dscp: bool, traffic_class: int) -> None:
    run = Run(FABRICS[0])
    run.state.settings = run.state.settings.model_copy(update={"trust_dscp": trust_dscp})
    run.sync()
    a, b = "p0r0h0", "p1r1h0"
    source, destination = run.network.hosts[a].ip, run.network.hosts[b].ip
    first = run.network.switches[run.state.network.shortest_paths(source, destination)[0].nodes[1]]
    port = next(host.port_no for host in run.state.hosts.values() if host.ip == source)
    for _, left in first.execute(run.network.tcp(a, b).with_fields(ip_dscp=6), port):
        assert left.traffic_classes == (traffic_class,)


def test_no_packet_is_lost_between_the_steps_in_which_a_link_returns() -> None:
    fabric = FABRICS[0]
    for link in switch_links(fabric):
        run = Run(fabric)
        run.fail(*link)
        run.sync()
        run.restore(*link)
        run.sync(between_steps=run.assert_everybody_reaches_everybody)


def test_no_packet_is_lost_between_the_steps_after_what_is_urgent_was_sent_for_a_dead_link() -> None:
    fabric = FABRICS[0]
    for link in switch_links(fabric):
        run = Run(fabric)
        run.sync()
        run.fail(*link)
        run.planner.assign_labels()
        for dpid, switch in run.network.switches.items():
            change = reconcile.changes(run.installed[dpid], run.planner.tables(dpid), run.planner.registry)
            first = reconcile.urgent(change, is_anything_to_arrive=False)
            switch.receive(reconcile.departure_messages(switch.datapath, first))
            reconcile.apply_departures(run.installed[dpid], first)
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


def test_the_labels_of_a_detour_go_when_the_shortest_path_is_back() -> None:
    run = Run(spine_leaf(leaves=3, spines=2, hosts_per_leaf=1))
    run.sync()
    before = {dpid: dict(tables.flows) for dpid, tables in run.installed.items()}
    cut = [("leaf0", "spine0"), ("leaf1", "spine1")]
    for link in cut:
        run.fail(*link)
    run.sync()
    assert any(entry.key not in before[dpid] for dpid, tables in run.installed.items()
               for entry in tables.flows.values() if entry.table == Table.LABELS)
    for link in cut:
        run.restore(*link)
    run.sync()
    assert {dpid: tables.flows for dpid, tables in run.installed.items()} == before


def test_a_controller_that_starts_anew_on_an_unchanged_fabric_changes_nothing() -> None:
    first, second = Run(FABRICS[5]), Run(FABRICS[5])
    first.sync()
    second.planner.assign_labels()
    for dpid, installed in first.installed.items():
        assert not reconcile.changes(installed, second.planner.tables(dpid), second.planner.registry)


def test_a_new_hosts_arp_passes_its_switch_only_when_answers_find_the_way_back() -> None:
    run = Run(FABRICS[0])
    newcomer, target = run.network.hosts["p0r0h0"], run.network.hosts["p1r1h0"]
    location = run.state.hosts[newcomer.ip]
    run.state.remove_host(newcomer.ip)
    run.sync()
    run.state.set_host(location)
    passed = []

    def is_reached_if_asked() -> None:
        asked = run.network.send("p0r0h0", arp_request(run, "p0r0h0", target.ip))
        if {arrival.where for arrival in asked} == {target.ip}:
            passed.append(True)
            back = run.network.send("p1r1h0", run.network.tcp("p1r1h0", "p0r0h0"))
            assert {arrival.where for arrival in back} == {newcomer.ip}

    run.sync(between_steps=is_reached_if_asked)
    assert passed


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
    run.planner = TablePlanner(run.state)
    run.planner.begin(run.installed)
    run.sync(between_steps=run.assert_everybody_reaches_everybody)
    again = {dpid: reconcile.changes(tables, run.planner.tables(dpid), run.planner.registry)
             for dpid, tables in run.installed.items()}
    assert not any(again.values())
    for link in data.draw(st.lists(st.sampled_from(links), unique=True, max_size=2)):
        (run.restore if frozenset(link) in run.network.dead else run.fail)(*link)
        run.sync()
        run.assert_everybody_reaches_everybody()


def test_a_host_that_moves_is_reached_at_its_new_place_only() -> None:
    run = Run(FABRICS[0])
    run.sync()
    mover, other = run.network.hosts["p0r0h0"], run.network.hosts["p1r1h0"]
    edge = run.network.fabric.edge_switch_of("p0r1h0").dpid_hex
    run.state.set_host(HostLocation(mover.ip, mover.mac, edge, 9))
    run.sync()
    for dpid, switch in run.network.switches.items():
        out = switch.execute(Packet.of(eth_type=0x0800, ipv4_dst=mover.ip, ipv4_src=other.ip, eth_src=other.mac), 1)
        ports = {port_no for port_no, packet in out if not packet.labels and port_no < PORT_MAX}
        assert ports == ({9} if dpid == edge else set())


def test_a_switch_answers_arp_for_its_own_hosts() -> None:
    run = Run(FABRICS[1])
    run.sync()
    asker, target = run.network.hosts["p0r0h0"], run.network.hosts["p0r0h1"]
    (arrival,) = run.network.send("p0r0h0", arp_request(run, "p0r0h0", target.ip))
    assert arrival.where == asker.ip
    answer = dict(arrival.packet.fields)
    assert (answer["arp_op"], answer["arp_sha"], answer["arp_spa"]) == (2, target.mac, target.ip)
    assert (answer["arp_tha"], answer["arp_tpa"], answer["eth_dst"]) == (asker.mac, asker.ip, asker.mac)


def test_arp_for_hosts_of_other_switches_goes_to_them_and_their_answer_comes_back() -> None:
    run = Run(FABRICS[0])
    run.sync()
    asker, target = run.network.hosts["p0r0h0"], run.network.hosts["p1r1h0"]
    asked = run.network.send("p0r0h0", arp_request(run, "p0r0h0", target.ip))
    assert {(at.where, dict(at.packet.fields)["eth_dst"]) for at in asked} == {(target.ip, target.mac)}
    answer = Packet.of(eth_type=0x0806, eth_src=target.mac, eth_dst=asker.mac, arp_op=2, arp_sha=target.mac,
                       arp_spa=target.ip, arp_tha=asker.mac, arp_tpa=asker.ip)
    answered = run.network.send("p1r1h0", answer)
    assert {(at.where, dict(at.packet.fields)["eth_dst"]) for at in answered} == {(asker.ip, asker.mac)}
    assert not any(at.packet.labels for at in answered)


@pytest.mark.parametrize("change", [{"arp_spa": "10.9.9.9"}, {"arp_sha": "02:00:00:00:00:99"},
                                    {"arp_tpa": "10.9.9.9"}, {"arp_tpa": "0.0.0.0", "arp_op": 2}])
def test_the_controller_sees_arp_that_tells_or_asks_something_new(change: dict[str, Any]) -> None:
    run = Run(FABRICS[0])
    run.sync()
    request = arp_request(run, "p0r0h0", run.network.hosts["p1r1h0"].ip, **change)
    assert {arrival.where for arrival in run.network.send("p0r0h0", request)} == {"controller"}


def test_the_controller_sees_an_unknown_sender_whose_packet_goes_on() -> None:
    run = Run(FABRICS[0])
    run.sync()
    packet = run.network.tcp("p0r0h0", "p0r1h0").with_fields(ipv4_src="10.9.9.9")
    wheres = {arrival.where for arrival in run.network.send("p0r0h0", packet)}
    assert wheres == {"controller", run.network.hosts["p0r1h0"].ip}


def test_unknown_addresses_inside_a_racks_prefix_end_at_that_rack() -> None:
    run = Run(three_tier(pods=2, racks_per_pod=2, hosts_per_rack=6, aggregations_per_pod=2, cores=2))
    run.sync()
    unknown = run.network.hosts["p1r1h3"].ip
    edge = run.state.hosts[unknown].dpid
    run.state.remove_host(unknown)
    run.sync()
    sent = run.network.send("p0r0h0", run.network.tcp("p0r0h0", "p1r1h3"))
    assert {(arrival.where, arrival.switches[-1]) for arrival in sent} == {("nowhere", edge)}
    asked = run.network.send("p0r0h0", arp_request(run, "p0r0h0", unknown))
    assert {(arrival.where, arrival.switches[-1]) for arrival in asked} == {("controller", edge)}


def test_an_edge_switch_holds_entries_for_its_own_hosts_and_for_other_racks() -> None:
    sizes = []
    for hosts in (2, 20):
        run = Run(three_tier(pods=2, racks_per_pod=2, hosts_per_rack=hosts, aggregations_per_pod=2, cores=2))
        run.sync()
        sizes.append(len(run.network.switches[run.network.dpid_of["edge-p0r0"]].flows))
    assert sizes[1] - sizes[0] == (20 - 2) * ENTRIES_OF_A_HOST


def test_a_host_that_arrives_inside_its_racks_prefix_concerns_its_own_switch_alone() -> None:
    run = Run(three_tier(pods=2, racks_per_pod=2, hosts_per_rack=6, aggregations_per_pod=2, cores=2))
    location = run.state.hosts[run.network.hosts["p1r1h3"].ip]
    run.state.remove_host(location.ip)
    run.sync()
    run.planner.pop_dirty()
    blocks = list(run.planner.labels.blocks)
    run.state.set_host(location)
    run.planner.assign_labels()
    dirty = run.planner.pop_dirty()
    assert {dpid: len(what.flows) for dpid, what in dirty.items()} == {location.dpid: ENTRIES_OF_A_HOST}
    assert list(run.planner.labels.blocks) == blocks


def test_hosts_whose_addresses_follow_no_plan_reach_each_other() -> None:
    fabric = FABRICS[1]
    hosts = list(fabric.hosts)
    addresses = [host.ip for host in hosts]
    shuffled = [replace(host, ip=ip) for host, ip in zip(hosts, addresses[::2] + addresses[1::2], strict=True)]
    run = Run(replace(fabric, hosts=tuple(shuffled)))
    run.sync()
    run.assert_everybody_reaches_everybody()


@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_a_read_falls_back_to_the_default_paths_by_the_switch_alone_when_its_first_link_dies(
        data: st.DataObject) -> None:
    run = Run(FABRICS[0])
    run.sync()
    source, destination = (run.network.hosts[name].ip for name in ("p0r0h0", "p1r1h0"))
    path = data.draw(st.sampled_from(run.state.network.shortest_paths(source, destination)))
    switch = run.network.switches[path.nodes[1]]
    entry = run.paths.entry(FiveTuple(source, destination, 6, 5000, 6000), path, COOKIE_FLOWS | 7, 30, 5)
    switch.receive([openflow.flow_add(switch.datapath, entry)])
    assert len(run.network.send("p0r0h0", run.network.tcp("p0r0h0", "p1r1h0"))) == 1
    run.network.dead.add(frozenset(run.network.name_of[dpid] for dpid in path.nodes[1:3]))
    arrivals = run.network.send("p0r0h0", run.network.tcp("p0r0h0", "p1r1h0"))
    assert {arrival.where for arrival in arrivals} == {destination}
    assert all(path.nodes[2] not in arrival.switches for arrival in arrivals)


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


def test_entries_and_groups_of_others_are_left_alone_and_reads_are_kept_apart() -> None:
    foreign = FlowEntry(Table.ROUTES, 7, (), (ToGroup(7),), cookie=0x1234)
    read = FlowEntry(Table.ROUTES, 300, (), cookie=COOKIE_FLOWS | 5)
    found = sort_read_back([foreign, read, *STATIC_ENTRIES], [Group(7, ()), Group(FIRST_GROUP, ())])
    assert set(found.tables.flows.values()) == set(STATIC_ENTRIES)
    assert found.explicit == [read]
    assert list(found.tables.groups) == [FIRST_GROUP]
    assert found.groups_of_others == frozenset()


def test_groups_that_entries_of_others_lead_to_are_told_even_by_way_of_others() -> None:
    foreign = FlowEntry(Table.ROUTES, 7, (), (ToGroup(7),), cookie=0x1234)
    chain = Bucket((ToGroup(FIRST_GROUP + 1),))
    found = sort_read_back([foreign, *STATIC_ENTRIES], [
        Group(7, (chain,)), *(Group(FIRST_GROUP + number, ()) for number in range(3))])
    assert found.groups_of_others == {FIRST_GROUP + 1}


def test_groups_that_others_made_and_the_flows_that_use_them_survive_all_changes() -> None:
    run = Run(FABRICS[0])
    foreign_group, foreign = Group(7, ()), FlowEntry(Table.ROUTES, 7, (), (ToGroup(7),), cookie=0x1234)
    for switch in run.network.switches.values():
        switch.receive([openflow.group_add(switch.datapath, foreign_group),
                        openflow.flow_add(switch.datapath, foreign)])
    for dpid, switch in run.network.switches.items():
        run.installed[dpid] = sort_read_back(switch.flows.values(), switch.groups.values()).tables
    run.sync()
    for link in switch_links(FABRICS[0]):
        run.fail(*link)
        run.sync()
    for switch in run.network.switches.values():
        assert switch.groups[7] == foreign_group and switch.flows[foreign.key] == foreign


def test_the_documentation_names_all_tables_priorities_and_cookies_as_they_are() -> None:
    text = (pathlib.Path(__file__).parents[4] / "docs" / "reference" / "switch-tables.md").read_text()
    rows = [f"| {table.value} `{table.name}` |" for table in Table]
    rows += [f"| `{priority.name}` | {priority.value} |" for priority in Priority]
    rows += [f"| `{name}` | `{value >> 48:#x}` |" for name, value in vars(registry).items()
             if name.startswith("COOKIE_") and name != "COOKIE_MASK"]
    assert [row for row in rows if row not in text] == []
