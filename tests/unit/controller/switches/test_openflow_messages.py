"""Frames, OVSDB rows and addresses: what the controller makes of them, damaged ones included."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speedwell.controller.switches.entries import cookie
from speedwell.controller.switches.layout import COOKIE_FLOWS
from speedwell.controller.switches.ovsdb import Database, DatabaseUnreachable, capacities_of, read_capacities
from speedwell.controller.topology import arp, lldp
from speedwell.controller.topology.state import PortKey

SECRET = b"0123456789abcdef"
KEY = ("00000000000000aa", 7)


def signed(key: PortKey = KEY, epoch: int = 5, secret: bytes = SECRET) -> bytes:
    return lldp.sign(lldp.unsigned(key, "02:00:00:00:00:07"), epoch, secret)


def test_probe_tells_where_and_as_which_it_left() -> None:
    frame = signed()
    assert len(frame) == lldp.FRAME_BYTES >= 60
    assert lldp.read(frame, SECRET) == (KEY, 5)
    assert lldp.read(frame + b"padding", SECRET) == (KEY, 5)


def test_probe_is_well_formed_lldp() -> None:
    kinds, offset, frame = [], 14, signed()
    while offset < len(frame):
        kind, length = divmod(int.from_bytes(frame[offset:offset + 2]), 1 << 9)
        kinds.append(kind)
        offset += 2 + length
    assert kinds == [lldp.CHASSIS_ID, lldp.PORT_ID, lldp.TIME_TO_LIVE, lldp.ORGANISATION_SPECIFIC, 0]
    assert offset == len(frame)


def test_probe_that_another_controller_signed_is_forged() -> None:
    with pytest.raises(lldp.ForgedProbe):
        lldp.read(signed(secret=b"another controller's"), SECRET)


@given(st.integers(0, lldp.FRAME_BYTES - 3), st.integers(1, 255))
def test_probe_of_which_one_byte_is_altered_is_not_believed(position: int, flipped: int) -> None:
    frame = bytearray(signed())
    frame[position] ^= flipped
    with pytest.raises((lldp.ForgedProbe, lldp.ForeignFrame)):
        lldp.read(bytes(frame), SECRET)


@given(st.integers(0, lldp.FRAME_BYTES - 3), st.binary(max_size=80))
def test_damaged_probe_is_ignored_or_read_right(length: int, tail: bytes) -> None:
    with suppress(lldp.ForgedProbe, lldp.ForeignFrame):
        assert lldp.read(signed()[:length] + tail, SECRET) == (KEY, 5)


@given(st.binary(max_size=1600), st.sampled_from([0, lldp.FRAME_BYTES // 2, lldp.FRAME_BYTES]))
def test_any_bytes_are_no_probe(frame: bytes, kept: int) -> None:
    forged = signed(secret=b"guessed")[:kept] + frame
    for each in (frame, forged, frame[:12] + lldp.ETHERTYPE + frame[14:]):
        with pytest.raises((lldp.ForgedProbe, lldp.ForeignFrame)):
            lldp.read(each, SECRET)


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
    assert cookie(COOKIE_FLOWS, 5) == COOKIE_FLOWS | 5
    for prefix, number in ((COOKIE_FLOWS, 1 << 48), (COOKIE_FLOWS, -1), (7, 1)):
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


@pytest.mark.parametrize("told", ["1e999", "inf", "nan", "-1", "0", "1e-320", "999", "fast", "", "9" * 400,
                                  ["set", []], None, {}])
def test_a_capacity_that_no_port_can_have_is_as_if_it_were_not_there(told: Any) -> None:
    found = rows(external_ids=["map", [["capacity_bps", told]]], link_speed=10**10)
    assert capacities_of(found, "000000000000001a") == {3: 50e6}


def test_interface_without_a_port_number_has_no_capacity() -> None:
    assert capacities_of(rows(ofport=["set", []]), "000000000000001a") == {}


def test_database_that_is_not_there_is_said_so() -> None:
    with pytest.raises(DatabaseUnreachable, match=r"tcp:127\.0\.0\.1:1"):
        read_capacities(Database("127.0.0.1", 1, "000000000000001a"), 1.0)
