"""Framing: what is sent arrives, and nothing that arrives can do harm."""

import itertools
import os
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speedwell.fs.proto.speedwell_pb2 import AppendOperation, DataReply, DataRequest, ReadOperation, Replica
from speedwell.fs.wire.channel import (
    HEADER,
    MAGIC,
    MAX_FRAME_BYTES,
    Channel,
    ConnectionLost,
    MalformedFrame,
    connect,
    encode,
)
from speedwell.fs.wire.connections import KEPT_PER_SERVER, ConnectionPool

Pair = tuple[Channel, Channel]


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


@pytest.fixture
def pair(listener: socket.socket) -> Iterator[Pair]:
    near = connect(*listener.getsockname())
    accepted, _ = listener.accept()
    far = Channel(accepted)
    yield near, far
    near.close()
    far.close()


def tcp_pair() -> Pair:
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = connect(*server.getsockname())
        accepted, _ = server.accept()
        return near, Channel(accepted)


requests = st.one_of(
    st.builds(lambda file_id, offset, length: DataRequest(
        read=ReadOperation(file_id=file_id, offset=offset, length=length)),
        st.text(max_size=50), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)),
    st.builds(lambda path, hosts: DataRequest(append=AppendOperation(
        path=path, relay=[Replica(host=host) for host in hosts])),
        st.binary(max_size=300), st.lists(st.text(max_size=20), max_size=5)))


@given(messages=st.lists(requests, max_size=5))
def test_frames_arrive_as_they_were_sent(messages: list[DataRequest]) -> None:
    near, far = tcp_pair()
    try:
        for message in messages:
            near.send(message)
        assert [far.receive(DataRequest) for _ in messages] == messages
        near.close()
        assert far.receive(DataRequest) is None
    finally:
        far.close()


@given(garbage=st.binary(min_size=1, max_size=64), alone=st.booleans())
def test_bytes_that_are_no_frame_are_malformed_or_a_lost_connection(garbage: bytes, alone: bool) -> None:
    if garbage[:4] == MAGIC:
        garbage = b"X" + garbage
    near, far = tcp_pair()
    try:
        near.socket.sendall(garbage)
        near.socket.shutdown(socket.SHUT_WR)
        with pytest.raises((MalformedFrame, ConnectionLost)):
            (far.receive_alone if alone else far.receive)(DataRequest)
    finally:
        near.close()
        far.close()


@given(body=st.binary(max_size=64))
def test_a_body_parses_or_is_malformed(body: bytes) -> None:
    near, far = tcp_pair()
    try:
        near.socket.sendall(HEADER.pack(MAGIC, len(body)) + body)
        try:
            assert isinstance(far.receive(DataRequest), DataRequest)
        except MalformedFrame as error:
            assert "DataRequest" in str(error)
    finally:
        near.close()
        far.close()


def test_a_frame_that_announces_too_much_is_malformed_before_it_is_received(pair: Pair) -> None:
    near, far = pair
    near.socket.sendall(HEADER.pack(MAGIC, MAX_FRAME_BYTES + 1))
    with pytest.raises(MalformedFrame, match=str(MAX_FRAME_BYTES)):
        far.receive(DataRequest)


@given(size=st.one_of(st.integers(0, 9000), st.just(300_000)), cuts=st.lists(st.integers(1, 9000), max_size=3))
def test_a_frame_that_stands_alone_arrives_in_any_pieces(size: int, cuts: list[int]) -> None:
    near, far = tcp_pair()
    frame = encode(DataReply(message="x" * size))
    edges = [0, *sorted(cut for cut in set(cuts) if cut < len(frame)), len(frame)]

    def send() -> None:
        for begin, end in itertools.pairwise(edges):
            near.socket.sendall(frame[begin:end])

    sender = threading.Thread(target=send)
    sender.start()
    try:
        reply = far.expect_alone(DataReply)
        assert reply.message == "x" * size
        sender.join()
        near.close()
        assert far.receive_alone(DataReply) is None
    finally:
        sender.join()
        near.close()
        far.close()


def test_what_follows_a_frame_that_should_stand_alone_is_malformed(pair: Pair) -> None:
    near, far = pair
    near.socket.sendall(encode(DataReply(message="x")) * 2)
    with pytest.raises(MalformedFrame, match="follow"):
        far.receive_alone(DataReply)


def test_a_message_that_is_too_large_is_not_sent() -> None:
    with pytest.raises(MalformedFrame, match=str(MAX_FRAME_BYTES)):
        encode(DataReply(message="x" * MAX_FRAME_BYTES))


def test_a_connection_closed_inside_a_frame_is_lost(pair: Pair) -> None:
    near, far = pair
    near.socket.sendall(HEADER.pack(MAGIC, 100) + b"short")
    near.close()
    with pytest.raises(ConnectionLost, match="middle of a frame"):
        far.receive(DataRequest)


def test_a_silent_peer_is_given_up_after_the_stall_timeout(pair: Pair) -> None:
    _, far = pair
    far.set_timeout(0.05)
    with pytest.raises(ConnectionLost, match="moved no byte"):
        far.receive(DataRequest)


def test_a_peer_that_does_not_read_is_given_up_after_the_stall_timeout(pair: Pair) -> None:
    near, _ = pair
    near.set_timeout(0.05)
    with pytest.raises(ConnectionLost, match="moved no byte"):
        near.send_bytes([bytes(64 << 20)])


@given(sizes=st.lists(st.integers(0, 3000), max_size=600))
def test_parts_are_sent_in_order_and_whole(sizes: list[int]) -> None:
    near, far = tcp_pair()
    parts = [struct.pack(">H", index % 65536) * ((size + 1) // 2) for index, size in enumerate(sizes)]
    expected = b"".join(parts)
    received = bytearray(len(expected))
    try:
        sender = threading.Thread(target=near.send_bytes, args=(parts,))
        sender.start()
        far.receive_all(memoryview(received))
        sender.join()
        assert bytes(received) == expected
    finally:
        near.close()
        far.close()


def test_connecting_to_a_closed_port_names_the_address(listener: socket.socket) -> None:
    host, port = listener.getsockname()
    listener.close()
    with pytest.raises(ConnectionLost, match=f"{host}:{port}"):
        connect(host, port)


class TestConnectionPool:
    def test_a_connection_given_back_is_used_again(self, listener: socket.socket) -> None:
        pool = ConnectionPool()
        address = listener.getsockname()
        first = pool.take(*address)
        pool.give_back(*address, first)
        assert pool.take(*address) is first
        assert pool.take(*address) is not first
        pool.close()

    def test_a_connection_that_the_server_closed_is_replaced(self, listener: socket.socket) -> None:
        pool = ConnectionPool()
        address = listener.getsockname()
        first = pool.take(*address)
        accepted, _ = listener.accept()
        accepted.close()
        pool.give_back(*address, first)
        assert pool.take(*address) is not first
        pool.close()

    def test_only_a_few_idle_connections_are_kept(self, listener: socket.socket) -> None:
        pool = ConnectionPool()
        address = listener.getsockname()
        taken = [pool.take(*address) for _ in range(KEPT_PER_SERVER + 2)]
        for channel in taken:
            pool.give_back(*address, channel)
        assert [channel.socket.fileno() == -1 for channel in taken] == [True] * 2 + [False] * KEPT_PER_SERVER
        pool.close()
        assert all(channel.socket.fileno() == -1 for channel in taken)


@pytest.mark.parametrize("in_hardware", [True, False], ids=["in the kernel", "by buffer"])
class TestSendingAFile:
    @pytest.fixture(autouse=True)
    def _way(self, in_hardware: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Channel, "_checksums_in_hardware", lambda channel: in_hardware)

    def test_the_range_arrives_whole(self, pair: Pair, tmp_path: Path) -> None:
        data = os.urandom(3 * 1024 * 1024 + 17)
        (tmp_path / "file").write_bytes(data)
        received = bytearray(len(data) - 5)
        reader = threading.Thread(target=pair[1].receive_all, args=(memoryview(received),))
        reader.start()
        with (tmp_path / "file").open("rb") as file:
            pair[0].send_file(file.fileno(), 5, len(received))
        reader.join(10)
        assert received == data[5:]

    def test_a_file_that_is_too_short_is_an_error(self, pair: Pair, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"short")
        with (tmp_path / "file").open("rb") as file, pytest.raises(EOFError, match="95 bytes early"):
            pair[0].send_file(file.fileno(), 0, 100)
