"""Connections whose short requests one thread answers: nobody there waits for somebody who is slow."""

import errno
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from speedwell.fs.errors import SpeedwellError
from speedwell.fs.proto.speedwell_pb2 import Call, CallReply
from speedwell.fs.wire.channel import Channel, ConnectionLost, connect, encode
from speedwell.fs.wire.common_thread import SHORT_IN_A_ROW, Answer, CommonThread
from tests.waiting import wait_until

LARGE_BYTES = 1 << 19


class Server(CommonThread):
    """Says which thread answers; `long` waits for `released`, `large` is answered at length, `last` is the last.
    It fails at the end of those that are `broken`."""

    def __init__(self, listener: socket.socket, **options: float) -> None:
        super().__init__(listener, **options)
        self.released = threading.Event()
        self.broken: set[Channel] = set()

    def _end(self, channel: Channel) -> None:
        super()._end(channel)
        if channel in self.broken:
            raise KeyError(channel)

    def is_short(self, request: Call) -> bool:
        return request.method != "long"

    def answer(self, channel: Channel, request: Call) -> Answer:
        if request.method == "long":
            self.released.wait(30)
        reply = bytes(LARGE_BYTES) if request.method == "large" else threading.current_thread().name.encode()
        return Answer(encode(CallReply(reply=reply)), 30 if request.method == "late" else 0,
                      request.method == "last")

    def receive_request(self, channel: Channel) -> Call | None:
        return channel.receive_alone(Call)

    def name_of(self, request: object) -> str:
        return "any"

    def refusal(self, error: SpeedwellError) -> CallReply:
        return CallReply(error="Refused", message=error.message)


class Full:
    """An epoll(7) of a user who watches as much as the kernel lets him."""

    def register(self, *arguments: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    def poll(self, seconds: float) -> list[tuple[int, int]]:
        time.sleep(0.01)
        return []


class Site:
    def __init__(self, running: ExitStack, **options: float) -> None:
        self._running = running
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LARGE_BYTES // 64)     # connections have it too
        self.address = listener.getsockname()
        self.server = Server(listener, **options)
        thread = threading.Thread(target=self.server.serve)
        thread.start()
        running.callback(thread.join, 15)
        running.callback(self.server.stop, 0.1)
        running.callback(self.server.released.set)

    def connection(self) -> Channel:
        """One that the common thread has."""
        channel = connect(*self.address)
        self._running.callback(channel.close)
        wait_until(lambda: asked(channel) == b"short requests", 10, "it keeps its thread")
        return channel


@pytest.fixture
def running() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def asked(channel: Channel, method: str = "short") -> bytes:
    channel.send(Call(method=method))
    reply: bytes = channel.expect_alone(CallReply).reply
    return reply


def test_connections_with_short_requests_share_a_thread(running: ExitStack) -> None:
    site = Site(running)
    channels = [site.connection() for _ in range(20)]
    before = threading.active_count()
    assert {asked(channel) for channel in channels for _ in range(3)} == {b"short requests"}
    assert threading.active_count() <= before


def test_a_request_that_waits_delays_no_other_connection_and_gives_its_thread_back(running: ExitStack) -> None:
    site = Site(running)
    waiting, other = site.connection(), site.connection()
    waiting.send(Call(method="long"))
    assert all(asked(other) == b"short requests" for _ in range(3))
    site.server.released.set()
    assert waiting.expect_alone(CallReply).reply != b"short requests"
    names = [asked(waiting) for _ in range(SHORT_IN_A_ROW)]
    assert b"short requests" not in names
    wait_until(lambda: asked(waiting) == b"short requests", 10, "it keeps its thread")


@pytest.mark.parametrize("length", [3, 10])
def test_a_frame_that_comes_in_parts_delays_nobody_and_is_answered(running: ExitStack, length: int) -> None:
    site = Site(running)
    slow, other = site.connection(), site.connection()
    frame = encode(Call(method="short"))
    slow.socket.sendall(frame[:length])
    assert all(asked(other) == b"short requests" for _ in range(3))
    slow.socket.sendall(frame[length:])
    assert slow.expect_alone(CallReply).reply


def test_who_does_not_read_a_large_answer_delays_nobody_and_gets_it_whole(running: ExitStack) -> None:
    site = Site(running)
    slow, other = site.connection(), site.connection()
    slow.send(Call(method="large"))
    wait_until(lambda: any(channel._rest for channel in site.server._open), 10, "it goes at once")
    assert all(asked(other) == b"short requests" for _ in range(3))
    assert slow.expect(CallReply).reply == bytes(LARGE_BYTES)


def test_who_has_to_wait_for_an_answer_delays_nobody(running: ExitStack) -> None:
    site = Site(running)
    late, other = site.connection(), site.connection()
    late.send(Call(method="late"))
    assert all(asked(other) == b"short requests" for _ in range(3))
    assert not late.is_readable(0.1)


def test_what_is_no_frame_is_refused_and_the_others_go_on(running: ExitStack) -> None:
    site = Site(running)
    stranger, other = site.connection(), site.connection()
    stranger.socket.sendall(b"GET / HTTP/1.1\r\n\r\n")
    assert stranger.expect(CallReply).error == "Refused"
    assert stranger.receive(CallReply) is None
    assert asked(other) == b"short requests"


def test_a_connection_ends_with_its_last_answer_or_when_the_peer_resets_it(running: ExitStack) -> None:
    site = Site(running)
    refused, reset, other = site.connection(), site.connection(), site.connection()
    assert asked(refused, "last") == b"short requests"
    assert refused.receive(CallReply) is None
    reset.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    reset.socket.close()
    assert asked(other) == b"short requests"


def test_an_idle_connection_is_closed_and_all_are_when_the_server_stops(running: ExitStack) -> None:
    idle = Site(running, idle_seconds=0.2).connection()
    assert idle.is_readable(10) and idle.receive(CallReply) is None
    site = Site(running)
    channel = site.connection()
    site.server.stop(0.1)
    with pytest.raises(ConnectionLost):
        asked(channel)


def test_the_thread_goes_on_after_a_failure_outside_a_request_and_says_so(running: ExitStack) -> None:
    site = Site(running)
    broken, other = site.connection(), site.connection()
    assert not site.server.warnings
    port = broken.socket.getsockname()[1]
    site.server.broken.update(channel for channel in site.server._open if channel.peer.endswith(f":{port}"))
    assert len(site.server.broken) == 1
    broken.close()
    wait_until(lambda: site.server.warnings, 10, "nobody hears of it")
    assert asked(other) == b"short requests"
    assert "failed 1 times" in site.server.warnings[0]
    assert [sample.value for metric in site.server.door_metrics[-1].collect() for sample in metric.samples
            if sample.name.endswith("_total")] == [1]


def test_what_is_ready_for_nobody_does_not_keep_the_thread_busy(running: ExitStack) -> None:
    site = Site(running)
    other = site.connection()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.send(b"x")
        site.server._ready.register(ours)
        wait_until(lambda: site.server.warnings, 10, "nobody hears of it")
        assert all(asked(other) == b"short requests" for _ in range(10))
        assert site.server._failed == 1


def test_a_connection_that_the_kernel_cannot_watch_keeps_its_thread(running: ExitStack) -> None:
    site = Site(running)
    site.server._ready = Full()     # type: ignore[assignment]
    channel = connect(*site.address)
    running.callback(channel.close)
    assert b"short requests" not in [asked(channel) for _ in range(3 * SHORT_IN_A_ROW)]
    assert not site.server._common
