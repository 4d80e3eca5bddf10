"""Prefix routes: every host is reached at its edge switch, whatever the address plan and the order of events."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from speedwell.controller.policy.network.prefixes import ADDRESS_BITS, PrefixRoutes, Routes

edges = st.sampled_from("ABCDE")
addresses = st.one_of(st.integers(0, 40), st.integers(0, 2**32 - 1), st.integers(0x0A000000, 0x0A0003FF))
events = st.lists(st.tuples(addresses, st.one_of(edges, st.none())), max_size=80)


def longest_match(routes: Routes, address: int) -> str | None:
    """The edge switch that a switch would route an address to; None if no prefix holds it."""
    for length in range(ADDRESS_BITS, -1, -1):
        edge = routes.get((address >> ADDRESS_BITS - length << ADDRESS_BITS - length, length))
        if edge is not None:
            return edge
    return None


def routes_of(hosts: dict[int, str]) -> PrefixRoutes:
    routes = PrefixRoutes()
    for address, edge in hosts.items():
        routes.set_host(address, edge)
    return routes


@settings(max_examples=200, deadline=None)
@given(events)
def test_each_host_is_routed_to_its_edge_switch_after_each_event(happened: list[tuple[int, str | None]]) -> None:
    routes, hosts = PrefixRoutes(), dict[int, str]()
    known: dict[tuple[int, int], str] = {}
    for address, edge in happened:
        changed, gone = routes.set_host(address, edge)
        hosts.pop(address, None)
        if edge is not None:
            hosts[address] = edge
        known = {prefix: to for prefix, to in known.items() if prefix not in gone} | changed
        assert known == routes.routes
        assert len(routes.routes) <= len(hosts)
    assert {address: longest_match(routes.routes, address) for address in hosts} == hosts


@settings(max_examples=100, deadline=None)
@given(events, st.randoms(use_true_random=False))
def test_the_order_in_which_hosts_came_does_not_matter(happened: list[tuple[int, str | None]],
                                                       random: Random) -> None:
    routes, hosts = PrefixRoutes(), dict[int, str]()
    for address, edge in happened:
        routes.set_host(address, edge)
        hosts.pop(address, None)
        if edge is not None:
            hosts[address] = edge
    shuffled = list(hosts.items())
    random.shuffle(shuffled)
    assert routes_of(dict(shuffled)).routes == routes.routes


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(addresses, edges, min_size=1, max_size=60))
def test_no_route_reaches_beyond_what_its_hosts_have_in_common(hosts: dict[int, str]) -> None:
    for (base, length), _ in routes_of(hosts).routes.items():
        inside = [address for address in hosts if address >> 32 - length == base >> 32 - length]
        spread = min(inside) ^ max(inside)
        assert length == 32 - spread.bit_length()


def test_racks_with_prefixes_of_their_own_need_one_route_each() -> None:
    hosts = {(10 << 24) + (rack << 8) + number: f"rack{rack}" for rack in range(128) for number in range(1, 9)}
    assert len(routes_of(hosts).routes) == 128


def test_a_host_inside_its_racks_prefix_changes_no_route() -> None:
    routes = routes_of({(10 << 24) + (rack << 8) + n: f"rack{rack}" for rack in range(4) for n in (1, 2, 6, 8)})
    assert routes.set_host((10 << 24) + (2 << 8) + 4, "rack2") == ({}, set())


def test_a_host_that_moved_away_from_its_rack_has_a_route_of_its_own_and_no_other_changes() -> None:
    routes = routes_of({(10 << 24) + (rack << 8) + n: f"rack{rack}" for rack in range(4) for n in range(1, 9)})
    moved = (10 << 24) + (2 << 8) + 5
    assert routes.set_host(moved, "rack0") == ({(moved, 32): "rack0"}, set())


def test_addresses_without_a_plan_have_routes_of_their_own_at_worst() -> None:
    hosts = {(10 << 24) + number: "ABCD"[number % 4] for number in range(64)}
    routes = routes_of(hosts).routes
    assert len(routes) <= 64
    assert {address: longest_match(routes, address) for address in hosts} == hosts


def test_no_route_holds_the_address_of_who_has_none() -> None:
    hosts = {2 << 24: "leaf1", (10 << 24) + 257: "leaf1", (10 << 24) + 258: "leaf1", (10 << 24) + 1: "leaf0"}
    assert longest_match(routes_of(hosts).routes, 0) is None
