"""The data channel over TLS: who reads the network reads no contents, and who has no certificate gets no word."""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from speedwell.fs.client import Client
from speedwell.fs.identity.authority import Authority
from speedwell.fs.identity.bundle import LOOK_SECONDS, Identity, Peer
from speedwell.fs.identity.roles import DATASERVER, MOUNT, OPERATOR
from speedwell.fs.proto import speedwell_pb2 as pb
from speedwell.fs.wire import secure_channel
from speedwell.fs.wire.channel import ConnectionLost, connect
from speedwell.fs.wire.secure_channel import SecureChannel
from tests.local_cluster import SCRIPTS, LocalCluster
from tests.waiting import wait_until

CONTENT = os.urandom(3_000_000)
HANDSHAKES = 1000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("cluster"), dataservers=3, secure=True, chunk_size=1 << 20,
                      nameserver_arguments=("--encrypt-data",), dataserver_arguments=("--encrypt-data",)) as cluster:
        client = cluster.client()
        client.create("/f")
        client.append("/f", CONTENT)
        yield cluster
        for daemon in (cluster.nameserver, *cluster.dataservers):
            assert "Traceback" not in daemon.log.read_text()


@pytest.fixture
def server(cluster: LocalCluster) -> pb.Replica:
    return cluster.client().lookup("/f").replicas[0]


def content(client: Client, path: str = "/f") -> bytes:
    with client.open_read(path) as reader:
        return reader.read(0, reader.size)


def test_contents_are_written_relayed_and_read_over_tls(cluster: LocalCluster,
                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    def plain(*arguments: object, **options: object) -> None:
        raise AssertionError("a connection in plain text")

    monkeypatch.setattr("speedwell.fs.client.names.nameservers.connect", plain)
    monkeypatch.setattr("speedwell.fs.wire.connections.connect", plain)
    with Client(cluster.nameserver.address, identity=cluster.identity("mount")) as client:
        client.create("/g")
        for number in range(5):
            client.append("/g", CONTENT[number * 100_000:(number + 1) * 100_000])
        file = client.lookup("/g")
        assert content(client, "/g") == CONTENT[:500_000] and content(client) == CONTENT
    assert len(file.replicas) == 3
    for replica in file.replicas:
        wait_until(lambda name=replica.dataserver_id: cluster.stored_bytes(name, file.file_id)  # type: ignore[misc]
                   == CONTENT[:500_000], 30, "a replica lacks what was relayed")


@pytest.mark.full
def test_a_copy_of_a_lost_replica_is_made_over_tls(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, dataservers=3, replication=2, secure=True,
                      nameserver_arguments=("--encrypt-data", "--recovery-grace", "1", "--lease", "2"),
                      dataserver_arguments=("--encrypt-data",)) as cluster:
        client = cluster.client()
        client.create("/f")
        client.append("/f", CONTENT[:700_000])
        file = client.lookup("/f")
        cluster.dataserver(file.replicas[1].dataserver_id).kill()
        other, = {"d0", "d1", "d2"} - {replica.dataserver_id for replica in file.replicas}
        wait_until(lambda: other in {replica.dataserver_id for replica in client.metadata.lookup(
            "/f", fresh=True).replicas}, 60, "no copy is made")
        assert cluster.stored_bytes(other, file.file_id) == CONTENT[:700_000]


def test_plain_text_is_told_what_is_missing(server: pb.Replica) -> None:
    with closing(connect(server.host, server.port)) as channel:
        channel.send(pb.DataRequest(identity=pb.IdentityOperation()))
        answer = channel.expect(pb.DataReply)
        assert answer.status == pb.INVALID and "only clients with a certificate" in answer.message
        assert not answer.dataserver_id and channel.receive(pb.DataReply) is None


def test_strangers_and_earlier_versions_of_tls_are_refused(cluster: LocalCluster, server: pb.Replica,
                                                           tmp_path: Path) -> None:
    foreign = Authority.make(tmp_path).issue("operator", OPERATOR)
    past = Authority(cluster.authority.directory, lambda: time.time() - 40 * 86400).issue("past", OPERATOR)
    for certificate, version, alert in ((foreign, ssl.TLSVersion.TLSv1_3, "UNKNOWN_CA"),
                                        (past, ssl.TLSVersion.TLSv1_3, "CERTIFICATE_EXPIRED"),
                                        (None, ssl.TLSVersion.TLSv1_3, "CERTIFICATE_REQUIRED"),
                                        (cluster.identity("mount"), ssl.TLSVersion.TLSv1_2, "PROTOCOL_VERSION")):
        context = ssl.create_default_context(cafile=cluster.identity("operator") / "authority.pem")
        context.maximum_version = version
        if certificate is not None:
            context.load_cert_chain(certificate / "identity.pem")
        with socket.create_connection((server.host, server.port), 10) as plain, \
                pytest.raises(ssl.SSLError, match=alert), \
                context.wrap_socket(plain, server_hostname="dataserver.speedwell") as secured:
            secured.recv(1)


def test_a_thousand_slow_handshakes_delay_no_reader(cluster: LocalCluster) -> None:
    waiting: list[socket.socket] = []
    try:
        for server in cluster.client().lookup("/f").replicas:
            for number in range(HANDSHAKES):
                slow = socket.create_connection((server.host, server.port), 10, ("127.0.0.2", 0))
                waiting.append(slow)
                if number % 2:
                    slow.send(b"\x16\x03\x01")  # as if a handshake began
        assert content(cluster.client()) == CONTENT
        for slow in waiting[1::100]:
            slow.settimeout(60)
            assert slow.recv(1) == b"", "a handshake that does not end is ended"
    finally:
        for slow in waiting:
            slow.close()


def test_who_is_revoked_is_refused_on_an_open_connection(cluster: LocalCluster, server: pb.Replica) -> None:
    identity = Identity(cluster.authority.issue("mallory", MOUNT))
    channel = secure_channel.connect(server.host, server.port, identity, DATASERVER)
    request = pb.DataRequest(identity=pb.IdentityOperation())
    channel.send(request)
    assert channel.expect(pb.DataReply).dataserver_id == server.dataserver_id
    cluster.authority.revoke("mallory")

    def is_refused() -> bool:
        channel.send(request)
        return "the mount mallory was revoked" in channel.expect(pb.DataReply).message

    with closing(channel):
        wait_until(is_refused, 40 * LOOK_SECONDS, "a revoked certificate is served")
        assert channel.receive(pb.DataReply) is None, "its connection is still open"


def test_another_role_does_not_pass_for_a_dataserver_and_tokens_stay(cluster: LocalCluster,
                                                                     server: pb.Replica) -> None:
    mount = Identity(cluster.identity("mount"))
    with pytest.raises(ConnectionLost, match="of another role"):
        secure_channel.data_connector(mount)(cluster.nameserver.host, cluster.nameserver.port)
    channel = secure_channel.data_connector(mount)(server.host, server.port)
    assert isinstance(channel, SecureChannel)
    with closing(channel):
        file = cluster.client().lookup("/f")
        channel.send(pb.DataRequest(read=pb.ReadOperation(file_id=file.file_id, length=100)))
        assert channel.expect(pb.DataReply).status == pb.TOKEN_REFUSED


def test_a_client_goes_on_with_the_replicas_whose_certificates_are_good(cluster: LocalCluster,
                                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    """As where one dataserver's was revoked: to a client it is as if it were down."""
    bad = cluster.client().lookup("/f").replicas[0]
    refusal = Identity.refusal

    def refused(self: Identity, peer: Peer) -> str:
        return "it was revoked" if peer.name == bad.dataserver_id else refusal(self, peer)

    monkeypatch.setattr(Identity, "refusal", refused)
    with Client(cluster.nameserver.address, identity=cluster.identity("mount")) as client:
        assert content(client) == CONTENT


@pytest.mark.parametrize("command", ["speedwell-nameserver", "speedwell-dataserver"])
def test_without_an_identity_nothing_is_encrypted_and_nothing_starts(tmp_path: Path, command: str) -> None:
    options = {"speedwell-nameserver": ["--new"], "speedwell-dataserver": [
        "--id", "d0", "--listen", "127.0.0.1:0", "--nameserver", "127.0.0.1:1"]}[command]
    ended = subprocess.run([str(SCRIPTS / command), *options, "--directory", str(tmp_path / "d"), "--encrypt-data"],
                           capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2 and "--encrypt-data: it takes --identity" in ended.stderr, ended.stderr
    assert not (tmp_path / "d").exists()
