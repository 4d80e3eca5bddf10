"""gRPC of a nameserver with an identity: the rights are those of frames, the door is the same."""

from __future__ import annotations

import json
import os
import re
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import pytest

from speedwell.fs.client.names.metadata import MetadataClient
from speedwell.fs.identity.authority import Authority
from speedwell.fs.identity.bundle import LOOK_SECONDS, Identity
from speedwell.fs.identity.roles import MOUNT, OPERATOR
from speedwell.fs.identity.scope import Scope
from speedwell.fs.nameserver.service import grpc_errors as rpc
from speedwell.fs.proto import speedwell_pb2 as pb
from tests.local_cluster import LocalCluster
from tests.waiting import wait_until

FOR_1000 = Scope(((1000, 1000),), ((1000, 1000),), b"/home")


class Grpc:
    """What any program with gRPC and a certificate does, with nothing of ours but the messages."""

    def __init__(self, address: str, credentials: Any) -> None:
        self._channel = grpc.secure_channel(address, credentials, options=[
            ("grpc.ssl_target_name_override", "nameserver.speedwell")])

    def call(self, method: str, request: Any) -> Any:
        reply = self._channel.unary_unary(f"/{rpc.SERVICE}/{method}")(request.SerializeToString(), timeout=30)
        return getattr(pb, f"{method}Reply").FromString(reply)

    def refusal(self, method: str, request: Any) -> tuple[Any, str]:
        with pytest.raises(grpc.RpcError) as error:
            self.call(method, request)
        return error.value.code(), error.value.details()    # type: ignore[attr-defined]

    def close(self) -> None:
        self._channel.close()


Connect = Callable[[Path], Grpc]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory = tmp_path_factory.mktemp("cluster")
    with LocalCluster(directory, dataservers=1, secure=True,
                      nameserver_arguments=("--audit-log", str(directory / "audit"))) as cluster:
        cluster.client().mkdir("/home")
        cluster.client().create("/f")
        cluster.authority.issue("laptop", MOUNT, FOR_1000)
        yield cluster
        assert "Traceback" not in cluster.nameserver.log.read_text()


@pytest.fixture
def connect(cluster: LocalCluster) -> Iterator[Connect]:
    made: list[Grpc] = []

    def connect(identity: Path) -> Grpc:
        made.append(Grpc(cluster.nameserver.address, Identity(identity).grpc_credentials()))
        return made[-1]

    yield connect
    for client in made:
        client.close()


LOOK_UP = pb.LookupRequest(path=b"/f")


def test_the_answers_are_those_of_frames_and_come_side_by_side(cluster: LocalCluster, connect: Connect) -> None:
    client = connect(cluster.identity("mount"))
    inode = cluster.client().lookup("/f").inode
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: client.call("Lookup", LOOK_UP).attributes.inode, range(400)))
    assert answers == [inode] * 400


def test_the_example_of_the_page_runs(cluster: LocalCluster) -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "nameserver-interface.md").read_text()
    [example] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    program = example.replace("/srv/identity/me", str(cluster.identity("reader"))).replace(
        "127.0.0.1:7400", cluster.nameserver.address)
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert ended.stdout == "1\n", ended.stderr


def test_long_answers_and_long_requests_arrive_whole(cluster: LocalCluster, connect: Connect) -> None:
    client = connect(cluster.identity("mount"))
    client.call("MakeDirectory", pb.MakeDirectoryRequest(path=b"/long", mode=0o755))
    value = os.urandom(60_000)
    client.call("SetExtendedAttribute", pb.SetExtendedAttributeRequest(
        path=b"/long", extended_attribute=pb.ExtendedAttribute(name=b"user.v", value=value)))
    listed = client.call("ListExtendedAttributes", pb.ListExtendedAttributesRequest(path=b"/long"))
    assert [each.value for each in listed.extended_attributes] == [value]
    for number in range(400):
        client.call("Create", pb.CreateRequest(path=b"/long/%d" % number, mode=0o600))
    names = [entry.name for entry in client.call("List", pb.ListRequest(path=b"/long")).entries]
    assert sorted(names) == sorted(b"%d" % number for number in range(400))


def test_strangers_and_plain_text_reach_nothing(cluster: LocalCluster, tmp_path: Path) -> None:
    foreign = Authority.make(tmp_path).issue("operator", OPERATOR)
    past = Authority(cluster.authority.directory, lambda: time.time() - 40 * 86400).issue("past", OPERATOR)
    root = (cluster.identity("operator") / "authority.pem").read_bytes()

    def with_authority(identity: Path) -> Any:
        own = (identity / "identity.pem").read_bytes()
        return grpc.ssl_channel_credentials(root, own, own)

    for credentials in (grpc.ssl_channel_credentials(root), with_authority(foreign), with_authority(past),
                        Identity(foreign).grpc_credentials()):
        client = Grpc(cluster.nameserver.address, credentials)
        code, _ = client.refusal("Lookup", LOOK_UP)
        client.close()
        assert code == grpc.StatusCode.UNAVAILABLE
    with grpc.insecure_channel(cluster.nameserver.address) as plain, pytest.raises(grpc.RpcError):
        plain.unary_unary(f"/{rpc.SERVICE}/Lookup")(LOOK_UP.SerializeToString(), timeout=5)


def test_an_earlier_tls_is_refused(cluster: LocalCluster) -> None:
    context = Identity(cluster.identity("operator")).client_context()
    context.set_alpn_protocols(["h2"])
    for version, is_taken in ((ssl.TLSVersion.TLSv1_2, False), (ssl.TLSVersion.TLSv1_3, True)):
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.maximum_version = version
        with socket.create_connection((cluster.nameserver.host, cluster.nameserver.port), 10) as plain:
            if is_taken:
                with context.wrap_socket(plain, server_hostname="nameserver.speedwell") as secured:
                    assert secured.selected_alpn_protocol() == "h2"
            else:
                with pytest.raises(ssl.SSLError, match="PROTOCOL_VERSION"):
                    context.wrap_socket(plain, server_hostname="nameserver.speedwell")


def test_roles_bound_what_may_be_asked(cluster: LocalCluster, connect: Connect) -> None:
    for who, method, request in (
            ("reader", "Create", pb.CreateRequest(path=b"/g")), ("reader", "Remove", pb.RemoveRequest(path=b"/f")),
            ("mount", "SetQuota", pb.SetQuotaRequest(path=b"/", max_files=1)),
            ("mount", "Heartbeat", pb.HeartbeatRequest()), ("d0", "Remove", pb.RemoveRequest(path=b"/f"))):
        code, says = connect(cluster.identity(who)).refusal(method, request)
        assert code == grpc.StatusCode.PERMISSION_DENIED and f"may not ask for {method}" in says
    claimed = pb.HeartbeatRequest(server=pb.Replica(dataserver_id="d7", host="127.0.0.1", port=1))
    code, says = connect(cluster.identity("d0")).refusal("Heartbeat", claimed)
    assert code == grpc.StatusCode.PERMISSION_DENIED and "may not speak for the dataserver d7" in says
    assert [entry.name for entry in cluster.client().list("/")].count(b"g") == 0
    assert connect(cluster.identity("reader")).call("Lookup", LOOK_UP).attributes.inode


def test_nobody_acts_for_other_users_or_outside_of_the_sub_tree(cluster: LocalCluster, connect: Connect) -> None:
    client, operator = connect(cluster.identity("laptop")), connect(cluster.identity("operator"))
    if not [entry for entry in operator.call("List", pb.ListRequest(path=b"/home")).entries if entry.name == b"own"]:
        operator.call("MakeDirectory", pb.MakeDirectoryRequest(path=b"/home/own", mode=0o700, uid=1000, gid=1000))
    for method, request in (
            ("Lookup", LOOK_UP), ("List", pb.ListRequest(path=b"/")),
            ("Create", pb.CreateRequest(path=b"/home/own/of another", mode=0o600, uid=1001, gid=1000)),
            ("Rename", pb.RenameRequest(source=b"/f", destination=b"/home/own/f"))):
        code, says = client.refusal(method, request)
        assert code == grpc.StatusCode.PERMISSION_DENIED and "its certificate is for the users 1000 in /home" in says
    client.call("Create", pb.CreateRequest(path=b"/home/own/mine", mode=0o600, uid=1000, gid=1000))
    assert operator.call("Lookup", LOOK_UP).attributes.inode


def test_who_is_revoked_is_refused_on_an_open_connection(cluster: LocalCluster, connect: Connect) -> None:
    client = connect(cluster.authority.issue("mallory", OPERATOR))
    client.call("Lookup", LOOK_UP)
    cluster.authority.revoke("mallory")

    def is_refused() -> bool:
        try:
            client.call("Lookup", LOOK_UP)
        except grpc.RpcError as error:
            return (error.code() == grpc.StatusCode.UNAUTHENTICATED    # type: ignore[attr-defined]
                    and "the operator mallory was revoked" in error.details())  # type: ignore[attr-defined]
        return False

    wait_until(is_refused, 40 * LOOK_SECONDS, "a revoked certificate is served")


def test_changes_and_refusals_are_in_the_audit_log(cluster: LocalCluster, connect: Connect) -> None:
    client = connect(cluster.identity("reader"))
    client.refusal("Remove", pb.RemoveRequest(path=b"/f"))

    def noted() -> bool:
        lines = [json.loads(line) for line in (cluster.directory / "audit").read_text().splitlines()]
        return any((line["who"], line["what"], line.get("path"), line["result"], line["from"]) ==
                   ("reader reader", "Remove", "/f", "NotAuthorised", "127.0.0.1") for line in lines)

    wait_until(noted, 30, "the audit log does not have it")


def test_who_is_refused_again_and_again_waits_and_nobody_else(cluster: LocalCluster, connect: Connect) -> None:
    mount, operator = connect(cluster.identity("d0")), connect(cluster.identity("operator"))
    remove = pb.RemoveRequest(path=b"/f")
    began = time.monotonic()
    with ThreadPoolExecutor(8) as pool:
        refused = pool.map(lambda _: mount.refusal("Remove", remove)[0], range(130))
        for _ in range(20):
            operator.call("Lookup", LOOK_UP)
        assert set(refused) == {grpc.StatusCode.PERMISSION_DENIED}
    assert time.monotonic() - began > 0.5, "nobody waits"


def test_what_grpc_itself_listens_on_is_of_no_use_to_others(cluster: LocalCluster, connect: Connect) -> None:
    """Between TLS and gRPC is a local socket: in a directory of our own, and it knows nobody."""
    connect(cluster.identity("operator")).call("Lookup", LOOK_UP)
    place = next(Path(line.split()[-1]) for line in Path("/proc/net/unix").read_text().splitlines()
                 if line.endswith("/grpc") and cluster.nameserver.pid in listeners(int(line.split()[6])))
    assert place.parent.stat().st_mode & 0o777 == 0o700
    with grpc.insecure_channel(f"unix:{place}") as channel, pytest.raises(grpc.RpcError) as error:
        channel.unary_unary(f"/{rpc.SERVICE}/Lookup")(LOOK_UP.SerializeToString(), timeout=30)
    assert error.value.code() == grpc.StatusCode.UNAUTHENTICATED    # type: ignore[attr-defined]
    if os.geteuid() == 0:
        tried = subprocess.run([sys.executable, "-c", "import os, socket, sys\nos.setuid(65534)\n"
                                f"socket.socket(socket.AF_UNIX).connect({str(place)!r})"],
                               capture_output=True, text=True, timeout=60, check=False)
        assert "PermissionError" in tried.stderr


def listeners(inode: int) -> set[int]:
    """The processes that have that socket."""
    found = set()
    for descriptor in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if os.readlink(descriptor) == f"socket:[{inode}]":  # noqa: PTH115
                found.add(int(descriptor.parts[2]))
        except OSError:
            continue
    return found


def test_it_ends_with_the_nameserver_and_is_there_again(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, dataservers=0, secure=True) as cluster:
        client = Grpc(cluster.nameserver.address, Identity(cluster.identity("operator")).grpc_credentials())
        root = pb.LookupRequest(path=b"/")
        client.call("Lookup", root)
        assert cluster.nameserver.stop() == 0
        cluster.nameserver.start()

        def is_there() -> bool:
            try:
                return bool(client.call("Lookup", root).attributes.inode)
            except grpc.RpcError:
                return False

        wait_until(is_there, 60, "gRPC does not come back")
        client.close()


def test_one_certificate_gets_so_many_answers_a_second_whichever_way_it_asks(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, dataservers=0, secure=True,
                      nameserver_arguments=("--request-rate", "20")) as cluster:
        over_grpc = Grpc(cluster.nameserver.address, Identity(cluster.identity("mount")).grpc_credentials())
        with closing(over_grpc), MetadataClient(cluster.nameserver.address, 0,
                                                identity=cluster.identity("mount")) as frames:
            began = time.monotonic()
            for _ in range(35):
                assert over_grpc.call("Lookup", pb.LookupRequest(path=b"/")).attributes.inode == 1
                assert frames.lookup("/").inode == 1
            assert time.monotonic() - began > 2, "70 requests, of which 20 at once and 20 a second"
