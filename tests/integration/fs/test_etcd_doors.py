"""The doors of an etcd that `speedwell up` starts: nameservers alone are let in, over TLS 1.3."""

import socket
import ssl
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from speedwell.cluster.identities import FOLDER
from speedwell.cluster.nameservers import EtcdMember, etcd_commands, etcd_names, free_ports, stop_etcd
from speedwell.cluster.processes import Processes
from speedwell.fs.etcd_client import EtcdClient
from speedwell.fs.identity.authority import Authority
from speedwell.fs.identity.bundle import Identity
from speedwell.fs.identity.roles import DATASERVER, ETCD, MOUNT, NAMESERVER, READER
from speedwell.fs.proto import etcd_pb2 as pb
from tests.etcd import answers, requires_etcd
from tests.waiting import wait_until

pytestmark = requires_etcd

LOOPBACK = "127.0.0.1"
SILENT = 200


class Etcd:
    """Three members, as `speedwell up` starts them."""

    def __init__(self, directory: Path) -> None:
        ports = free_ports(LOOPBACK, 9)
        self.members = [EtcdMember(*ports[first:first + 3]) for first in (0, 3, 6)]
        self.authority = Authority.make(directory / FOLDER)
        self.authority.ensure([("nameserver", NAMESERVER), *((name, ETCD) for name in etcd_names(3))], LOOPBACK)
        self.processes = Processes(directory)
        self.processes.start_together(etcd_commands(directory, LOOPBACK, self.members))
        self.endpoints = [f"{LOOPBACK}:{member.client_port}" for member in self.members]

    def directory(self, name: str) -> Path:
        return self.authority.directory / name

    def client(self, identity: Path | None) -> EtcdClient:
        return EtcdClient(self.endpoints, 1.0, None if identity is None else Identity(identity))

    def is_refused(self, identity: Path | None) -> bool:
        return not answers(self.client(identity))


@pytest.fixture(scope="module")
def etcd() -> Iterator[Etcd]:
    # In memory: whoever else writes to the disk would decide how long etcd's fsync takes.
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        etcd = Etcd(Path(directory))
        try:
            yield etcd
        finally:
            stop_etcd(etcd.processes, etcd_names(3))


def write(client: EtcdClient, value: bytes) -> None:
    client.transaction(pb.TxnRequest(success=[pb.RequestOp(request_put=pb.PutRequest(key=b"key", value=value))]))


def read(client: EtcdClient) -> bytes:
    value: bytes = client.range(b"key", b"").kvs[0].value
    return value


def context(etcd: Etcd, identity: Path | None) -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=etcd.directory("nameserver") / "authority.pem")
    made.set_alpn_protocols(["h2"])
    if identity is not None:
        made.load_cert_chain(identity / "identity.pem")
    return made


def ports(etcd: Etcd) -> tuple[int, int]:
    return etcd.members[0].client_port, etcd.members[0].peer_port


def test_a_nameserver_goes_on_over_a_renewal_of_its_certificate_and_of_the_members(etcd: Etcd) -> None:
    client = etcd.client(etcd.directory("nameserver"))
    try:
        write(client, b"before")
        etcd.authority.renew()
        wait_until(lambda: read(client) == b"before", 20, "the renewed certificate is not served")
        write(client, b"after")
        assert read(client) == b"after"
    finally:
        client.close()


def test_strangers_wrong_roles_and_foreigners_change_nothing(etcd: Etcd, tmp_path: Path) -> None:
    nameserver = etcd.client(etcd.directory("nameserver"))
    try:
        write(nameserver, b"kept")
        foreign = Authority.make(tmp_path / "foreign").issue("nameserver", NAMESERVER)
        for who in (None, foreign, *(etcd.authority.issue(role, role) for role in (READER, MOUNT, DATASERVER)),
                    etcd.directory("etcd-0")):
            assert etcd.is_refused(who), who
        assert read(nameserver) == b"kept"
    finally:
        nameserver.close()


def test_an_expired_certificate_is_refused(etcd: Etcd) -> None:
    past = Authority(etcd.authority.directory, lambda: time.time() - 40 * 86400)
    assert etcd.is_refused(past.issue("yesterday", NAMESERVER))


def test_who_is_revoked_gets_no_new_connection(etcd: Etcd) -> None:
    place = etcd.authority.issue("mallory", NAMESERVER)
    assert not etcd.is_refused(place)
    etcd.authority.revoke("mallory")
    assert etcd.is_refused(place)


def test_tls_1_2_is_refused_to_clients_and_peers(etcd: Etcd) -> None:
    for port, name in zip(ports(etcd), ("nameserver", "etcd-1"), strict=True):
        older = context(etcd, etcd.directory(name))
        older.check_hostname = False
        with socket.create_connection((LOOPBACK, port), 10) as plain, older.wrap_socket(plain) as secured:
            assert secured.version() == "TLSv1.3"
        older.maximum_version = ssl.TLSVersion.TLSv1_2
        with socket.create_connection((LOOPBACK, port), 10) as plain, \
                pytest.raises(ssl.SSLError, match="HANDSHAKE_FAILURE"):
            older.wrap_socket(plain)


def test_peers_are_members_alone(etcd: Etcd) -> None:
    for name, is_let_in in (("etcd-1", True), ("nameserver", False), ("", False)):
        made = context(etcd, etcd.directory(name) if name else None)
        with socket.create_connection((LOOPBACK, ports(etcd)[1]), 10) as plain:
            secured = made.wrap_socket(plain, server_hostname=LOOPBACK)
            with secured:
                secured.settimeout(10)
                assert asks(secured) is is_let_in, name


def asks(peer: ssl.SSLSocket) -> bool:
    try:
        peer.sendall(b"GET /version HTTP/1.1\r\nHost: etcd\r\n\r\n")
        return peer.recv(9) == b"HTTP/1.1 "
    except OSError:
        return False


def test_silent_handshakes_delay_nobody(etcd: Etcd) -> None:
    with ExitStack() as held:
        for _ in range(SILENT):
            held.enter_context(socket.create_connection((LOOPBACK, ports(etcd)[0]), 10))
        assert not etcd.is_refused(etcd.directory("nameserver"))


def test_the_members_answer_prometheus_apart(etcd: Etcd) -> None:
    told = subprocess.run(["curl", "-sS", f"http://{LOOPBACK}:{etcd.members[0].metrics_port}/metrics"],
                          capture_output=True, check=True, timeout=30).stdout
    assert b"etcd_server_has_leader 1" in told
