"""The datagram: what is sent arrives as it was, and nothing else is believed."""

from __future__ import annotations

import hmac
from dataclasses import replace
from hashlib import sha256
from ipaddress import IPv4Address
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speedwell.coflow import Flow, FlowReport, InvalidReport, Report, decode, encode
from speedwell.coflow.report import MAC_BYTES, MAX_DATAGRAM_BYTES, MAX_FLOWS, MAX_REMAINING_BYTES, host_key

KEY = b"k" * 32
NUMBERS = st.integers(1, (1 << 64) - 1)
HOSTS = st.integers(1, (1 << 24) - 2).map(lambda number: str(IPv4Address((10 << 24) + number)))
PORTS = st.integers(1, 65535)
FLOWS = st.builds(Flow, HOSTS, HOSTS, PORTS, PORTS, st.sampled_from([6, 17])).filter(
    lambda flow: flow.source != flow.destination)
REPORTS = st.builds(
    Report, st.binary(min_size=16, max_size=16), NUMBERS, NUMBERS, NUMBERS,
    st.lists(st.builds(FlowReport, FLOWS, st.integers(0, MAX_REMAINING_BYTES)), min_size=1, max_size=MAX_FLOWS,
             unique_by=lambda each: each.flow).map(tuple))
ONE = Report(bytes(range(16)), 7, 1, 1_700_000_000_000_000, (
    FlowReport(Flow("10.0.0.1", "10.0.1.1", 7100, 40000), 5),))


def signed(message: bytes, key: bytes = KEY) -> bytes:
    return message + hmac.digest(key, message, sha256)[:MAC_BYTES]


@given(REPORTS)
def test_what_is_encoded_is_decoded(report: Report) -> None:
    datagram = encode(report, KEY)
    assert decode(datagram, KEY) == report
    assert len(datagram) <= MAX_DATAGRAM_BYTES <= 1472


def test_the_bytes_are_where_the_documentation_says() -> None:
    datagram = encode(ONE, KEY)
    assert len(datagram) == 48 + 24 + 16
    assert datagram[:8] == b"SPCF\x01\x00\x00\x01" and datagram[8:24] == ONE.coflow_id
    assert [int.from_bytes(datagram[at:at + 8]) for at in (24, 32, 40)] == [7, 1, 1_700_000_000_000_000]
    assert datagram[48:72] == bytes([10, 0, 0, 1, 10, 0, 1, 1]) + (7100).to_bytes(2) + (40000).to_bytes(2) + bytes(
        [6, 0, 0, 0]) + (5).to_bytes(8)
    assert datagram[72:] == hmac.digest(KEY, datagram[:72], sha256)[:16]


@given(REPORTS, st.data())
def test_a_changed_datagram_is_refused(report: Report, data: st.DataObject) -> None:
    datagram = bytearray(encode(report, KEY))
    datagram[data.draw(st.integers(0, len(datagram) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(InvalidReport):
        decode(bytes(datagram), KEY)


@given(st.binary(max_size=2 * MAX_DATAGRAM_BYTES))
def test_no_bytes_from_anywhere_get_past_or_raise_anything_else(datagram: bytes) -> None:
    for attempt in (datagram, b"SPCF\x01" + datagram, ONE.coflow_id + datagram):
        with pytest.raises(InvalidReport):
            decode(attempt, KEY)


@given(st.binary(max_size=200), st.integers(0, 3), st.integers(0, 80))
def test_not_even_with_our_key_is_nonsense_believed(body: bytes, flags: int, count: int) -> None:
    message = b"SPCF\x01" + bytes([flags]) + count.to_bytes(2) + body
    try:
        report = decode(signed(message), KEY)
    except InvalidReport:
        return
    assert encode(report, KEY) == signed(message)


def test_a_datagram_signed_with_another_key_is_spoofed() -> None:
    with pytest.raises(InvalidReport) as refused:
        decode(encode(ONE, b"another key, of good length"), KEY)
    assert refused.value.reason == "unauthentic"


def test_a_cut_or_prolonged_datagram_is_refused() -> None:
    datagram = encode(ONE, KEY)
    for length in range(len(datagram)):
        with pytest.raises(InvalidReport):
            decode(datagram[:length], KEY)
    for wrong in (datagram + b"\0", signed(datagram[:-MAC_BYTES] + bytes(24)), signed(datagram[:48])):
        with pytest.raises(InvalidReport):
            decode(wrong, KEY)
    with pytest.raises(InvalidReport) as refused:
        decode(bytes(MAX_DATAGRAM_BYTES + 1), KEY)
    assert refused.value.reason == "oversized"


def test_another_version_is_named() -> None:
    datagram = encode(ONE, KEY)
    with pytest.raises(InvalidReport, match="version 2"):
        decode(datagram[:4] + b"\x02" + datagram[5:], KEY)


@pytest.mark.parametrize("changed", [
    {"source": "224.0.0.1"}, {"source": "127.0.0.1"}, {"destination": "0.0.0.0"}, {"destination": "10.0.0.1"},
    {"destination": "255.255.255.255"}, {"source": "::1"}, {"source": "x"}, {"source_port": 0},
    {"destination_port": 65536}, {"protocol": 1}])
def test_flows_that_cannot_be_are_not_even_sent(changed: dict[str, Any]) -> None:
    flow = ONE.flows[0].flow._replace(**changed)
    with pytest.raises(InvalidReport) as refused:
        encode(replace(ONE, flows=(FlowReport(flow, 1),)), KEY)
    assert refused.value.reason == "malformed"


@pytest.mark.parametrize("report", [
    replace(ONE, flows=()), replace(ONE, flows=ONE.flows * 2), replace(ONE, coflow_id=b"short"),
    replace(ONE, sequence=0), replace(ONE, sender=1 << 64),
    replace(ONE, flows=(FlowReport(ONE.flows[0].flow, MAX_REMAINING_BYTES + 1),)),
    replace(ONE, flows=(FlowReport(ONE.flows[0].flow, -1),)),
    replace(ONE, flows=tuple(FlowReport(Flow("10.0.0.1", "10.0.1.1", 1, 1 + port), 1)
                             for port in range(MAX_FLOWS + 1)))])
def test_reports_that_cannot_be_are_not_even_sent(report: Report) -> None:
    with pytest.raises(InvalidReport):
        encode(report, KEY)


def test_a_short_key_is_refused() -> None:
    with pytest.raises(InvalidReport, match="at least 16"):
        encode(ONE, b"short")


def test_a_host_with_a_key_of_its_own_reports_its_own_flows_and_no_others() -> None:
    def told(*flows: tuple[str, str]) -> bytes:
        made = tuple(FlowReport(Flow(source, destination, 1, 2), 3) for source, destination in flows)
        return encode(Report(b"c" * 16, 1, 1, 1, made), host_key(KEY, "10.0.0.1"))

    for flows in ((("10.0.0.1", "10.0.0.2"), ("10.0.0.3", "10.0.0.1")), (("10.0.0.2", "10.0.0.1"),)):
        assert len(decode(told(*flows), KEY).flows) == len(flows)
    for flows in ((("10.0.0.2", "10.0.0.3"),), (("10.0.0.1", "10.0.0.2"), ("10.0.0.2", "10.0.0.3"))):
        with pytest.raises(InvalidReport) as refused:
            decode(told(*flows), KEY)
        assert refused.value.reason == "unauthentic"
    assert host_key(KEY, "10.0.0.1") != host_key(KEY, "10.0.0.2")
