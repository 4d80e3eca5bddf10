"""A metadata server with an identity: whom it serves, and what it tells the others."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from speedwell.fs.errors import NotAuthenticated
from speedwell.fs.identity import files
from speedwell.fs.identity.authority import Authority
from speedwell.fs.identity.bundle import Identity
from speedwell.fs.identity.roles import DATASERVER, MOUNT, OPERATOR, READER
from speedwell.fs.identity.scope import Scope
from speedwell.fs.metadata_store.addresses import PREFIX
from speedwell.fs.metadata_store.engines import LevelDBEngine
from speedwell.fs.metadata_store.ownership import Ownership
from speedwell.fs.metadata_store.server import MetadataServer
from speedwell.fs.metadata_store.wire import Connection, Refused, connect, encode
from tests.waiting import wait_until

HOLDERS = {"d0": DATASERVER, "d1": DATASERVER, "reader": READER, "mount": MOUNT, "operator": OPERATOR}
BLOCK = str(PREFIX).encode()
ORDERS = [(b"RELEASE", BLOCK), (b"KEYS", BLOCK, b"1"), (b"FETCH", b"k"), (b"FORGET", b"k")]


class Site:
    def __init__(self, directory: Path) -> None:
        self.authority = Authority.make(directory / "identity")
        self.authority.ensure(list(HOLDERS.items()))
        self.engine = LevelDBEngine(directory / "store", sync=False)
        ownership = Ownership(self.engine, "127.0.0.1:0")
        ownership.set_owned([PREFIX])
        self.server = MetadataServer(("127.0.0.1", 0), self.engine, ownership, self.identity("d0"))
        self.address = ("127.0.0.1", int(self.server.server_address[1]))
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def identity(self, name: str) -> Identity:
        return Identity(self.authority.directory / name)

    def connect(self, name: str) -> Connection:
        return connect(self.address, 10, self.identity(name))

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.engine.close()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    site.close()


def test_who_has_a_certificate_gets_and_puts_by_its_role(site: Site) -> None:
    value = b"v" * 300_000      # of many TLS records
    for writer in ("mount", "operator", "d1"):
        assert site.connect(writer).call(b"SET", b"k", value) == b"OK"
        assert site.connect("reader").call(b"GET", b"k") == value
    with pytest.raises(Refused, match="NOPERM the reader reader may not ask for SET: that is for mount, operator"):
        site.connect("reader").call(b"SET", b"k", b"changed")
    assert site.engine.get(b"k") == value


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: order[0].decode())
def test_only_other_metadata_servers_move_records(site: Site, order: tuple[bytes, ...]) -> None:
    for name in ("reader", "mount", "operator"):
        with pytest.raises(Refused, match="that is for dataserver"):
            site.connect(name).call(*order)
    with pytest.raises(Refused, match="NOTMINE"):
        site.connect("d1").call(*order)


def test_a_certificate_for_some_users_is_for_no_records(site: Site) -> None:
    site.authority.issue("laptop", MOUNT, scope=Scope(((1000, 1999),), ((1000, 1999),)))
    with pytest.raises(Refused, match="NOPERM the mount laptop is for some users"):
        site.connect("laptop").call(b"GET", b"k")


def test_without_a_certificate_nobody_is_served(site: Site) -> None:
    with socket.create_connection(site.address, 10) as plain:
        plain.sendall(encode(b"GET", b"k"))
        assert plain.makefile("rb").read().startswith(b"-NOAUTH here only clients with a certificate are served")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(site.authority.directory / files.AUTHORITY)
    with socket.create_connection(site.address, 10) as plain, context.wrap_socket(plain) as secured, \
            pytest.raises(ssl.SSLError):
        secured.sendall(encode(b"GET", b"k"))
        secured.recv(1)


def test_no_earlier_tls_is_spoken(site: Site) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.load_verify_locations(site.authority.directory / files.AUTHORITY)
    context.load_cert_chain(site.authority.directory / "mount" / files.CERTIFICATE)
    with socket.create_connection(site.address, 10) as plain, pytest.raises(ssl.SSLError):
        context.wrap_socket(plain)


def test_a_foreign_certificate_is_refused_by_both_ends(site: Site, tmp_path: Path) -> None:
    other = Authority.make(tmp_path / "other")
    other.ensure([("mount", MOUNT)])
    with pytest.raises(NotAuthenticated, match="its certificate is not good"):
        connect(site.address, 10, Identity(other.directory / "mount"))
    ours = (site.authority.directory / files.AUTHORITY).read_bytes()
    (other.directory / "mount" / files.AUTHORITY).write_bytes(ours)
    with pytest.raises(NotAuthenticated, match="that is of another installation"):
        connect(site.address, 10, Identity(other.directory / "mount")).call(b"GET", b"k")


def test_who_was_revoked_or_whose_time_has_ended_is_refused_on_an_open_connection_too(
        site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    revoked, others = site.connect("mount"), site.connect("reader")
    assert revoked.call(b"GET", b"k") is None
    site.authority.revoke("mount")

    def answer(connection: Connection) -> Callable[[], bool]:
        def is_refused() -> bool:
            try:
                return connection.call(b"GET", b"k") is not None
            except Refused as error:
                return str(error).startswith("NOPERM the certificate of the ")
        return is_refused

    wait_until(answer(revoked), 10, "who was revoked is served")
    assert others.call(b"GET", b"k") is None
    monkeypatch.setattr("speedwell.fs.identity.bundle.time.time", lambda: 2e10)
    assert answer(others)()


def test_a_thousand_slow_handshakes_delay_nobody(site: Site) -> None:
    slow = [socket.create_connection(site.address, 10) for _ in range(1000)]
    for each in slow:
        each.sendall(b"\x16\x03\x01")
    assert site.connect("mount").call(b"PING") == b"PONG"
    for each in slow:
        each.close()


def test_a_client_with_an_identity_asks_no_server_without(site: Site) -> None:
    site.server.handshakes = None
    with pytest.raises(NotAuthenticated, match="it does not speak TLS: is it --insecure"):
        site.connect("mount")
