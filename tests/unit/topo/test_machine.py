"""The machine itself as one more host of a fabric."""

from dataclasses import replace

import pytest

from speedwell.topo.fabric import InvalidFabric, spine_leaf, three_tier
from speedwell.topo.fabric.machine import NAME, with_machine

FABRIC = three_tier(pods=2, racks_per_pod=1, hosts_per_rack=2)


def test_it_is_a_host_at_an_edge_switch_and_leaves_every_other_port_as_it_was() -> None:
    joined = with_machine(FABRIC)
    machine = joined.host(NAME)
    assert (machine.ip, machine.rack) == ("10.0.0.254", "p0r0")
    assert joined.ports(NAME)[0].capacity_bps == joined.ports("p0r0h0")[0].capacity_bps
    for node in (*FABRIC.hosts, *FABRIC.switches):
        before = FABRIC.ports(node.name)
        assert joined.ports(node.name)[:len(before)] == before


def test_where_a_rack_has_no_address_left_it_is_in_the_next() -> None:
    full = spine_leaf(leaves=2, spines=1, hosts_per_leaf=254)
    with pytest.raises(InvalidFabric, match="no address is left"):
        with_machine(full)
    without_last = replace(full, hosts=full.hosts[:-1], links=tuple(link for link in full.links
                                                                    if full.hosts[-1].name not in (link.a, link.b)))
    assert with_machine(without_last).host(NAME).ip == full.hosts[-1].ip


def test_a_host_of_that_name_is_refused() -> None:
    with pytest.raises(InvalidFabric, match="the name is that of the machine itself"):
        with_machine(with_machine(FABRIC))
