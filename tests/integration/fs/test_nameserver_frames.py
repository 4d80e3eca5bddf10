"""The nameserver's requests as frames: the same answers as over gRPC, and the same door."""

import os
import random
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from speedwell.fs import rpc
from speedwell.fs.channel import HEADER, MAGIC, MAX_FRAME_BYTES, Channel, ConnectionLost, connect
from speedwell.fs.client.calls import Calls
from speedwell.fs.client.metadata import MetadataClient
from speedwell.fs.errors import NoSuchFile
from speedwell.fs.proto import speedwell_pb2 as pb
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
def channel(client: MetadataClient) -> Iterator[Channel]:
    channel = connect("127.0.0.1", client.statistics().frame_port)
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


def test_random_bytes_never_stop_the_server(client: MetadataClient) -> None:
    port = client.statistics().frame_port
    generator = random.Random(7)
    for _ in range(60):
        with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
            connection.sendall(generator.randbytes(generator.randint(1, 400)))
    assert client.lookup("/").inode == 1


def test_a_client_finds_the_frame_port_of_a_nameserver_that_was_restarted(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, dataservers=0) as cluster, \
            MetadataClient(cluster.nameserver.address, cache_seconds=0) as client:
        client.mkdir("/d")
        before = client.statistics().frame_port
        cluster.nameserver.kill()
        cluster.nameserver.start()
        assert client.lookup("/d").type == pb.DIRECTORY
        after = client.statistics().frame_port
        assert after != before
        assert _connections_to(after) >= 1, "the client stays with gRPC"


def test_a_client_that_cannot_reach_the_frame_port_uses_grpc(cluster: LocalCluster,
                                                             monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*arguments: object, **options: object) -> Channel:
        raise ConnectionLost("no route to host")

    monkeypatch.setattr("speedwell.fs.connections.connect", unreachable)
    calls = Calls(cluster.nameserver.address)
    try:
        reply = calls.call("Lookup", pb.LookupRequest(path=b"/"), 5.0)
        assert reply.attributes.inode == 1
        with pytest.raises(NoSuchFile):
            calls.call("Lookup", pb.LookupRequest(path=b"/missing"), 5.0)
    finally:
        calls.close()


def test_a_client_that_goes_away_in_the_middle_of_a_frame_costs_nothing(client: MetadataClient) -> None:
    port = client.statistics().frame_port
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        connection.sendall(HEADER.pack(MAGIC, 100) + b"half")
    mine = f":{port:04X}"
    wait_until(lambda: not any(line.split()[1].endswith(mine) and line.split()[3] == "08"
                               for line in Path("/proc/net/tcp").read_text().splitlines()[1:]),
               5, "the nameserver keeps a connection that its client has closed")
    assert client.lookup("/").inode == 1


def _connections_to(port: int) -> int:
    """Established connections of this process to a local port."""
    inodes = {os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")  # noqa: PTH115, PTH208
              if os.path.islink(f"/proc/self/fd/{name}")}  # noqa: PTH114
    return sum(line.split()[2].endswith(f":{port:04X}") and line.split()[3] == "01"
               and f"socket:[{line.split()[9]}]" in inodes
               for line in Path("/proc/net/tcp").read_text().splitlines()[1:])


def test_2000_clients_with_connections_of_their_own_are_all_answered(cluster: LocalCluster,
                                                                    client: MetadataClient) -> None:
    """More than there is room for take turns."""
    client.create("/many")
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    port = client.statistics().frame_port
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
