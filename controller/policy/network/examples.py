"""Networks that nobody has, to try things on."""

from __future__ import annotations

from speedwell.controller.policy.network.graph import Network


def smallest_network() -> Network:
    """Hosts a, b and c at two leaves that two spines join."""
    network = Network()
    leaf_of = {"a": "leaf0", "b": "leaf1", "c": "leaf1"}
    for switch in ("leaf0", "leaf1", "spine0", "spine1"):
        network.add_switch(switch)
    for host in leaf_of:
        network.add_host(host)
    ends = [*leaf_of.items(), *((leaf, spine) for leaf in ("leaf0", "leaf1") for spine in ("spine0", "spine1"))]
    for below, above in ends:
        network.add_link(below, above, 1e9)
        network.add_link(above, below, 1e9)
    return network
