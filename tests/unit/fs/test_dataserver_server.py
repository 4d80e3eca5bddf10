"""The listening end's limits: idle and surplus connections, and a stop while clients are connected."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from speedwell.fs.dataserver.admission import Door
from speedwell.fs.dataserver.disk.store import FileStore
from speedwell.fs.dataserver.nameserver_link import NameserverLink
from speedwell.fs.dataserver.replication.lease import Lease
from speedwell.fs.dataserver.replication.primary_office import Authority
from speedwell.fs.dataserver.server import DataServer
from speedwell.fs.dataserver.upkeep.pace import SLICE_BYTES, Pace
from speedwell.fs.proto.speedwell_pb2 import (
    NOT_FOUND,
    OK,
    AppendOperation,
    DataReply,
    DataRequest,
    LengthOperation,
    ReadOperation,
)
from speedwell.fs.wire.channel import HEADER, MAGIC, MAX_FRAME_BYTES, Channel, ConnectionLost, connect
from tests.commits import commit_of
from tests.waiting import wait_until

FILE_ID = "0123abcd-0000-4000-8000-00000000000a"

Start = Callable[..., tuple[DataServer, tuple[str, int]]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    running: list[tuple[DataServer, threading.Thread]] = []
    store = FileStore(tmp_path, "d0")

    def begin(**limits: object) -> tuple[DataServer, tuple[str, int]]:
        listener = socket.create_server(("127.0.0.1", 0))
        server = DataServer(store, listener, Authority("d0", Lease(), NameserverLink("127.0.0.1:1", "d0")),
                            door=Door(store, insecure=True), **limits)  # type: ignore[arg-type]
        thread = threading.Thread(target=server.serve)
        thread.start()
        running.append((server, thread))
        return server, listener.getsockname()

    yield begin
    for server, thread in running:
        server.stop(0.1)
        thread.join(15)
        assert not thread.is_alive()
    store.close()


@contextmanager
def connected(address: tuple[str, int]) -> Iterator[Channel]:
    channel = connect(*address, stall_timeout_seconds=5)
    yield channel
    channel.close()


def ask(channel: Channel) -> DataReply:
    channel.send(DataRequest(length=LengthOperation(file_id=FILE_ID)))
    return channel.expect(DataReply)


def test_a_connection_without_a_request_is_closed(start: Start) -> None:
    _, address = start(idle_seconds=0.2)
    with connected(address) as channel:
        assert ask(channel).status == NOT_FOUND
        assert channel.receive(DataReply) is None, "before this side gives up"


def test_a_frame_that_stops_in_the_middle_closes_the_connection_too(start: Start) -> None:
    _, address = start(idle_seconds=0.2)
    with connected(address) as channel:
        channel.socket.sendall(b"SPW1\0\0")
        assert channel.receive(DataReply) is None


def test_a_connection_too_many_takes_the_place_of_the_one_that_rests_for_the_longest_time(start: Start) -> None:
    server, address = start(max_connections=2)
    with connected(address) as first, connected(address) as second:
        for each in (first, second):
            assert ask(each).status == NOT_FOUND
            wait_until(lambda: not any(list(server._open.values())), 15, "a connection does not rest")
        with connected(address) as surplus:
            assert ask(surplus).status == NOT_FOUND
            assert first.receive(DataReply) is None
            assert ask(second).status == NOT_FOUND


def test_a_connection_too_many_waits_while_all_are_at_work(start: Start) -> None:
    _, address = start(max_connections=1)
    with connected(address) as busy, connected(address) as surplus:
        busy.send(DataRequest(append=AppendOperation(file_id=FILE_ID, inode=1, path=b"/f", chunk_size=100, length=4,
                                                     offset=0, epoch=1)))
        busy.send_bytes([b"ab"])
        surplus.send(DataRequest(length=LengthOperation(file_id=FILE_ID)))
        assert not surplus.is_readable(1.5)
        busy.close()
        assert surplus.expect(DataReply).status == NOT_FOUND


def test_a_stop_closes_idle_connections_at_once_and_lets_a_request_end(start: Start) -> None:
    server, address = start()
    with connected(address) as idle, connected(address) as busy:
        assert ask(idle).status == NOT_FOUND
        busy.send(DataRequest(append=AppendOperation(file_id=FILE_ID, inode=1, path=b"/f", chunk_size=100, length=4,
                                                     offset=0, epoch=1)))
        busy.send_bytes([b"ab"])
        peer = f":{busy.socket.getsockname()[1]}"
        wait_until(lambda: any(serving for channel, serving in list(server._open.items())
                               if channel.peer.endswith(peer)), 15, "the append did not begin")
        stopper = threading.Thread(target=server.stop, args=(5.0,))
        stopper.start()
        assert idle.receive(DataReply) is None
        busy.send_bytes([b"cd"])
        assert busy.expect(DataReply).status == OK
        busy.send(commit_of(*address, FILE_ID, 0, b"abcd"))
        reply = busy.expect(DataReply)
        assert (reply.status, reply.file_size) == (OK, 4)
        stopper.join(15)
        assert not stopper.is_alive()


def test_what_is_sent_for_new_replicas_keeps_to_a_rate_and_reads_of_clients_do_not(start: Start) -> None:
    length = 3 * SLICE_BYTES
    _, address = start(pace=Pace(2 * SLICE_BYTES))

    def read_seconds(paced: bool) -> float:
        began = time.monotonic()
        channel.send(DataRequest(read=ReadOperation(file_id=FILE_ID, length=length, paced=paced)))
        reply = channel.expect(DataReply)
        assert (reply.status, reply.length) == (OK, length)
        channel.receive_all(memoryview(bytearray(length)))
        return time.monotonic() - began

    with connected(address) as channel:
        data = bytes(length)
        channel.send(DataRequest(append=AppendOperation(file_id=FILE_ID, inode=1, path=b"/f", chunk_size=1 << 30,
                                                        length=length, offset=0, epoch=1)))
        channel.send_bytes([data])
        assert channel.expect(DataReply).status == OK
        channel.send(commit_of(*address, FILE_ID, 0, data))
        assert channel.expect(DataReply).status == OK
        paced, free = read_seconds(paced=True), read_seconds(paced=False)
    assert paced >= 1.4
    assert free < paced


def test_one_source_has_half_of_the_places_and_takes_its_own_first(start: Start, monkeypatch: pytest.MonkeyPatch
                                                                   ) -> None:
    monkeypatch.setattr("speedwell.fs.wire.frame_server.LEAST_OF_A_SOURCE", 2)
    _, address = start(max_connections=4)
    greedy = [Channel(socket.create_connection(address), 5) for _ in range(5)]
    served = []
    for channel in greedy:
        with suppress(ConnectionLost):
            if ask(channel).status == NOT_FOUND:
                served.append(channel)
    assert len(served) == 2
    with closing(Channel(socket.create_connection(address, source_address=("127.0.0.9", 0)), 5)) as other:
        assert ask(other).status == NOT_FOUND
    for channel in greedy:
        channel.close()


def test_a_frame_that_trickles_in_is_given_up(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("speedwell.fs.dataserver.server.PAYLOAD_STALL_SECONDS", 0.2)
    _, address = start()
    with closing(socket.create_connection(address)) as slow:
        slow.sendall(HEADER.pack(MAGIC, MAX_FRAME_BYTES))
        slow.settimeout(0.05)
        began = time.monotonic()
        with suppress(OSError):
            while time.monotonic() < began + 30:
                slow.sendall(b"x")
                with suppress(TimeoutError):
                    if not slow.recv(1):
                        break
        assert time.monotonic() < began + 30


def test_strangers_do_not_fill_the_log(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    _, address = start()
    began = time.monotonic()
    for _ in range(20):
        with closing(socket.create_connection(address)) as stranger:
            stranger.sendall(b"nonsense")
            stranger.settimeout(15)
            assert stranger.recv(1)
    said = [record for record in caplog.records if "malformed" in record.message]
    assert 1 <= len(said) <= 1 + time.monotonic() - began


def test_a_connection_without_a_thread_is_closed_and_later_ones_are_served(
        start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    _, address = start(max_connections=1)
    begin_thread = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        monkeypatch.setattr(threading.Thread, "start", begin_thread)
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with connected(address) as channel:
        assert channel.receive(DataReply) is None
    with connected(address) as channel:
        assert ask(channel).status == NOT_FOUND
