"""Real servers, and peers of a later version: each is told which side to upgrade, or understood as far as it goes."""

from collections.abc import Iterator
from pathlib import Path

import grpc
import plyvel
import pytest

import speedwell.fs.wire.channel
from speedwell.fs import errors
from speedwell.fs.errors import NoReplicaAvailable, NotSupported
from speedwell.fs.nameserver.namespace.namespace_records import FORMAT_VERSION, SUPERBLOCK_KEY
from speedwell.fs.nameserver.service import grpc_errors as rpc
from speedwell.fs.proto import speedwell_pb2 as pb
from speedwell.fs.wire.channel import Channel, OtherVersion, connect
from tests.local_cluster import LocalCluster

LATER_FIELD = b"\xfa\x3f\x05later"
"""Field 1023 of a message, which has no such field yet."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("cluster"), dataservers=1, secure=False) as cluster:
        cluster.client().create("/f")
        cluster.client().append("/f", b"bytes")
        yield cluster


@pytest.fixture
def later_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process speaks it from now on."""
    monkeypatch.setattr(speedwell.fs.wire.channel, "VERSION", 2)
    monkeypatch.setattr(speedwell.fs.wire.channel, "MAGIC", b"SPW2")


def frames(cluster: LocalCluster) -> Channel:
    return connect(cluster.nameserver.host, cluster.nameserver.port)


def test_a_client_of_a_later_version_is_told_to_have_the_nameserver_upgraded(cluster: LocalCluster,
                                                                            later_version: None) -> None:
    with pytest.raises(OtherVersion, match=r"127.0.0.1:\d+ speaks version 1 .* version 2: upgrade 127"):
        cluster.client().lookup("/f")
    assert "speaks version 2 of the protocol, this process version 1: upgrade this process" in (
        cluster.nameserver.log.read_text())


def test_a_client_of_a_later_version_is_told_to_have_the_dataserver_upgraded(cluster: LocalCluster,
                                                                            request: pytest.FixtureRequest) -> None:
    client = cluster.client()
    reader = client.open_read("/f")
    server = client.lookup("/f").replicas[0]
    request.getfixturevalue("later_version")
    with pytest.raises(NoReplicaAvailable, match=f"{server.host}:{server.port} speaks version 1 .*: upgrade 127"):
        reader.read(0, 5)
    reader.close()
    request.getfixturevalue("monkeypatch").undo()
    client.append("/f", b" and more")
    with cluster.client().open_read("/f") as again:
        assert again.read(0, 100) == b"bytes and more"


def test_requests_with_fields_of_a_later_version_are_answered_as_without_them(cluster: LocalCluster) -> None:
    wanted = pb.LookupRequest(path=b"/f").SerializeToString() + LATER_FIELD
    inode = cluster.client().lookup("/f").inode
    with grpc.insecure_channel(cluster.nameserver.address) as channel:
        answer = channel.unary_unary(f"/{rpc.SERVICE}/Lookup")(wanted, timeout=30)
    assert pb.LookupReply.FromString(answer).attributes.inode == inode
    connection = frames(cluster)
    connection.send(pb.Call.FromString(pb.Call(method="Lookup", request=wanted).SerializeToString() + LATER_FIELD))
    reply = connection.expect(pb.CallReply)
    assert pb.LookupReply.FromString(reply.reply).attributes.inode == inode
    connection.close()
    data = connect(cluster.dataservers[0].host, cluster.dataservers[0].port)
    data.send(pb.DataRequest.FromString(pb.DataRequest(identity=pb.IdentityOperation()).SerializeToString()
                                        + LATER_FIELD))
    assert data.expect(pb.DataReply).dataserver_id == "d0"
    data.close()


def test_a_request_or_an_operation_that_only_a_later_version_has_is_refused_in_words(cluster: LocalCluster) -> None:
    connection = frames(cluster)
    connection.send(pb.Call(method="Snapshot"))
    reply = connection.expect(pb.CallReply)
    connection.close()
    assert isinstance(errors.named(reply.error, reply.message), NotSupported)
    assert "upgrade the nameserver" in reply.message
    data = connect(cluster.dataservers[0].host, cluster.dataservers[0].port)
    data.send(pb.DataRequest.FromString(LATER_FIELD))
    answer = data.expect(pb.DataReply)
    data.close()
    assert answer.status == pb.INVALID
    assert "upgrade the dataserver" in answer.message


def test_every_server_tells_its_release(cluster: LocalCluster) -> None:
    statistics = cluster.client().statistics()
    assert statistics.release
    assert [server.release for server in statistics.dataservers] == [statistics.release]


def test_a_nameserver_leaves_a_directory_of_a_later_format_alone(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, dataservers=0) as cluster:
        cluster.nameserver.stop()
        place = str(tmp_path / "nameserver" / "namespace")
        database = plyvel.DB(place)
        superblock = database.get(SUPERBLOCK_KEY)
        later = (FORMAT_VERSION + 1).to_bytes(2, "big") + superblock[2:]
        database.put(SUPERBLOCK_KEY, later)
        database.close()
        cluster.nameserver.launch()
        assert cluster.nameserver.process is not None
        assert cluster.nameserver.process.wait(30) == 1
        cluster.nameserver.stop()
        assert "format 3, this nameserver reads 2: start the version that wrote it" in (
            cluster.nameserver.log.read_text())
        database = plyvel.DB(place)
        assert database.get(SUPERBLOCK_KEY) == later
        database.close()
