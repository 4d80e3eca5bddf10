"""The nameserver's requests as frames: the same answers as over gRPC, and the same door."""

import os
import random
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from speedwell.fs.client.names.metadata import MetadataClient
from speedwell.fs.nameserver.service import grpc_errors as rpc
from speedwell.fs.proto import speedwell_pb2 as pb
from speedwell.fs.wire.channel import HEADER, MAGIC, MAX_FRAME_BYTES, Channel, connect
from tests.local_cluster import LocalCluster
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("cluster"), dataservers=1) as cluster:
        yield cluster
        assert "Traceback" not in cluster.nameserver.log.read_text()


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[MetadataClient]:
    with MetadataClient(cluster.nameserver.address, cache_seconds=0) as client:
        yield client


@pytest.fixture
def channel(cluster: LocalCluster) -> Iterator[Channel]:
    channel = connect("127.0.0.1", cluster.nameserver.port)
    yield channel
    channel.close()


def ask(channel: Channel, method: str, request: bytes) -> pb.CallReply:
    channel.send(pb.Call(method=method, request=request))
    return channel.expect(pb.CallReply)


def test_a_frame_is_answered_as_the_same_request_over_grpc(cluster: LocalCluster, client: MetadataClient,
                                                           channel: Channel) -> None:
    client.mkdir("/same", mode=0o640)
    request = pb.LookupRequest(path=b"/same").SerializeToString()
    with grpc.insecure_channel(cluster.nameserver.address) as grpc_channel:
        over_grpc = grpc_channel.unary_unary(f"/{rpc.SERVICE}/Lookup")(request, timeout=10)
    assert ask(channel, "Lookup", request).reply == over_grpc


def test_errors_carry_their_name_and_the_connection_goes_on(channel: Channel) -> None:
    missing = ask(channel, "Lookup", pb.LookupRequest(path=b"/missing").SerializeToString())
    assert (missing.error, missing.reply) == ("NoSuchFile", b"") and "/missing" in missing.message
    unknown = ask(channel, "Explode", b"")
    assert unknown.error == "NotSupported" and "Explode" in unknown.message
    garbage = ask(channel, "Create", b"\xff\xff\xff")
    assert garbage.error == "InvalidArgument" and "CreateRequest" in garbage.message
    assert not ask(channel, "Lookup", pb.LookupRequest(path=b"/").SerializeToString()).error


@pytest.mark.parametrize("data", [
    b"GET / HTTP/1.1\r\nHost: nameserver\r\n\r\n",
    HEADER.pack(MAGIC, MAX_FRAME_BYTES + 1),
    HEADER.pack(MAGIC, 3) + b"\xff\xff\xff",
], ids=["another protocol", "a frame too large", "not a message"])
def test_what_is_no_frame_is_refused_and_the_connection_closed(client: MetadataClient, channel: Channel,
                                                               data: bytes) -> None:
    channel.socket.sendall(data)
    assert channel.expect(pb.CallReply).error == "InvalidArgument"
    assert channel.receive(pb.CallReply) is None
    assert client.lookup("/").inode == 1


def test_random_bytes_never_stop_the_server(cluster: LocalCluster, client: MetadataClient) -> None:
    port = cluster.nameserver.port
    generator = random.Random(7)
    for _ in range(60):
        with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
            connection.sendall(generator.randbytes(generator.randint(1, 400)))
    assert client.lookup("/").inode == 1


def test_one_port_takes_frames_and_grpc_and_says_so(cluster: LocalCluster, client: MetadataClient) -> None:
    """What asks for the port of frames, as clients of earlier releases do, is told the one it knows."""
    assert client.statistics().frame_port == cluster.nameserver.port
    sockets = _descriptors(cluster.nameserver.pid)
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    assert {int(line[1].rpartition(":")[2], 16) for line in lines
            if line[3] == "0A" and f"socket:[{line[9]}]" in sockets} == {cluster.nameserver.port}


def test_a_grpc_client_that_says_nothing_more_holds_nobody_up(cluster: LocalCluster, client: MetadataClient) -> None:
    with socket.create_connection(("127.0.0.1", cluster.nameserver.port), timeout=5) as connection:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        assert client.lookup("/").inode == 1
        assert connection.recv(9)[3] == 4, "no SETTINGS"


def test_a_client_that_goes_away_in_the_middle_of_a_frame_costs_nothing(cluster: LocalCluster,
                                                                        client: MetadataClient) -> None:
    port = cluster.nameserver.port
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        connection.sendall(HEADER.pack(MAGIC, 100) + b"half")
    mine = f":{port:04X}"
    wait_until(lambda: not any(line.split()[1].endswith(mine) and line.split()[3] == "08"
                               for line in Path("/proc/net/tcp").read_text().splitlines()[1:]),
               5, "the nameserver keeps a connection that its client has closed")
    assert client.lookup("/").inode == 1


def _descriptors(pid: int) -> set[str]:
    """What they lead to."""
    return {os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir()}  # noqa: PTH115


def test_2000_clients_with_connections_of_their_own_are_all_answered(cluster: LocalCluster,
                                                                    client: MetadataClient) -> None:
    """More than there is room for take turns."""
    client.create("/many")
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    port = cluster.nameserver.port
    request = pb.LookupRequest(path=b"/many").SerializeToString()
    channels: list[Channel] = []
    try:
        for _ in range(2000):
            channels.append(connect("127.0.0.1", port))
            assert not ask(channels[-1], "Lookup", request).error
        assert not client.lookup("/many", fresh=True).size
        print(f"2,000 connections: {_resident_kib(cluster.nameserver.pid)} KiB in the nameserver's memory")
    finally:
        for one in channels:
            one.close()


def _resident_kib(pid: int) -> int:
    return int(Path(f"/proc/{pid}/status").read_text().partition("VmRSS:")[2].split()[0])
