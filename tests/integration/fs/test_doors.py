"""The nameserver's door: who is let in, and what those are told who are not."""

from __future__ import annotations

import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import grpc
import pytest

from speedwell.fs import tokens
from speedwell.fs.client import Client
from speedwell.fs.client.names.metadata import MetadataClient
from speedwell.fs.errors import NotAuthenticated, NotAuthorised, SpeedwellError
from speedwell.fs.fsspec import SpeedwellFileSystem
from speedwell.fs.identity.authority import Authority
from speedwell.fs.identity.bundle import LOOK_SECONDS, Identity
from speedwell.fs.identity.roles import DATASERVER, NAMESERVER, OPERATOR
from speedwell.fs.nameserver.service import grpc_errors as rpc
from speedwell.fs.proto import speedwell_pb2 as pb
from speedwell.fs.wire import secure_channel
from speedwell.fs.wire.channel import Channel, connect
from speedwell.fuse_mount.measures import Measures
from speedwell.fuse_mount.metrics import MountMetrics
from tests.local_cluster import SCRIPTS, LocalCluster
from tests.waiting import wait_until

HANDSHAKES = 1000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("cluster"), dataservers=1, secure=True) as cluster:
        cluster.client().create("/f")
        cluster.client().append("/f", b"content")
        yield cluster
        assert "Traceback" not in cluster.nameserver.log.read_text()


@pytest.fixture
def names(cluster: LocalCluster) -> Iterator[Callable[[Path], MetadataClient]]:
    made: list[MetadataClient] = []

    def connect(identity: Path) -> MetadataClient:
        made.append(MetadataClient(cluster.nameserver.address, 0, identity=identity, call_timeout_seconds=10))
        return made[-1]

    yield connect
    for client in made:
        client.close()


Names = Callable[[Path], MetadataClient]


def refused(client: MetadataClient) -> str:
    with pytest.raises(NotAuthenticated) as error:
        client.lookup("/f")
    return str(error.value)


def address(cluster: LocalCluster) -> tuple[str, int]:
    return cluster.nameserver.host, cluster.nameserver.port


def test_a_foreign_certificate_is_refused_by_name(cluster: LocalCluster, names: Names, tmp_path: Path) -> None:
    foreign = Authority.make(tmp_path).issue("operator", OPERATOR)
    said = refused(names(foreign))
    assert "its certificate is not good" in said and str(foreign) in said


def test_the_server_too_refuses_a_foreign_certificate_and_one_who_has_none(cluster: LocalCluster,
                                                                          tmp_path: Path) -> None:
    foreign = Authority.make(tmp_path).issue("operator", OPERATOR)
    for certificate, alert in ((foreign, "UNKNOWN_CA"), (None, "CERTIFICATE_REQUIRED")):
        context = ssl.create_default_context(cafile=cluster.identity("operator") / "authority.pem")
        if certificate is not None:
            context.load_cert_chain(certificate / "identity.pem")
        with socket.create_connection(address(cluster), 10) as plain, \
                context.wrap_socket(plain, server_hostname="nameserver.speedwell") as secured, \
                pytest.raises(ssl.SSLError, match=alert):
            secured.recv(1)


def test_tls_1_2_is_refused(cluster: LocalCluster) -> None:
    context = ssl.create_default_context(cafile=cluster.identity("operator") / "authority.pem")
    context.load_cert_chain(cluster.identity("operator") / "identity.pem")
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with socket.create_connection(address(cluster), 10) as plain, \
            pytest.raises(ssl.SSLError, match="PROTOCOL_VERSION"):
        context.wrap_socket(plain, server_hostname="nameserver.speedwell")


def test_an_expired_certificate_is_refused_by_name(cluster: LocalCluster, names: Names) -> None:
    past = Authority(cluster.authority.directory, lambda: time.time() - 40 * 86400)
    place = past.issue("yesterday", OPERATOR)
    said = refused(names(place))
    assert "our certificate, which has expired" in said and str(place) in said


def test_who_is_revoked_is_refused_on_open_connections_too(cluster: LocalCluster, names: Names) -> None:
    client = names(cluster.authority.issue("mallory", OPERATOR))
    client.lookup("/f")
    open_one = secure_channel.connect(*address(cluster), Identity(cluster.identity("mallory")), NAMESERVER)
    look_up = pb.Call(method="Lookup", request=pb.LookupRequest(path=b"/f").SerializeToString())
    open_one.send(look_up)
    assert open_one.expect_alone(pb.CallReply).reply
    cluster.authority.revoke("mallory")

    def is_refused() -> bool:
        try:
            client.lookup("/f")
        except NotAuthenticated as error:
            return "the certificate of the operator mallory was revoked" in str(error)
        return False

    wait_until(is_refused, 20 * LOOK_SECONDS, "a revoked certificate is served")
    with closing(open_one):
        open_one.send(look_up)
        assert open_one.expect_alone(pb.CallReply).error == "NotAuthenticated"
        assert open_one.receive_alone(pb.CallReply) is None, "its connection is still open"
    cluster.authority.issue("mallory", OPERATOR)
    wait_until(lambda: not fails(client), 20 * LOOK_SECONDS, "the new certificate is not served")


def test_who_is_revoked_reads_nothing_more_of_what_it_had_looked_up(cluster: LocalCluster) -> None:
    place = cluster.authority.issue("leaving", OPERATOR)
    with Client(cluster.nameserver.address, identity=place) as client, client.open_read("/f") as reader:
        def answer() -> bytes | str:
            try:
                return reader.read(0, 7)
            except SpeedwellError as error:
                return str(error)

        assert answer() == b"content"
        cluster.authority.revoke("leaving")
        wait_until(lambda: "was revoked" in str(answer()), 30, "a dataserver serves who was revoked")
        cluster.authority.issue("leaving", OPERATOR)
        wait_until(lambda: answer() == b"content", 30, "the new certificate is not served")


def fails(client: MetadataClient) -> bool:
    try:
        client.lookup("/f")
    except NotAuthenticated:
        return True
    return False


def test_plain_frames_and_grpc_are_told_what_is_missing(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch,
                                                        tmp_path: Path) -> None:
    monkeypatch.setenv("SPEEDWELL_STATE_DIRECTORY", str(tmp_path))
    with MetadataClient(cluster.nameserver.address, 0, call_timeout_seconds=1) as client:
        assert "only clients with a certificate" in refused(client)
    with grpc.insecure_channel(cluster.nameserver.address) as channel, pytest.raises(grpc.RpcError):
        channel.unary_unary(f"/{rpc.SERVICE}/Statistics")(b"", timeout=5)


def test_a_client_with_a_certificate_falls_back_to_nothing(cluster: LocalCluster, tmp_path: Path) -> None:
    with LocalCluster(tmp_path, dataservers=0, secure=False) as plain, \
            MetadataClient(plain.nameserver.address, 0, identity=cluster.identity("operator")) as client:
        assert "does not speak TLS" in refused(client)


def test_a_dataserver_is_not_taken_for_the_nameserver(cluster: LocalCluster, tmp_path: Path) -> None:
    """Whoever has a dataserver's key cannot pass for the nameserver."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cluster.identity("d0") / "identity.pem")
    with socket.create_server(("127.0.0.1", 0)) as listener, \
            MetadataClient(f"127.0.0.1:{listener.getsockname()[1]}", 0, call_timeout_seconds=5,
                           identity=cluster.identity("operator")) as client:
        def pretend() -> None:
            with suppress(OSError):
                context.wrap_socket(listener.accept()[0], server_side=True)

        threading.Thread(target=pretend, daemon=True).start()
        assert "its certificate is of another role" in refused(client)


def test_roles_bound_what_may_be_asked(cluster: LocalCluster, names: Names) -> None:
    reader, mount, operator, dataserver = (names(cluster.identity(who))
                                           for who in ("reader", "mount", "operator", "d0"))
    before = operator.lookup("/f")
    for client, change in ((reader, lambda: reader.create("/g")), (reader, lambda: reader.remove("/f")),
                           (reader, lambda: reader.operator.set_quota("/", max_files=1)),
                           (mount, lambda: mount.operator.set_quota("/", max_files=1)),
                           (mount, lambda: mount.operator.set_draining("d0", True)),
                           (dataserver, lambda: dataserver.remove("/f"))):
        with pytest.raises(NotAuthorised, match="may not ask for"):
            change()
        assert client is operator or [entry.name for entry in operator.list("/")] == [b"f"]
    assert reader.lookup("/f").inode == mount.lookup("/f").inode == before.inode
    mount.create("/of the mount")
    operator.remove("/of the mount")


@pytest.mark.parametrize("method", ["Heartbeat", "UploadMirror", "Mirror", "Publish", "ChangeReplicas"])
def test_only_a_dataserver_reports_and_for_itself_alone(cluster: LocalCluster, names: Names, method: str) -> None:
    request = pb.HeartbeatRequest(server=pb.Replica(dataserver_id="d7", host="127.0.0.1", port=1)) \
        if method == "Heartbeat" else getattr(pb, f"{method}Request")(dataserver_id="d7")
    for who, says in (("mount", "may not ask for"), ("operator", "may not ask for"), ("reader", "may not ask for"),
                      ("d0", "may not speak for the dataserver d7")):
        with pytest.raises(NotAuthorised, match=says):
            names(cluster.identity(who)).requests.ask(method, request)
    servers = names(cluster.identity("operator")).statistics().dataservers
    assert [status.server.dataserver_id for status in servers] == ["d0"]


def test_a_reader_reads_and_writes_nothing_over_a_local_socket_either(cluster: LocalCluster) -> None:
    with Client(cluster.nameserver.address, identity=cluster.identity("reader"), local_host="127.0.0.1") as client:
        with client.open_read("/f") as reader:
            assert reader.read(0, 100) == b"content"
        with pytest.raises(SpeedwellError, match="gives no right to write"):
            client.append("/f", b"more")


def test_a_readers_tokens_change_nothing(cluster: LocalCluster, names: Names) -> None:
    for who, rights in (("reader", tokens.READ), ("mount", tokens.READ | tokens.WRITE)):
        claims = tokens.read(names(cluster.identity(who)).lookup("/f").token)
        assert claims is not None and claims.rights == rights | tokens.BOUND


def read_as(channel: Channel, file: pb.Attributes, mac: bytes = b"", client: str = "", key: int = 0) -> pb.DataReply:
    with closing(channel):
        if client:
            channel.send(pb.DataRequest(proof=pb.ProofOperation(client=client, key=key, mac=mac)))
        channel.send(pb.DataRequest(token=file.token, read=pb.ReadOperation(file_id=file.file_id, length=100)))
        return channel.expect(pb.DataReply)


def asked(server: pb.Replica) -> tuple[Channel, bytes]:
    channel = connect(server.host, server.port, stall_timeout_seconds=15)
    channel.send(pb.DataRequest(identity=pb.IdentityOperation()))
    return channel, channel.expect(pb.DataReply).nonce


def test_a_stolen_token_is_of_no_use_without_the_key_of_its_client(cluster: LocalCluster, names: Names) -> None:
    mount, reader = names(cluster.identity("mount")), names(cluster.identity("reader"))
    stolen, own, key = mount.lookup("/f"), reader.lookup("/f"), reader.proof_key()
    server = stolen.replicas[0]
    assert key is not None and key.client == "reader reader"
    assert read_as(connect(server.host, server.port), stolen).status == pb.TOKEN_REFUSED
    channel, nonce = asked(server)
    answer = tokens.proof(key.secret, nonce, server.dataserver_id)
    for claimed in ("mount mount", "local"):
        channel, nonce = asked(server)
        forged = tokens.proof(key.secret, nonce, server.dataserver_id)
        assert read_as(channel, stolen, forged, claimed, key.key).status == pb.TOKEN_REFUSED
    channel, nonce = asked(server)
    proven = tokens.proof(key.secret, nonce, server.dataserver_id)
    assert read_as(channel, stolen, proven, key.client, key.key).status == pb.TOKEN_REFUSED
    channel, nonce = asked(server)
    assert read_as(channel, own, answer, key.client, key.key).status == pb.TOKEN_REFUSED    # of another connection
    channel, nonce = asked(server)
    assert read_as(channel, own, tokens.proof(key.secret, nonce, server.dataserver_id), key.client,
                   key.key).status == pb.OK


def test_who_asks_on_the_nameservers_own_host_gets_tokens_for_that_host_alone(cluster: LocalCluster) -> None:
    with Client(cluster.nameserver.address, identity=cluster.identity("mount"), local_host="127.0.0.1") as client:
        file = client.lookup("/f")
        assert read_as(connect(file.replicas[0].host, file.replicas[0].port), file).status == pb.TOKEN_REFUSED
        with client.open_read("/f") as reader:
            assert reader.read(0, 100) == b"content"


def test_a_client_goes_on_after_the_keys_are_others(cluster: LocalCluster) -> None:
    """Its connections and its key are from before, as after hours of silence."""
    with cluster.client(metadata_cache_seconds=0) as client:
        with client.open_read("/f") as reader:
            assert reader.read(0, 7) == b"content"
            held = client._context.tokens
            assert held._proof_key is not None
            held._proof_key = pb.ProofKeyReply(client="operator operator", key=99, secret=b"of before",
                                               valid_ms=10**9)
            client._context.connections.close()
            assert reader.read(0, 7) == b"content"
        held._proof_key = pb.ProofKeyReply(client="mount other", key=99, secret=b"of before", valid_ms=10**9)
        client.create("/g")
        client.append("/g", b"appended")
        assert client.open_read("/g").read(0, 8) == b"appended"


def test_fsspec_takes_an_identity(cluster: LocalCluster) -> None:
    files = SpeedwellFileSystem(cluster.nameserver.address, identity=str(cluster.identity("reader")))
    assert files.cat("/f") == b"content"
    with pytest.raises(PermissionError):
        files.mkdir("/d")


def test_a_thousand_slow_handshakes_stop_nobody(cluster: LocalCluster, names: Names) -> None:
    waiting: list[socket.socket] = []
    client = names(cluster.identity("operator"))
    client.lookup("/f")
    try:
        for number in range(HANDSHAKES):
            slow = socket.create_connection(address(cluster), 10, ("127.0.0.2", 0))
            waiting.append(slow)
            if number % 2:
                slow.send(b"\x16\x03\x01")  # as if a handshake began
        client.lookup("/f")
        with MetadataClient(cluster.nameserver.address, 0, identity=cluster.identity("mount")) as another:
            another.lookup("/f")
        for slow in waiting[1::100]:
            slow.settimeout(60)
            assert slow.recv(1) == b"", "a handshake that does not end is ended"
    finally:
        for slow in waiting:
            slow.close()


def test_servers_refuse_to_start_with_what_is_not_theirs(cluster: LocalCluster, tmp_path: Path) -> None:
    other = cluster.authority.directory / "d1"
    if not other.exists():
        cluster.authority.issue("d1", DATASERVER)
    for command, says in (
            (["speedwell-nameserver", "--new", "--directory", str(tmp_path / "n"), "--identity",
              str(cluster.identity("operator"))], "is the identity of the operator operator, not of a nameserver"),
            (["speedwell-nameserver", "--new", "--directory", str(tmp_path / "n"), "--identity", str(tmp_path)],
             "is no identity"),
            (["speedwell-dataserver", "--id", "d0", "--nameserver", cluster.nameserver.address, "--listen",
              "127.0.0.1:0", "--directory", str(tmp_path / "d"), "--identity", str(other)],
             "is the identity of the dataserver d1, not of d0")):
        ended = subprocess.run([str(SCRIPTS / command[0]), *command[1:]], capture_output=True, text=True, timeout=60,
                               check=False)
        assert ended.returncode != 0 and says in ended.stderr and "Traceback" not in ended.stderr, ended.stderr
        assert not (tmp_path / "n").exists() and not (tmp_path / "d").exists(), "nothing was made"


def test_a_mount_says_that_a_nameserver_answers_it_only_if_that_takes_its_certificate(cluster: LocalCluster,
                                                                                      tmp_path: Path) -> None:
    foreign = Authority.make(tmp_path).issue("operator", OPERATOR)
    for identity, is_up in ((cluster.identity("mount"), 1), (foreign, 0)):
        told = MountMetrics("/m", cluster.nameserver.address, Measures(), cluster.client(), lambda: 0, identity)
        assert {metric.name: metric.samples[0].value for metric in told.collect() if metric.samples}[
            "speedwell_mount_nameserver_up"] == is_up
