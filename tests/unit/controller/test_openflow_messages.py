"""Frames, OVSDB rows and addresses: what the controller makes of them, damaged ones included."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller import arp, lldp
from controller.openflow import COOKIE_READS, cookie
from controller.ovsdb import DatabaseUnreachable, capacities_of, read_capacities

TOKEN = b"12345678"
KEY = ("00000000000000aa", 7)


def test_probe_tells_where_it_left() -> None:
    frame = lldp.probe(KEY, "02:00:00:00:00:07", TOKEN)
    assert len(frame) >= 60
    assert lldp.source_of(frame, TOKEN) == KEY


def test_probe_of_another_controller_is_ignored() -> None:
    assert lldp.source_of(lldp.probe(KEY, "02:00:00:00:00:07", b"87654321"), TOKEN) is None


@given(st.integers(0, 80), st.binary(max_size=80))
def test_damaged_probe_is_ignored_or_read_right(length: int, tail: bytes) -> None:
    frame = lldp.probe(KEY, "02:00:00:00:00:07", TOKEN)[:length] + tail
    assert lldp.source_of(frame, TOKEN) in (None, KEY)


def test_arp_packet_survives_the_wire() -> None:
    packet = arp.Packet(arp.REQUEST, "02:00:00:00:00:01", "10.0.0.1", arp.NO_MAC, "10.0.0.2")
    frame = arp.build(packet)
    assert frame[:6] == b"\xff" * 6 and len(frame) == 60
    assert arp.parse(frame) == packet


@given(st.binary(max_size=120))
def test_any_bytes_are_no_trouble(frame: bytes) -> None:
    arp.parse(frame)
    arp.parse_ipv4(frame)
    arp.parse(frame[:12] + b"\x08\x06" + frame[14:])
    arp.parse_ipv4(frame[:12] + b"\x08\x00" + frame[14:])


@pytest.mark.parametrize(("ip", "is_host"), [
    ("10.0.0.1", True), ("192.168.3.4", True), ("0.0.0.0", False), ("127.0.0.1", False), ("224.0.0.1", False),
    ("255.255.255.255", False), ("169.254.1.1", False), ("10.0.0", False), ("host", False), ("", False),
])
def test_only_addresses_that_a_host_may_have_are_learnt(ip: str, is_host: bool) -> None:
    assert arp.is_host_address(ip) is is_host


def test_cookie_is_a_prefix_and_a_number() -> None:
    assert cookie(COOKIE_READS, 5) == COOKIE_READS | 5
    for prefix, number in ((COOKIE_READS, 1 << 48), (COOKIE_READS, -1), (7, 1)):
        with pytest.raises(ValueError):
            cookie(prefix, number)


def rows(**interface: Any) -> dict[str, list[dict[str, Any]]]:
    """An OVSDB with two bridges of one port each; the first bridge's interface has these columns."""
    def named(kind: str, number: int) -> list[str]:
        return ["uuid", f"{kind}{number}"]

    plain = {"ofport": 3, "external_ids": ["map", []], "link_speed": ["set", []]}
    return {
        "Bridge": [{"datapath_id": f"00000000000000{number}a", "ports": named("port", number)} for number in (1, 2)],
        "Port": [{"_uuid": named("port", number), "interfaces": named("interface", number),
                  "qos": named("qos", 1) if number == 1 else ["set", []]} for number in (1, 2)],
        "Interface": [{"_uuid": named("interface", number)} | plain | (interface if number == 1 else
                                                                       {"link_speed": 10**10}) for number in (1, 2)],
        "QoS": [{"_uuid": named("qos", 1), "other_config": ["map", [["max-rate", "50000000"]]]}],
    }


@pytest.mark.parametrize(("interface", "capacity_bps"), [
    ({"external_ids": ["map", [["capacity_bps", "8000000"]]], "link_speed": 10**10}, 8e6),
    ({"link_speed": 10**10}, 50e6),
])
def test_capacity_is_what_was_written_before_what_shapes_before_the_link(
        interface: dict[str, Any], capacity_bps: float) -> None:
    assert capacities_of(rows(**interface), "000000000000001a") == {3: capacity_bps}
    assert capacities_of(rows(**interface), "000000000000002a") == {3: 1e10}
    assert capacities_of(rows(**interface), "000000000000003a") == {}


def test_interface_without_a_port_number_has_no_capacity() -> None:
    assert capacities_of(rows(ofport=["set", []]), "000000000000001a") == {}


def test_database_that_is_not_there_is_said_so() -> None:
    with pytest.raises(DatabaseUnreachable, match=r"tcp:127\.0\.0\.1:1"):
        read_capacities("127.0.0.1", 1, "000000000000001a", 1.0)
