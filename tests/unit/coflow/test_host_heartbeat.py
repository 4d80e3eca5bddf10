"""A host's heartbeat: what is signed comes back, what is not is refused, and the kernel's counters are sent."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speedwell.coflow.errors import InvalidReport, InvalidSetting
from speedwell.coflow.host_heartbeat import (
    DATAGRAM_BYTES,
    HostHeartbeat,
    HostHeartbeats,
    counters_of,
    decode,
    encode,
    interface_of,
    is_heartbeat,
)
from speedwell.coflow.report import Flow, FlowReport, Report, host_key
from speedwell.coflow.report import encode as encode_report
from speedwell.coflow.settings import SchedulerAddress

KEY = b"k" * 32
BEAT = HostHeartbeat("10.0.0.1", 7, 1_700_000_000_000_000, 5_000_000, 123, 456)
numbers = st.integers(0, (1 << 64) - 1)


@given(st.builds(HostHeartbeat, st.ip_addresses(v=4).map(str), numbers, numbers, numbers, numbers, numbers))
def test_what_is_encoded_comes_back(beat: HostHeartbeat) -> None:
    datagram = encode(beat, KEY)
    assert len(datagram) == DATAGRAM_BYTES and is_heartbeat(datagram)
    assert decode(datagram, KEY) == beat


@given(st.integers(0, DATAGRAM_BYTES - 1), st.integers(1, 255))
def test_a_byte_that_was_changed_is_found(place: int, change: int) -> None:
    datagram = bytearray(encode(BEAT, KEY))
    datagram[place] ^= change
    with pytest.raises(InvalidReport):
        decode(bytes(datagram), KEY)


@given(st.binary(max_size=2 * DATAGRAM_BYTES))
def test_anything_else_is_refused(datagram: bytes) -> None:
    with pytest.raises(InvalidReport):
        decode(datagram, KEY)


def test_another_key_and_numbers_without_room_are_refused() -> None:
    with pytest.raises(InvalidReport, match="key"):
        decode(encode(BEAT, b"another key of 32 bytes or so..."), KEY)
    with pytest.raises(InvalidReport):
        encode(replace(BEAT, sent_bytes=1 << 64), KEY)


def test_a_host_with_a_key_of_its_own_tells_of_itself_alone() -> None:
    assert decode(encode(BEAT, host_key(KEY, BEAT.host)), KEY) == BEAT
    with pytest.raises(InvalidReport, match="key"):
        decode(encode(BEAT, host_key(KEY, "10.9.9.9")), KEY)


def test_a_report_is_no_heartbeat() -> None:
    report = encode_report(Report(b"c" * 16, 1, 1, 1, (FlowReport(Flow("10.0.0.1", "10.0.0.2", 1, 2), 3),)), KEY)
    assert not is_heartbeat(report)


def test_it_says_what_the_kernel_counted_on_the_interface_with_that_address() -> None:
    received = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    received.bind(("127.0.0.1", 0))
    received.settimeout(10)
    sender = HostHeartbeats(SchedulerAddress(*received.getsockname(), KEY), "127.0.0.1", interval_seconds=0.01)
    before = counters_of("lo")
    sender.start()
    first, second = (decode(received.recv(1000), KEY) for _ in range(2))
    sender.stop()
    after = counters_of("lo")
    received.close()
    assert interface_of("127.0.0.1") == "lo"
    assert before[1] <= first.sent_bytes < second.sent_bytes <= after[1]
    assert before[0] <= first.received_bytes < second.received_bytes <= after[0]
    assert first.host == "127.0.0.1" and first.sender == second.sender
    assert 0 < second.uptime_microseconds - first.uptime_microseconds < 10_000_000


def test_an_address_of_no_interface_is_refused_by_name() -> None:
    with pytest.raises(InvalidSetting, match=r"192\.0\.2\.77"):
        interface_of("192.0.2.77")
    with pytest.raises(InvalidSetting, match="gone0"):
        counters_of("gone0")


def test_the_documentation_has_the_layout() -> None:
    text = Path("docs/reference/coflow-protocol.md").read_text()
    section = text[text.index("## The heartbeat of a host"):]
    assert f"{DATAGRAM_BYTES} bytes" in section and "| last 16 |" in section
