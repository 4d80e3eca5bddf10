"""Requests for keys in tables of fake switches: from every client to every server, whatever link is down."""

from __future__ import annotations

import pytest

from speedwell.controller.metadata.steering import NUMBER, TABLE, Steering
from speedwell.controller.policy.metadata.blocks import nodes_above
from speedwell.controller.policy.metadata.layout import lay_out
from speedwell.controller.policy.network.prefixes import Prefix
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

    def __init__(self, fabric: Fabric, servers: list[str] | None = None) -> None:
        self.run = Run(fabric)
        network = self.run.network
        first = {fabric.edge_switch_of(host).name: host for host in reversed(fabric.hosts)}
        hosts = [network.hosts[name] for name in servers] if servers else list(first.values())
        self.servers = [host.name for host in hosts]
        self.blocks: dict[str, list[Prefix]] = {host.ip: [] for host in hosts}
        for block in lay_out(nodes_above(self.run.state.network, [host.ip for host in hosts])).blocks:
            self.blocks[block.server].append(block.prefix)
        self.run.sync()
        self.run.planner.registry.declare(TABLE, lambda dpid: self.steering().entries(dpid))
        self.run.planner.fill_all()
        self.run.sync()

    def steering(self) -> Steering:
        state = self.run.state
        return Steering(self.blocks, self.blocks, {ip: state.hosts[ip] for ip in self.blocks},
                        frozenset(state.edge_switches()), state.switch_ports(), self.run.planner.default_route)

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
                for first, length in self.blocks[ip][:2]:
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


def test_no_packet_meets_tables_that_disagree_while_a_block_goes_to_another_pod():
    metadata = Metadata(FABRICS[0])
    network = metadata.run.network
    source, target = (network.hosts[name].ip for name in ("p0r0h0", "p1r1h0"))
    first, length = metadata.blocks[source][0]
    block = first, length + 1
    wheres: set[str] = set()

    def look() -> None:
        for client in ("p0r0h1", "p0r1h1", "p1r0h1", "p1r1h1"):
            request = metadata.request(client, dotted(block[0]))
            wheres.update(arrival.where for arrival in network.send(client, request))

    metadata.blocks = {**metadata.blocks, source: [(first + (1 << 31 - length), length + 1)],
                       target: [*metadata.blocks[target], block]}
    metadata.run.sync(between_steps=look)
    assert wheres == {source, target}
    assert metadata.missed() == []


def test_without_blocks_there_are_no_entries():
    metadata = Metadata(FABRICS[0])
    metadata.blocks = {}
    metadata.run.sync()
    assert not any(entry.cookie == TABLE.cookie and entry.match
                   for switch in metadata.run.network.switches.values() for entry in switch.flows.values())
