"""The sending side, heard by a socket."""

from __future__ import annotations

import socket
import struct
import termios
import threading
from collections.abc import Callable, Iterator
from fcntl import ioctl
from pathlib import Path

import pytest

from speedwell.coflow import Flow, InvalidSetting, Report, Reporter, configured_reporter, decode
from speedwell.coflow.report import MAX_FLOWS
from speedwell.coflow.settings import ADDRESS_VARIABLE, DEFAULT_PORT, KEY_FILE_VARIABLE, SchedulerAddress, scheduler
from tests.waiting import wait_until

KEY = b"k" * 32
FLOWS = [(Flow("10.0.0.1", "10.0.1.1", 7100, 40000 + number), 1000) for number in range(3)]
Hear = Callable[[], Report]


@pytest.fixture
def heard() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listening:
        listening.bind(("127.0.0.1", 0))
        listening.settimeout(10)
        yield listening


def reporter(heard: socket.socket, interval_seconds: float = 60.0) -> Reporter:
    return Reporter(SchedulerAddress("127.0.0.1", heard.getsockname()[1], KEY), b"c" * 16, interval_seconds)


def hear(listening: socket.socket) -> Report:
    return decode(listening.recv(2000), KEY)


def test_all_flows_are_told_at_the_start_and_their_end_three_times(heard: socket.socket) -> None:
    with reporter(heard) as sender:
        sender.add(FLOWS)
        first = hear(heard)
    assert first.coflow_id == b"c" * 16 and {(each.flow, each.remaining_bytes) for each in first.flows} == set(FLOWS)
    for sequence in (2, 3, 4):
        last = hear(heard)
        assert last.sequence == sequence and [each.remaining_bytes for each in last.flows] == [0, 0, 0]
    heard.settimeout(0.1)
    with pytest.raises(TimeoutError):
        heard.recv(2000)


def test_progress_is_told_every_interval_and_an_end_at_once(heard: socket.socket) -> None:
    with reporter(heard, interval_seconds=0.02) as sender:
        first, second, _ = sender.add(FLOWS)
        hear(heard)
        first.moved(400)
        while {each.flow: each.remaining_bytes for each in hear(heard).flows}[first.flow] != 600:
            pass
        second.moved(5000)
        sender.ended(second)
        while {each.flow: each.remaining_bytes for each in hear(heard).flows}.get(second.flow) != 0:
            pass
        while second.flow in {each.flow for each in hear(heard).flows}:
            pass


def test_a_flow_that_moved_all_its_bytes_has_not_ended_until_it_says_so(heard: socket.socket) -> None:
    with reporter(heard) as sender:
        (progress,) = sender.add(FLOWS[:1])
        progress.moved(1000)
        sender.report()
        assert [hear(heard).flows[0].remaining_bytes for _ in range(2)] == [1000, 1]


def test_a_flow_that_takes_over_from_another_has_left_what_it_was_asked_for(heard: socket.socket) -> None:
    with reporter(heard) as sender:
        (progress,) = sender.add(FLOWS[:1])
        progress.moved(900, at_least=50)
        sender.report()
        progress.moved(100, at_least=700)
        sender.report()
        assert [hear(heard).flows[0].remaining_bytes for _ in range(3)] == [1000, 100, 700]


def test_what_waits_in_a_senders_socket_is_left_to_send(heard: socket.socket) -> None:
    size_bytes = 4 << 20
    with socket.create_server(("127.0.0.1", 0)) as listening, reporter(heard) as sender, \
            socket.create_connection(listening.getsockname()) as connection:
        there, _ = listening.accept()
        there.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 17)
        (progress,) = sender.add([(FLOWS[0][0], size_bytes)])
        progress.follow(connection)
        handed_over = _fill(connection)
        waiting_bytes = struct.unpack("i", ioctl(connection, termios.TIOCOUTQ, bytes(4)))[0]
        assert waiting_bytes > 0 and progress.remaining_bytes == size_bytes - handed_over + waiting_bytes
        _drain(there, handed_over)
        wait_until(lambda: progress.remaining_bytes == size_bytes - handed_over, 9, "acknowledged bytes do not count")
        rest = threading.Thread(target=connection.sendall, args=(bytes(size_bytes - handed_over + 32),))
        rest.start()
        _drain(there, size_bytes - handed_over + 32)
        rest.join()
        wait_until(lambda: progress.remaining_bytes == 1, 15, "more than was announced does not count as all of it")
        connection.close()
        assert progress.remaining_bytes == 1, "a closed connection has not ended the flow"
        sender.ended(progress)
        assert progress.remaining_bytes == 0
        there.close()


def test_an_earlier_transfer_of_a_connection_does_not_count(heard: socket.socket) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening, reporter(heard) as sender, \
            socket.create_connection(listening.getsockname()) as connection:
        there, _ = listening.accept()
        connection.sendall(bytes(5000))
        _drain(there, 5000)
        there.sendall(b"!")
        connection.recv(1)
        (progress,) = sender.add([(FLOWS[0][0], 1000)])
        progress.follow(connection)
        assert progress.remaining_bytes == 1000
        there.close()


def _fill(connection: socket.socket) -> int:
    """Send until the socket takes no more; returns how many bytes."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 17)
    connection.setblocking(False)
    count = 0
    try:
        while True:
            count += connection.send(bytes(1 << 14))
    except BlockingIOError:
        connection.setblocking(True)
        return count


def _drain(connection: socket.socket, count: int) -> None:
    while count:
        count -= len(connection.recv(min(count, 1 << 16)))


def test_flows_beyond_one_datagram_go_into_several(heard: socket.socket) -> None:
    flows = [(Flow("10.0.0.1", "10.0.1.1", 7100, 1 + number), 9) for number in range(2 * MAX_FLOWS + 1)]
    with reporter(heard) as sender:
        sender.add(flows)
        told = [hear(heard) for _ in range(3)]
    assert [report.sequence for report in told] == [1, 2, 3]
    assert sorted(each.flow for report in told for each in report.flows) == sorted(flow for flow, _ in flows)


def test_a_scheduler_that_is_not_there_disturbs_nobody() -> None:
    with Reporter(SchedulerAddress("127.0.0.1", 1, KEY)) as sender:
        sender.add(FLOWS)
        sender.report()
    sender.close()


def test_of_several_schedulers_each_is_told_and_one_that_is_not_there_keeps_nothing_from_the_others(
        heard: socket.socket, tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(KEY)
    port = heard.getsockname()[1]
    # a broadcast is refused, and nobody listens at the second
    address = scheduler(f"255.255.255.255:9,127.0.0.1:1,127.0.0.1:{port}", tmp_path / "key")
    assert address.others == (("127.0.0.1", 1), ("127.0.0.1", port))
    with Reporter(address) as sender:
        sender.add(FLOWS)
        assert {(each.flow, each.remaining_bytes) for each in hear(heard).flows} == set(FLOWS)


def test_two_reporters_draw_different_coflows() -> None:
    address = SchedulerAddress("127.0.0.1", 1, KEY)
    with Reporter(address) as one, Reporter(address) as other:
        assert one.coflow_id != other.coflow_id


def test_the_environment_names_the_scheduler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ADDRESS_VARIABLE, raising=False)
    assert configured_reporter() is None
    key_file = tmp_path / "key"
    key_file.write_bytes(KEY + b"\n")
    assert scheduler("10.255.0.1", key_file) == SchedulerAddress("10.255.0.1", DEFAULT_PORT, KEY)
    monkeypatch.setenv(ADDRESS_VARIABLE, "127.0.0.1:7777")
    assert configured_reporter() is None
    monkeypatch.setenv(KEY_FILE_VARIABLE, str(key_file))
    found = configured_reporter()
    assert found is not None
    found.close()


@pytest.mark.parametrize("address", ["", ":1", "host,", "host:x", "host:0", "host:70000"])
def test_an_address_that_is_none_is_refused(address: str, tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(KEY)
    with pytest.raises(InvalidSetting, match="HOST"):
        scheduler(address, tmp_path / "key")


def test_a_key_that_is_missing_or_short_is_refused_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match="cannot read"):
        scheduler("h", tmp_path / "none")
    (tmp_path / "key").write_bytes(b"short\n")
    with pytest.raises(InvalidSetting, match="openssl"):
        scheduler("h", tmp_path / "key")
