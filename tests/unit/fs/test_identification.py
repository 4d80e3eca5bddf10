"""A dataserver says who it is before a byte of a file goes to it or comes from it."""

import socket
import threading
from collections.abc import Iterator

import pytest

from speedwell.fs.proto.speedwell_pb2 import INVALID, OK, DataReply, DataRequest, Replica
from speedwell.fs.wire.channel import Channel, ConnectionLost
from speedwell.fs.wire.identification import Identified, WrongServer, identify

D0 = Replica(dataserver_id="d0", host="10.0.0.1", port=7100)


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    ours, theirs = (Channel(end, stall_timeout_seconds=5) for end in socket.socketpair())
    yield ours, theirs
    ours.close()
    theirs.close()


def answer(channel: Channel, reply: DataReply) -> threading.Thread:
    def serve() -> None:
        request = channel.expect(DataRequest)
        assert request.WhichOneof("operation") == "identity"
        channel.send(reply)

    thread = threading.Thread(target=serve)
    thread.start()
    return thread


@pytest.mark.parametrize("namespace", [b"ours", b""])
def test_the_dataserver_itself_is_known(ends: tuple[Channel, Channel], namespace: bytes) -> None:
    thread = answer(ends[1], DataReply(status=OK, dataserver_id="d0", namespace=namespace))
    identify(ends[0], "d0", b"ours")
    thread.join()


@pytest.mark.parametrize(("reply", "why"), [
    (DataReply(status=OK, dataserver_id="d1", namespace=b"ours"), "d1 answers there"),
    (DataReply(status=OK, dataserver_id="d0", namespace=b"theirs"), "another installation"),
    (DataReply(status=INVALID, message="operation: the request has none"), "something else"),
])
def test_another_server_is_refused(ends: tuple[Channel, Channel], reply: DataReply, why: str) -> None:
    thread = answer(ends[1], reply)
    with pytest.raises(WrongServer, match=why):
        identify(ends[0], "d0", b"ours")
    thread.join()


def test_what_does_not_speak_the_protocol_is_refused(ends: tuple[Channel, Channel]) -> None:
    ends[1].send_bytes([b"HTTP/1.0 400 Bad Request\r\n\r\n"])
    with pytest.raises(WrongServer, match="no server of Speedwell"):
        identify(ends[0], "d0", b"ours")


def test_who_closes_without_an_answer_is_not_known(ends: tuple[Channel, Channel]) -> None:
    ends[1].close()
    with pytest.raises(ConnectionLost):
        identify(ends[0], "d0", b"ours")


def test_a_server_is_asked_again_only_after_it_failed(ends: tuple[Channel, Channel]) -> None:
    known = Identified(lambda: b"ours")
    thread = answer(ends[1], DataReply(status=OK, dataserver_id="d0", namespace=b"ours"))
    assert known.require(ends[0], D0) is ends[0]
    thread.join()
    known.require(ends[0], D0)      # nobody would answer
    known.forget(D0)
    ends[1].send_bytes([b"HTTP/1.0 400 Bad Request\r\n\r\n"])
    with pytest.raises(WrongServer):
        known.require(ends[0], D0)
