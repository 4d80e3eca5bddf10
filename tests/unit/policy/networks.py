"""Networks for the tests of the policies."""

from speedwell.controller.policy.network.graph import Network


def join(network: Network, a: str, b: str, capacity_bps: float = 10e6) -> None:
    network.add_link(a, b, capacity_bps)
    network.add_link(b, a, capacity_bps)


def part(network: Network, a: str, b: str) -> None:
    network.remove_link(a, b)
    network.remove_link(b, a)


def network_with(switches: str, hosts: str, links: str, capacity_bps: float = 10e6) -> Network:
    """From space-separated names, links as `a-b`."""
    network = Network()
    for switch in switches.split():
        network.add_switch(switch)
    for host in hosts.split():
        network.add_host(host)
    for link in links.split():
        join(network, *link.split("-"), capacity_bps)
    return network
