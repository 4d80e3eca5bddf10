"""Requests for keys in tables of fake switches: from every client to every server, whatever link is down."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from speedwell.controller.metadata.steering import NUMBER, TABLE, Steering, role_of
from speedwell.controller.policy.metadata.blocks import halves, nodes_above, size
from speedwell.controller.policy.metadata.layout import Layout, lay_out, leave
from speedwell.controller.policy.metadata.tables import Also, switch_of, tables
from speedwell.controller.policy.network.prefixes import Prefix
from speedwell.controller.switches.entries import LoadLabel
from speedwell.controller.tables.entries import dotted
from speedwell.topo.fabric import Fabric, fat_tree, spine_leaf, three_tier
from tests.unit.controller.fake_switch import Packet
from tests.unit.controller.forwarding_run import Run

FABRICS: list[Fabric] = [
    three_tier(pods=2, racks_per_pod=2, hosts_per_rack=2, aggregations_per_pod=2, cores=2),
    three_tier(pods=2, racks_per_pod=3, hosts_per_rack=1, aggregations_per_pod=3, cores=1),
    three_tier(pods=3, racks_per_pod=1, hosts_per_rack=2, aggregations_per_pod=1, cores=2),
    spine_leaf(leaves=3, spines=3, hosts_per_leaf=2), spine_leaf(leaves=1, spines=1, hosts_per_leaf=2), fat_tree(k=4)]
GATEWAY = "02:53:70:64:00:40"


class Metadata:
    """A server at the first host of each rack, or of those named."""

    def __init__(self, fabric: Fabric, servers: list[str] | None = None, traffic_class: int | None = None) -> None:
        self.run = Run(fabric)
        self.traffic_class = traffic_class
        network = self.run.network
        first = {fabric.edge_switch_of(host).name: host for host in reversed(fabric.hosts)}
        hosts = [network.hosts[name] for name in servers] if servers else list(first.values())
        self.servers = [host.name for host in hosts]
        self.also: Also = ()
        self.hot: dict[tuple[str, int], tuple[str, ...]] = {}
        self.hot_senders: dict[str, list[Prefix]] = {}
        self.lay_out(lay_out(nodes_above(self.run.state.network, [host.ip for host in hosts])))
        self.run.sync()
        self.run.planner.registry.declare(TABLE, lambda dpid: self.steering().entries(dpid))
        self.run.planner.fill_all()
        self.run.sync()

    def lay_out(self, layout: Layout) -> None:
        self.layout = layout
        self.blocks: dict[str, list[Prefix]] = {server: [] for server in layout.above}
        for block in layout.blocks:
            self.blocks[block.server].append(block.prefix)

    def steering(self) -> Steering:
        state = self.run.state
        places = {ip: state.hosts[ip] for ip in (*self.blocks, *(server for _, server, _ in self.also))}
        senders = {server: [*blocks, *self.hot_senders.get(server, ())] for server, blocks in self.blocks.items()}
        return Steering(self.blocks, senders, places, frozenset(state.edge_switches()), state.switch_ports(),
                        self.run.planner.default_route, self.also, hot=self.hot,
                        traffic_class=self.traffic_class)

    def request(self, client: str, address: str) -> Packet:
        return self.run.network.tcp(client, client).with_fields(ipv4_dst=address, eth_dst=GATEWAY)

    def missed(self) -> list[tuple[str, str, set[str]]]:
        """Clients and servers between which a request may end elsewhere, if there is a way at all."""
        found = []
        for client in self.run.network.hosts:
            for server in self.servers:
                ip = self.run.network.hosts[server].ip
                if client == server or not self.run.connected(client, server):
                    continue
                for first, length in self.blocks.get(ip, [])[:2]:
                    address = first + (1 << 32 - length) - 1
                    arrivals = self.run.network.send(client, self.request(client, dotted(address)))
                    if {arrival.where for arrival in arrivals} != {ip}:
                        found.append((client, server, {arrival.where for arrival in arrivals}))
                    assert all(not arrival.packet.labels for arrival in arrivals if arrival.where == ip)
        return found


@pytest.mark.parametrize("fabric", FABRICS, ids=lambda fabric: f"{fabric.name}-{len(fabric.switches)}")
def test_every_request_ends_at_the_owner_of_its_address_with_its_mac(fabric):
    metadata = Metadata(fabric)
    assert metadata.missed() == []
    owner, prefixes = next((ip, prefixes) for ip, prefixes in metadata.blocks.items() if prefixes)
    client = next(host for host in fabric.hosts if host.ip != owner)
    arrival, *_ = metadata.run.network.send(client.name, metadata.request(client.name, dotted(prefixes[0][0])))
    server = next(host for host in fabric.hosts if host.ip == owner)
    assert dict(arrival.packet.fields)["eth_dst"] == server.mac


@pytest.mark.parametrize("fabric", [FABRICS[0], FABRICS[3]],
                         ids=lambda fabric: f"{fabric.name}-{len(fabric.switches)}")
def test_with_any_link_between_switches_down_every_request_still_arrives(fabric):
    metadata = Metadata(fabric)
    switches = {switch.name for switch in fabric.switches}
    for link in fabric.links:
        if {link.a, link.b} <= switches:
            metadata.run.fail(link.a, link.b)
            metadata.run.sync()
            assert metadata.missed() == [], link
            metadata.run.restore(link.a, link.b)
            metadata.run.sync()
    assert metadata.missed() == []


def test_two_links_down_in_different_racks_of_a_pod_leave_its_racks_to_be_named_one_by_one():
    metadata = Metadata(FABRICS[1])
    for pair in ((f"edge-p0r{number}", f"aggregation-p0-{number}") for number in range(3)):
        found = next(link for link in FABRICS[1].links if {link.a, link.b} == set(pair))
        metadata.run.fail(found.a, found.b)
    metadata.run.sync()
    assert metadata.missed() == []


def test_the_core_and_racks_without_clients_or_servers_have_nothing_of_it():
    metadata = Metadata(FABRICS[0])
    held = {metadata.run.network.name_of[dpid]: [entry for entry in switch.flows.values()
                                                 if entry.cookie == TABLE.cookie and entry.match]
            for dpid, switch in metadata.run.network.switches.items()}
    assert [name for name, entries in held.items() if not any(entry.priority > 201 for entry in entries)] == [
        switch.name for switch in FABRICS[0].switches if switch.name.startswith("core")]
    assert all(entry.table != NUMBER or not entry.actions for name, entries in held.items()
               if name.startswith("core") for entry in entries)


def test_an_address_of_a_key_is_a_senders_only_at_the_port_of_its_owner():
    metadata = Metadata(FABRICS[0])
    network = metadata.run.network
    server, thief, client = metadata.servers[0], metadata.servers[1], "p1r1h1"
    own = dotted(metadata.blocks[network.hosts[server].ip][0][0])
    answer = network.tcp(server, client).with_fields(ipv4_src=own)
    assert {arrival.where for arrival in network.send(server, answer)} == {network.hosts[client].ip}
    for host in (thief, "p0r0h1", client):
        forged = network.tcp(host, server).with_fields(ipv4_src=own)
        assert {arrival.where for arrival in network.send(host, forged)} == {"nowhere"}, host
        asked = Packet.of(eth_type=0x0806, eth_src=network.hosts[host].mac, arp_op=1, eth_dst="ff:ff:ff:ff:ff:ff",
                          arp_sha=network.hosts[host].mac, arp_spa=own, arp_tpa=network.hosts[server].ip)
        assert {arrival.where for arrival in network.send(host, asked)} == {"nowhere"}
        asked = asked.with_fields(arp_spa=network.hosts[host].ip, arp_tpa=own)
        assert {arrival.where for arrival in network.send(host, asked)} == {"nowhere"}


@pytest.mark.parametrize("traffic_class", [None, 7])
def test_requests_and_answers_have_the_class_of_metadata_between_switches(traffic_class: int | None):
    metadata = Metadata(FABRICS[0], traffic_class=traffic_class)
    network = metadata.run.network
    server, client = metadata.servers[0], "p1r1h1"
    own = dotted(metadata.blocks[network.hosts[server].ip][0][0])
    arrivals = [*network.send(client, metadata.request(client, own)),
                *network.send(server, network.tcp(server, client).with_fields(ipv4_src=own))]
    assert {arrival.where for arrival in arrivals} == {network.hosts[server].ip, network.hosts[client].ip}
    state = metadata.run.state
    loaded = {action.traffic_class for dpid in state.edge_switches() for entry in metadata.steering().entries(dpid)
              for action in entry.actions if isinstance(action, LoadLabel)}
    assert loaded == {traffic_class}


def test_no_packet_meets_tables_that_disagree_while_blocks_change_hands():
    fabric = FABRICS[1]
    metadata = Metadata(fabric, ["p0r0h0", "p0r1h0", "p1r0h0", "p1r1h0"])
    network, rng = metadata.run.network, Random(1)
    servers = [network.hosts[name].ip for name in (*metadata.servers, "p0r2h0", "p1r2h0")]
    seen: set[str] = set()
    for _ in range(4):
        before = {block: server for server, blocks in metadata.blocks.items() for block in blocks}
        moves = []
        for block in rng.sample(sorted(before), len(before) // 2):
            inner = rng.choice(halves(block)) if block[1] < 16 else block
            moves.append((inner, before[block], rng.choice(servers)))
        after = {server: sorted(blocks) for server, blocks in metadata.blocks.items()}
        for inner, source, target in moves:
            outer = next(block for block in after[source] if block[0] <= inner[0] < block[0] + size(block))
            after[source].remove(outer)
            after[source] += [half for half in halves(outer) if half != inner] if outer != inner else []
            after.setdefault(target, []).append(inner)
        addresses = [first + at for first, length in before for at in (0, size((first, length)) - 1)]
        asked = rng.sample(addresses, 3)
        ends = {address: {_owner(metadata.blocks, address), _owner(after, address)} for address in asked}

        def look(ends: dict[int, set[str]] = ends) -> None:
            client = rng.choice(sorted(network.hosts))
            for address, right in ends.items():
                if network.hosts[client].ip not in right:
                    request = metadata.request(client, dotted(address))
                    wheres = {arrival.where for arrival in network.send(client, request)}
                    assert wheres <= right, (client, dotted(address))
                    seen.update(wheres)

        moves = [move for move in moves if move[1] != move[2]]
        for blocks, also in ((metadata.blocks, [(block, new, old) for block, old, new in moves]), (after, moves),
                             (after, [])):
            metadata.blocks, metadata.also = blocks, also
            metadata.run.sync(between_messages=look)
        assert metadata.missed() == []
    assert len(seen) > 3


def _owner(blocks: dict[str, list[Prefix]], address: int) -> str:
    return next(server for server, prefixes in blocks.items()
                if any(first <= address < first + size((first, length)) for first, length in prefixes))


@pytest.mark.parametrize("fabric", FABRICS, ids=lambda fabric: f"{fabric.name}-{len(fabric.switches)}")
def test_switches_have_as_many_entries_by_prefix_as_the_experiments_count(fabric):
    metadata = Metadata(fabric, [host.name for host in fabric.hosts])
    state = metadata.run.state
    for server in sorted(metadata.blocks)[::3]:
        if len(metadata.layout.above) > 1:
            metadata.lay_out(leave(metadata.layout, server))
    counted = Counter[str]()
    for name, table in tables(metadata.layout, nodes_above(state.network, state.hosts).values()).items():
        counted[switch_of(name)] += len(table)
    steering = metadata.steering()
    assert counted == Counter({dpid: number for dpid in state.switches if (number := sum(
        role_of(entry) in ("servers", "racks", "pods") for entry in steering.entries(dpid)))})


def test_without_blocks_there_are_no_entries():
    metadata = Metadata(FABRICS[0])
    metadata.blocks = {}
    metadata.run.sync()
    assert not any(entry.cookie == TABLE.cookie and entry.match
                   for switch in metadata.run.network.switches.values() for entry in switch.flows.values())


def test_a_hot_key_is_answered_in_the_clients_own_rack_where_it_has_replicas_and_by_its_owner_elsewhere():
    metadata = Metadata(three_tier(pods=2, racks_per_pod=2, hosts_per_rack=4, aggregations_per_pod=2, cores=2),
                        ["p0r0h0", "p0r0h1", "p0r1h0", "p1r0h0", "p1r1h0"])
    network = metadata.run.network
    owner = network.hosts["p1r1h0"].ip
    address = metadata.blocks[owner][0][0] + 5
    replicas = tuple(network.hosts[name].ip for name in ("p0r0h0", "p0r0h1"))
    edge = metadata.run.state.hosts[replicas[0]].dpid
    metadata.hot = {(edge, address): replicas}
    metadata.hot_senders = {replica: [(address, 32)] for replica in replicas}
    metadata.run.planner.fill_all()
    metadata.run.sync()

    def answerer(client: str) -> str:
        where, = {each.where for each in network.send(client, metadata.request(client, dotted(address)))}
        return where

    assert {answerer(client) for client in ("p0r0h2", "p0r0h3")} == set(replicas)
    assert {answerer(client) for client in ("p0r1h1", "p1r0h1", "p1r1h1")} == {owner}
    for replica, client in (("p0r0h0", "p0r0h2"), ("p0r0h1", "p0r0h3")):
        answer = network.tcp(replica, client).with_fields(ipv4_src=dotted(address))
        assert {arrival.where for arrival in network.send(replica, answer)} == {network.hosts[client].ip}
    assert metadata.missed() == []
    assert Counter(role_of(entry) for entry in metadata.steering().entries(edge))["hot"] == 2
