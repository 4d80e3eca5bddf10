"""Who is let in as a switch over TLS, who is not, and that nobody waits for who is slow."""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import eventlet
import pytest
from eventlet.green import socket as green

from speedwell.controller.secure import NotAdmitted
from speedwell.controller.switches.connection import door_of
from speedwell.controller.switches.ovsdb import Database, DatabaseNotProven, DatabaseUnreachable, read_tables
from speedwell.fs.identity.authority import Authority
from speedwell.fs.identity.bundle import Identity
from speedwell.fs.identity.roles import CONTROLLER, MOUNT, NAMESERVER, SWITCH, host_of

DPID, OTHER = "00000000000000a1", "00000000000000a2"
HELLO = bytes([4, 0, 0, 8, 0, 0, 0, 1])


class House:
    """An installation with a controller, two switches and others, and its door."""

    def __init__(self, directory: Path) -> None:
        self.authority = Authority.make(directory / "identity")
        self.authority.ensure([("controller", CONTROLLER), (DPID, SWITCH), (OTHER, SWITCH), ("laptop", MOUNT),
                               ("ns", NAMESERVER)])
        foreign = Authority.make(directory / "foreign")
        self.foreign = foreign.issue(DPID, SWITCH)
        past = Authority(directory / "identity", clock=lambda: time.time() - 40 * 86400)
        self.expired = past.issue("00000000000000a3", SWITCH)
        self.counts: Counter[str] = Counter()
        self.identity = Identity(self.of("controller"))
        self.door = door_of(self.identity, self._count)
        self.inside: list[Any] = []
        listening = eventlet.listen(("127.0.0.1", 0), backlog=1024)
        self.address = listening.getsockname()
        self._accepting = eventlet.spawn(self._accept, listening)

    def of(self, name: str) -> Path:
        return self.authority.directory / name

    def end(self) -> None:
        self._accepting.kill()

    def _count(self, what: str, why: str, now: float) -> bool:
        assert what == "connection"
        self.counts[why] += 1
        return True

    def _accept(self, listening: Any) -> None:
        while True:
            eventlet.spawn(self._let_in, *listening.accept())

    def _let_in(self, connection: Any, address: Any) -> None:
        with suppress(NotAdmitted):
            self.inside.append(self.door.admit(connection, address[0]))


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    made = House(tmp_path)
    yield made
    made.end()


def context(directory: Path, *, server: bool = False) -> ssl.SSLContext:
    """As Open vSwitch's: it looks at the authority alone."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname = False
    made.verify_mode = ssl.CERT_REQUIRED
    made.load_cert_chain(directory / "identity.pem")
    made.load_verify_locations(directory / "authority.pem")
    return made


def until(condition: Callable[[], Any], seconds: float = 20.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < deadline
        eventlet.sleep(0.005)
    return result


def in_thread(function: Callable[[], Any]) -> Any:
    """What a blocking function gives, while green threads run."""
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(function())
        except OSError as error:
            results.append(error)

    threading.Thread(target=run, daemon=True).start()
    return until(lambda: results)[0]


def connect(house: House, with_context: ssl.SSLContext) -> ssl.SSLSocket:
    made = socket.create_connection(house.address, timeout=10)
    return with_context.wrap_socket(made, server_hostname=host_of(CONTROLLER))


def test_a_switch_is_let_in_by_its_certificate_over_tls_1_3(house: House) -> None:
    with in_thread(lambda: connect(house, context(house.of(DPID)))) as connection:
        [(secured, peer)] = until(lambda: house.inside)
        assert (peer.name, peer.role, secured.version()) == (DPID, SWITCH, "TLSv1.3")
        in_thread(lambda: connection.sendall(HELLO))
        assert secured.recv(100) == HELLO
    assert not house.counts


STRANGERS: dict[str, tuple[str, str, Callable[[House], ssl.SSLContext]]] = {
    "foreign": ("certificate", "certificate is not good", lambda house: _with(house, house.foreign)),
    "expired": ("certificate", "has expired", lambda house: context(house.expired)),
    "revoked": ("revoked", "was revoked", lambda house: _revoked(house)),
    "of another role": ("role", "that of the mount laptop, not of a switch", lambda house: _of(house, "laptop")),
    "a server's": ("role", "that of the nameserver ns", lambda house: _of(house, "ns")),
    "none": ("certificate", "it shows no certificate", lambda house: _without(house)),
    "of TLS 1.2": ("certificate", "", lambda house: _old(house)),
}


def _of(house: House, name: str) -> ssl.SSLContext:
    return _with(house, house.of(name))


def _with(house: House, directory: Path) -> ssl.SSLContext:
    made = context(directory)
    made.load_verify_locations(house.of(DPID) / "authority.pem")
    return made


def _revoked(house: House) -> ssl.SSLContext:
    made = context(house.of(DPID))
    house.authority.revoke(DPID)
    until(lambda: house.identity.generation > 1)
    return made


def _without(house: House) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.load_verify_locations(house.of(DPID) / "authority.pem")
    return made


def _old(house: House) -> ssl.SSLContext:
    made = context(house.of(DPID))
    made.maximum_version = ssl.TLSVersion.TLSv1_2
    return made


@pytest.mark.parametrize(("why", "message", "of"), STRANGERS.values(), ids=STRANGERS)
def test_who_is_no_switch_of_the_installation_is_refused_counted_and_told(
        house: House, caplog: pytest.LogCaptureFixture, why: str, message: str,
        of: Callable[[House], ssl.SSLContext]) -> None:
    with_context = of(house)

    def speak() -> bytes:
        with connect(house, with_context) as connection:
            connection.sendall(HELLO)
            return connection.recv(100)

    assert isinstance(in_thread(speak), OSError | bytes)
    until(lambda: house.counts)
    assert house.counts == {why: 1} and not house.inside
    assert "the switch at 127.0.0.1 is refused" in caplog.text and message in caplog.text


def test_a_plain_connection_does_nothing_and_gets_no_answer(house: House, caplog: pytest.LogCaptureFixture) -> None:
    def speak() -> bytes:
        with socket.create_connection(house.address, timeout=10) as connection:
            connection.sendall(HELLO)
            return connection.recv(100)

    answer = in_thread(speak)
    assert isinstance(answer, OSError) or HELLO not in answer
    assert house.counts == {"plain": 1} and not house.inside and "is its target ssl:" in caplog.text


def test_a_thousand_who_say_nothing_delay_no_switch(house: House) -> None:
    house.door._deadline_seconds = 120.0
    slow = []
    for _ in range(1000):
        slow.append(socket.create_connection(house.address, timeout=10))
        eventlet.sleep(0)
    until(lambda: len(house.door._unproven) == 1000)
    in_thread(lambda: connect(house, context(house.of(DPID))))
    until(lambda: house.inside)
    assert len(house.door._unproven) == 1000
    for each in slow:
        each.close()
    until(lambda: not house.door._unproven)
    assert not house.counts


def test_who_does_not_shake_hands_in_time_is_ended_and_counted(house: House) -> None:
    house.door._deadline_seconds = 0.2
    with socket.create_connection(house.address, timeout=10) as slow:
        slow.sendall(b"\x16\x03\x01")      # a handshake begins so
        assert in_thread(lambda: slow.recv(1)) == b""
    assert house.counts == {"slow": 1} and not house.door._unproven


def test_of_too_many_handshakes_the_oldest_ends(house: House) -> None:
    house.door._most = 3
    slow = [socket.create_connection(house.address, timeout=10) for _ in range(4)]
    until(lambda: len(house.door._unproven) == 3)
    assert in_thread(lambda: slow[0].recv(1)) == b""
    in_thread(lambda: connect(house, context(house.of(DPID))))
    until(lambda: house.inside)
    for each in slow:
        each.close()


def test_an_open_connection_is_trusted_until_its_certificate_is_revoked(house: House) -> None:
    with in_thread(lambda: connect(house, context(house.of(DPID)))):
        [(_, peer)] = until(lambda: house.inside)
        assert house.door.trusts(peer, "127.0.0.1") and not house.counts
        house.authority.revoke(DPID)
        until(lambda: not house.door.trusts(peer, "127.0.0.1"))
        assert house.counts["revoked"] >= 1


def test_what_is_sent_without_waiting_and_by_waiting_arrives_in_order(house: House) -> None:
    with in_thread(lambda: connect(house, context(house.of(DPID)))) as connection:
        [(secured, _)] = until(lambda: house.inside)
        secured.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        sent, at_once, waits = bytearray(), 0, 0
        received: list[bytes] = []
        reader = threading.Thread(target=lambda: received.extend(_all_of(connection)), daemon=True)
        for number in range(400):
            piece = number.to_bytes(4, "big") * 5000
            sent += piece
            try:
                done = secured.fd.send(piece)
            except OSError:
                done, waits = 0, waits + 1
            at_once += done
            if done < len(piece):
                if waits == 1 and not reader.is_alive():
                    reader.start()
                secured.sendall(piece[done:])
        secured.shutdown(socket.SHUT_WR)
        assert at_once and waits
        until(lambda: sum(map(len, received)) == len(sent))
        assert b"".join(received) == sent
        in_thread(lambda: connection.sendall(HELLO))
        assert secured.recv(100) == HELLO


def _all_of(connection: ssl.SSLSocket) -> Iterator[bytes]:
    with suppress(OSError):
        while piece := connection.recv(65536):
            yield piece


# --- databases ---


class OwnDatabase(threading.Thread):
    """A database that answers one `select` of each connection over TLS."""

    def __init__(self, with_context: ssl.SSLContext) -> None:
        super().__init__(daemon=True)
        self._context = with_context
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.port = self.listening.getsockname()[1]
        self.asked: list[bytes] = []
        self.start()

    def run(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self.listening.accept()
                with closing(connection), suppress(OSError):
                    connection.settimeout(10)
                    with self._context.wrap_socket(connection, server_side=True) as secured:
                        self.asked.append(secured.recv(65536))
                        secured.sendall(json.dumps({"id": 1, "error": None, "result": [{"rows": []}]}).encode())
                        secured.recv(1)


def read(house: House, with_context: ssl.SSLContext, dpid: str = DPID) -> OwnDatabase:
    database = OwnDatabase(with_context)
    try:
        asked = Database("127.0.0.1", database.port, dpid, house.identity)
        assert read_tables(asked, {"Bridge": ["ports"]}, 10.0) == {"Bridge": []}
        return database
    finally:
        database.listening.close()
        house.counts["asked"] = len(list(filter(None, database.asked)))


def test_a_database_is_asked_over_tls(house: House) -> None:
    assert b"Open_vSwitch" in read(house, context(house.of(DPID), server=True)).asked[0]


@pytest.mark.parametrize(("name", "dpid", "message"), [
    (OTHER, DPID, f"its certificate is for switch {OTHER}, not for {DPID}"), ("ns", DPID, "of another role")])
def test_a_database_with_the_certificate_of_another_is_asked_nothing(
        house: House, name: str, dpid: str, message: str) -> None:
    with pytest.raises(DatabaseNotProven, match=message):
        read(house, context(house.of(name), server=True), dpid)
    assert house.counts["asked"] == 0


def test_a_foreign_and_a_revoked_database_are_asked_nothing(house: House) -> None:
    with pytest.raises(DatabaseNotProven, match="is not good"):
        read(house, context(house.foreign, server=True))
    with_context = context(house.of(DPID), server=True)
    house.authority.revoke(DPID)
    until(lambda: house.identity.generation > 1)
    with pytest.raises(DatabaseNotProven, match="was revoked"):
        read(house, with_context)
    assert house.counts["asked"] == 0


def test_a_plain_database_is_asked_nothing(house: House) -> None:
    asked: list[bytes] = []
    listening = eventlet.listen(("127.0.0.1", 0))

    def serve() -> None:
        with listening.accept()[0] as connection:
            asked.append(connection.recv(65536))
            connection.sendall(b'{"method": "echo", "params": [], "id": "echo"}')

    eventlet.spawn(serve)
    database = Database("127.0.0.1", listening.getsockname()[1], DPID, house.identity)
    with pytest.raises(DatabaseUnreachable, match="TLS"):
        read_tables(database, {"Bridge": ["ports"]}, 10.0)
    assert asked[0][:1] == b"\x16"


def test_a_database_that_is_not_reached_in_time_is_unreachable(house: House) -> None:
    with closing(green.socket()) as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(1)
        with pytest.raises(DatabaseUnreachable):
            read_tables(Database("127.0.0.1", silent.getsockname()[1], DPID, house.identity), {"Bridge": []}, 0.3)
