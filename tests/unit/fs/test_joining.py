"""Machines that join an authority with a token: who gets what, once, and what is refused with nothing changed."""

from __future__ import annotations

import base64
import http.client
import json
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import given
from hypothesis import strategies as st

from speedwell.cluster import current, parts
from speedwell.cluster.cli import speedwell
from speedwell.cluster.errors import ClusterError, InvalidSetting
from speedwell.cluster.processes import Processes
from speedwell.fs import durable
from speedwell.fs.errors import IdentityError
from speedwell.fs.identity import enrollment, files, invitations, joining, keeper, places, register, secured_http
from speedwell.fs.identity.authority import Authority
from speedwell.fs.identity.bundle import LOOK_SECONDS, Identity
from speedwell.fs.identity.enrollment import Enrollment
from speedwell.fs.identity.invitations import Token, invite, parsed
from speedwell.fs.identity.roles import (
    AUTHORITY,
    CONTROLLER,
    DATASERVER,
    ETCD,
    MOUNT,
    OPERATOR,
    READER,
    ROLES,
    SWITCH,
)
from speedwell.fs.identity.scope import Scope
from tests.waiting import wait_until

DAY = 86400.0


class Site:
    """An authority that other machines reach."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = Authority.make(directory)
        self.authority.ensure([(AUTHORITY, AUTHORITY)])
        self.server = Enrollment(directory, "127.0.0.1:0")
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.server_port}"

    def invite(self, machine: str, *roles: str, **settings: Any) -> Token:
        return invite(self.directory, self.address, machine, roles, **settings)

    def content(self) -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in self.directory.rglob("*") if path.is_file()}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path / "authority")
    yield site
    site.server.shutdown()
    site.server.server_close()


def test_a_machine_joins_with_keys_that_never_leave_it(site: Site, tmp_path: Path) -> None:
    token = site.invite("b", DATASERVER, MOUNT, scope=Scope(((1000, 1999),), ((100, 100),)),
                        settings={"nameserver": "10.0.0.1:7400"})
    assert joining.join(tmp_path / "b", parsed(str(token))) == {"nameserver": "10.0.0.1:7400"}
    server, mount = Identity(tmp_path / "b/b"), Identity(tmp_path / "b/mount-b")
    assert (server.own.name, server.own.role, server.own.scope) == ("b", DATASERVER, None)
    assert (mount.own.name, mount.own.role, mount.own.scope) == (
        "mount-b", MOUNT, Scope(((1000, 1999),), ((100, 100),)))
    kept = b"".join(site.content().values())
    for name in ("b", "mount-b"):
        own = (tmp_path / "b" / name / files.CERTIFICATE).read_bytes()
        assert own.partition(b"-----BEGIN PRIVATE")[2] not in kept
    for path in (tmp_path / "b").rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path
        assert not path.is_file() or (site.directory / "authority.key").read_bytes() not in path.read_bytes()
    assert not (tmp_path / "b" / "joining.pem").exists()


def refuse(site: Site, directory: Path, token: Token) -> str:
    """Why a token does not let a machine join; nothing has changed by it, on either side."""
    before = site.content()
    with pytest.raises(IdentityError) as refused:
        joining.join(directory, token)
    assert site.content() == before
    assert not directory.exists()
    return str(refused.value)


def test_a_token_is_good_once(site: Site, tmp_path: Path) -> None:
    token = site.invite("b", DATASERVER)
    joining.join(tmp_path / "b", token)
    assert "was used already" in refuse(site, tmp_path / "thief", token)
    with pytest.raises(IdentityError, match="is not empty"):
        joining.join(tmp_path / "b", token)


def test_a_token_has_an_end(site: Site, tmp_path: Path) -> None:
    assert "has ended" in refuse(site, tmp_path / "b", site.invite("b", DATASERVER, validity_seconds=0.0))


def test_a_token_that_was_taken_back_is_refused(site: Site, tmp_path: Path) -> None:
    token = site.invite("b", DATASERVER)
    assert invitations.withdraw(site.directory, "b")
    assert not invitations.withdraw(site.directory, "b")
    assert "is not known here" in refuse(site, tmp_path / "b", token)


@pytest.mark.parametrize("roles", [(OPERATOR,), (MOUNT, OPERATOR), (DATASERVER, MOUNT, READER), (DATASERVER,)])
def test_a_token_gives_no_other_role(site: Site, tmp_path: Path, roles: tuple[str, ...]) -> None:
    token = site.invite("b", DATASERVER, MOUNT)
    assert "is for dataserver, mount, not for" in refuse(site, tmp_path / "b", token._replace(roles=roles))
    joining.join(tmp_path / "b", token)


def test_a_token_gives_no_other_name(site: Site, tmp_path: Path) -> None:
    token = site.invite("b", DATASERVER)
    with pytest.raises(IdentityError):
        joining.join(tmp_path / "b", token._replace(machine="a"))
    assert "a" not in site.authority.newest()


def test_an_altered_secret_is_refused(site: Site, tmp_path: Path) -> None:
    token = site.invite("b", DATASERVER)
    assert "is not known here" in refuse(site, tmp_path / "b", token._replace(secret=token.secret[:-1]))


def test_who_is_not_the_authority_of_the_token_is_not_told_its_secret(
        site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    impostor = Site(tmp_path / "impostor")
    asked: list[Any] = []
    monkeypatch.setattr(invitations, "redeem", lambda *arguments: asked.append(arguments))
    try:
        token = site.invite("b", DATASERVER)._replace(authority=impostor.address)
        assert "is not the authority that the token is of" in refuse(site, tmp_path / "b", token)
        # also with the certificate of the right authority, but not its key
        (impostor.directory / files.AUTHORITY).write_bytes((site.directory / files.AUTHORITY).read_bytes())
        assert "its certificate is not good" in str(failure(lambda: joining.join(tmp_path / "b2", token)))
    finally:
        impostor.server.shutdown()
        impostor.server.server_close()
    assert asked == []


def test_no_older_tls_is_spoken_where_machines_join(site: Site, tmp_path: Path) -> None:
    token, before = site.invite("b", DATASERVER), site.content()
    older = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    older.check_hostname, older.verify_mode = False, ssl.CERT_NONE
    older.minimum_version = older.maximum_version = ssl.TLSVersion.TLSv1_2
    with socket.create_connection(("127.0.0.1", site.server.server_port), 10) as plain, \
            pytest.raises(ssl.SSLError, match="PROTOCOL_VERSION"):
        older.wrap_socket(plain)
    assert site.content() == before
    joining.join(tmp_path / "b", token)


def test_a_machine_tells_its_token_to_nobody_over_an_older_tls(site: Site, tmp_path: Path) -> None:
    token = site.invite("b", DATASERVER)
    older = Identity(site.directory / AUTHORITY).server_context(anonymous=True)
    older.minimum_version = older.maximum_version = ssl.TLSVersion.TLSv1_2
    told: list[str] = []

    def downgrade(listener: socket.socket) -> None:
        plain, _ = listener.accept()
        with plain:
            try:
                told.append(older.wrap_socket(plain, server_side=True).recv(1 << 16).decode())
            except ssl.SSLError as error:
                told.append(error.reason)

    with socket.create_server(("127.0.0.1", 0)) as between:
        thread = threading.Thread(target=downgrade, args=(between,))
        thread.start()
        address = f"127.0.0.1:{between.getsockname()[1]}"
        assert refuse(site, tmp_path / "b", token._replace(authority=address))
        thread.join(10)
    assert told == ["UNSUPPORTED_PROTOCOL"]
    joining.join(tmp_path / "b", token)


def failure(act: Callable[[], object], kind: type[Exception] = IdentityError) -> Exception:
    with pytest.raises(kind) as failed:
        act()
    return failed.value


def test_a_machine_whose_answer_was_lost_joins_with_the_same_token(
        site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token = site.invite("b", DATASERVER, MOUNT)
    with monkeypatch.context() as patched:
        def lose(self: Any, status: Any, answer: Any, kind: str = "") -> None:
            if "certificates" in answer:
                raise ConnectionResetError
            send(self, status, answer)
        send = enrollment._Handler._send
        patched.setattr(enrollment._Handler, "_send", lose)
        assert "does not answer" in str(failure(lambda: joining.join(tmp_path / "b", token)))
    assert "was used already" in refuse(site, tmp_path / "thief", token)
    joining.join(tmp_path / "b", token)
    assert Identity(tmp_path / "b/b").own.serial == site.authority.newest()["b"].serial


def test_who_was_revoked_gets_no_new_certificates_with_the_token_and_the_keys_of_before(
        site: Site, tmp_path: Path) -> None:
    token = site.invite("b", DATASERVER)
    requests = {DATASERVER: joining._request(ec.generate_private_key(ec.SECP256R1())).encode()}
    for _ in range(2):
        invitations.redeem(site.directory, token.secret, requests)
    site.authority.revoke("b")
    before = site.content()
    assert "the certificate of the dataserver b was revoked" in str(
        failure(lambda: invitations.redeem(site.directory, token.secret, requests)))
    assert site.content() == before
    assert not invitations.withdraw(site.directory, "b")
    joining.join(tmp_path / "b", site.invite("b", DATASERVER))
    assert "was used already" in str(
        failure(lambda: invitations.redeem(site.directory, token.secret, requests)))    # nor the name of its heir


def test_a_machine_that_was_stopped_at_any_step_joins_with_the_same_token(
        site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(places.STATE_VARIABLE, str(tmp_path / "state"))
    replace_all = durable.replace_all
    told: list[current.Current] = []

    def joins(step: int, token: Token) -> bool:
        """Whether fewer files than `step` are written."""
        steps = iter(range(step))

        def replace_or_die(*arguments: Any) -> None:
            if threading.current_thread() is threading.main_thread() and next(steps, None) is None:
                raise KeyboardInterrupt
            replace_all(*arguments)

        with monkeypatch.context() as patched:
            patched.setattr(durable, "replace_all", replace_or_die)
            try:
                parts.join(parts.Part(tmp_path / token.machine, token.machine, "127.0.0.1"), token, told.append)
            except KeyboardInterrupt:
                return False
        return True

    for step in range(100):
        token = site.invite(f"b{step}", DATASERVER, READER,
                            settings={"nameserver": "10.0.0.1:7400", "controller": ""})
        directory = tmp_path / token.machine
        if joins(step, token):
            break
        assert len(told) == step
        assert "is not empty" in str(failure(lambda place=directory: parts.first(
            parts.Part(place, "b", "127.0.0.1"), [CONTROLLER], 3), InvalidSetting))
        assert joins(100, token)
        assert len(told) == step + 1
        assert Identity(directory / "identity" / token.machine).own.serial == \
            site.authority.newest()[token.machine].serial
        assert parts.present(Processes(directory)) == ["certificates", DATASERVER]
        with pytest.raises(InvalidSetting, match="is not empty"):
            parts.join(parts.Part(directory, token.machine, "127.0.0.1"), token, told.append)
    assert step > 10


def test_a_refusal_leaves_nothing_of_a_join_that_was_interrupted(site: Site, tmp_path: Path) -> None:
    def fail(settings: dict[str, str]) -> None:
        raise OSError

    token = site.invite("b", DATASERVER)
    failure(lambda: joining.join(tmp_path / "b", token, fail), OSError)
    assert (tmp_path / "b/b" / files.CERTIFICATE).exists()
    invitations._save(site.directory, {})
    assert "is not known here" in str(failure(lambda: joining.join(tmp_path / "b", token)))
    assert list((tmp_path / "b").iterdir()) == []


@pytest.mark.parametrize("revoked", ["b", "mount-b"])
def test_who_was_revoked_gets_nothing_by_the_token_that_it_has_used(
        site: Site, tmp_path: Path, revoked: str) -> None:
    token = site.invite("b", DATASERVER, MOUNT)
    joining._keys(files.make_directory(tmp_path / "kept") / "joining.pem", token.roles)
    for name in ("b", "again"):
        shutil.copytree(tmp_path / "kept", tmp_path / name)
    joining.join(tmp_path / "b", token)
    site.authority.revoke(revoked)
    before = site.content()
    assert "was revoked" in str(failure(lambda: joining.join(tmp_path / "again", token)))
    assert site.content() == before


def test_a_name_that_is_taken_gets_no_token(site: Site, tmp_path: Path) -> None:
    early = site.invite("d0", DATASERVER)
    site.authority.issue("d0", DATASERVER)
    assert "has a certificate as dataserver already" in str(failure(lambda: site.invite("d0", DATASERVER)))
    assert "has a certificate as dataserver already" in refuse(site, tmp_path / "b", early)
    site.authority.revoke("d0")
    joining.join(tmp_path / "b", early)


def test_what_nobody_may_join_as_is_refused_with_a_message(site: Site) -> None:
    for roles in ((AUTHORITY,), ("switch",), (), (MOUNT, MOUNT), ("king",)):
        assert str(failure(lambda roles=roles: site.invite("b", *roles))).startswith("roles: ")
    assert "--uids" in str(failure(lambda: site.invite("b", DATASERVER, scope=Scope(((1, 1),), ((1, 1),)))))
    for role in (CONTROLLER, ETCD):
        assert "--address" in str(failure(lambda role=role: site.invite("b", role)))
    assert not (site.directory / invitations.INVITATIONS).exists()


@given(st.text() | st.binary().map(lambda raw: "speedwell-join-" + raw.hex())
       | st.recursive(st.none() | st.integers() | st.text(max_size=9), lambda inner: st.lists(inner, max_size=6)
                      | st.dictionaries(st.text(max_size=3), inner, max_size=3)).map(
           lambda value: "speedwell-join-" + base64.urlsafe_b64encode(json.dumps(value).encode()).decode()))
def test_what_is_no_token_is_told_so(text: str) -> None:
    with pytest.raises(IdentityError, match="this is no join token"):
        parsed(text)


def due(site: Site, name: str, place: Path) -> None:
    """As if two thirds of its time were over: the authority and the machine think so."""
    path = site.directory / "issued.json"
    document = json.loads(path.read_text())
    for each in document["certificates"]:
        if each["name"] == name:
            each["issued_at"] -= 100 * DAY
    path.write_text(json.dumps(document))
    head, _, rest = (place / files.CERTIFICATE).read_bytes().partition(b"\n")
    changed = json.loads(head)
    changed["issued_at"] -= 100 * DAY
    (place / files.CERTIFICATE).write_bytes(json.dumps(changed).encode() + b"\n" + rest)


def test_a_machine_renews_its_certificates_itself(site: Site, tmp_path: Path) -> None:
    joining.join(tmp_path / "b", site.invite("b", DATASERVER, MOUNT))
    identity = Identity(tmp_path / "b/b")
    before = identity.own.serial
    assert joining.renew_due(tmp_path / "b", time.time()) == []
    assert site.authority.renew_due() == []
    due(site, "b", tmp_path / "b/b")
    assert site.authority.renew_due() == []     # its key is elsewhere
    stopped = threading.Event()
    thread = threading.Thread(target=keeper.keep_renewed, args=(tmp_path / "b", stopped))
    thread.start()
    try:
        wait_until(lambda: identity.own.serial != before, 30, "the certificate is not renewed")
    finally:
        stopped.set()
        thread.join()
    assert identity.own.serial == site.authority.newest()["b"].serial
    assert identity.own.expires_at > time.time() + 29 * DAY


def test_a_machine_whose_renewal_was_lost_renews_again_before_its_certificate_ends(
        site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    joining.join(tmp_path / "b", site.invite("b", DATASERVER))
    due(site, "b", tmp_path / "b/b")
    with monkeypatch.context() as patched:
        def lose(self: Any, status: Any, answer: Any, kind: str = "") -> None:
            raise ConnectionResetError
        patched.setattr(enrollment._Handler, "_send", lose)
        assert "does not answer" in str(failure(lambda: joining.renew_due(tmp_path / "b", time.time())))
    lost = site.authority.newest()["b"].serial
    before = site.content()
    assert "is not due" in str(failure(lambda: joining.renew_due(tmp_path / "b", time.time())))
    assert site.content() == before     # who holds one that is due makes no heap of others
    monkeypatch.setattr(enrollment, "RENEWED_AGAIN_AT", 0.0)
    assert joining.renew_due(tmp_path / "b", time.time()) == ["b"]
    assert Identity(tmp_path / "b/b").own.serial == site.authority.newest()["b"].serial != lost


def test_what_is_renewed_and_revoked_by_name_ends_on_its_machine_too(site: Site, tmp_path: Path) -> None:
    joining.join(tmp_path / "b", site.invite("b", DATASERVER, MOUNT))
    joining.join(tmp_path / "c", site.invite("c", DATASERVER))
    serial = site.authority.newest()["b"].serial
    site.authority.revoke("b")
    joining.hear(tmp_path / "c")
    assert serial in files.read_json(tmp_path / "c/c" / files.REVOKED)
    due(site, "b", tmp_path / "b/b")
    why = "the certificate of the dataserver b was revoked"
    assert why in str(failure(lambda: joining.renew_due(tmp_path / "b", time.time())))     # at once
    assert site.authority.newest()["b"].serial == serial

    def is_refused() -> bool:
        try:
            joining.hear(tmp_path / "b")
        except IdentityError as error:
            return why in error.message
        return False

    wait_until(is_refused, 20 * LOOK_SECONDS, "a revoked certificate is served")
    assert serial in files.read_json(tmp_path / "b/mount-b" / files.REVOKED)     # it is asked for, too


def test_a_damaged_identity_and_an_answer_that_is_none_keep_the_others_from_nothing(
        site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    joining.join(tmp_path / "b", site.invite("b", DATASERVER, MOUNT))
    due(site, "b", tmp_path / "b/b")
    due(site, "mount-b", tmp_path / "b/mount-b")
    kept = {name: (tmp_path / "b" / name / files.CERTIFICATE).read_bytes() for name in ("b", "mount-b")}
    with monkeypatch.context() as patched:
        patched.setattr(joining, "_ask", lambda *question: {})
        for act in (lambda: joining.hear(tmp_path / "b"), lambda: joining.renew_due(tmp_path / "b", time.time())):
            assert str(failure(act)).count("answers as no authority does") == 2
    assert kept == {name: (tmp_path / "b" / name / files.CERTIFICATE).read_bytes() for name in kept}
    (tmp_path / "b/b" / files.CERTIFICATE).write_bytes(b"?" + kept["b"])
    assert f"{tmp_path}/b/b is damaged" in str(failure(lambda: joining.renew_due(tmp_path / "b", time.time())))
    assert (tmp_path / "b/mount-b" / files.CERTIFICATE).read_bytes() != kept["mount-b"]


def test_nobody_renews_another_s_certificate_or_before_its_time(site: Site, tmp_path: Path) -> None:
    joining.join(tmp_path / "b", site.invite("b", DATASERVER))
    key = ec.generate_private_key(ec.SECP256R1())

    def ask(identity: Path) -> str:
        before = site.content()
        error = failure(lambda: joining._ask(site.address, "POST", "/v1/renew", {"request": joining._request(key)},
                                             Identity(identity).client_context()))
        assert site.content() == before
        return str(error)

    assert "is not due" in ask(tmp_path / "b/b")
    assert "has not joined" in ask(site.authority.issue("local", DATASERVER))
    foreign = Authority.make(tmp_path / "foreign")
    place = foreign.issue("b", DATASERVER)
    (place / files.AUTHORITY).write_bytes((site.directory / files.AUTHORITY).read_bytes())
    assert "of another installation" in ask(place)
    past = Authority(site.directory, lambda: time.time() - 40 * DAY)
    assert "has expired" in ask(past.issue("late", DATASERVER))


def ask(site: Site, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, dict[str, Any]]:
    """As somebody without a certificate."""
    connection = http.client.HTTPConnection("127.0.0.1", 1)
    context = ssl.create_default_context(cafile=str(site.directory / files.AUTHORITY))
    with context.wrap_socket(socket.create_connection(("127.0.0.1", site.server.server_port), 10),
                             server_hostname="authority.speedwell") as connection.sock:
        connection.request(method, path, body, headers)
        reply = connection.getresponse()
        if reply.status != 200:
            assert reply.headers["Content-Type"] == "application/problem+json"
        return reply.status, json.loads(reply.read())


def request(key: Any) -> str:
    return x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(
        key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()


def test_malformed_requests_are_refused_and_change_nothing(site: Site) -> None:
    token = site.invite("b", DATASERVER)
    before = site.content()
    forged = x509.load_pem_x509_csr(request(ec.generate_private_key(ec.SECP256R1())).encode()).public_bytes(
        serialization.Encoding.DER)
    altered = (
        "-----BEGIN CERTIFICATE REQUEST-----\n" + base64.encodebytes(
            forged[:-4] + bytes(4)).decode() + "-----END CERTIFICATE REQUEST-----\n")
    for wrong in ("", "x", request(rsa.generate_private_key(65537, 2048)),
                  request(ec.generate_private_key(ec.SECP384R1())), altered):
        assert ask(site, "POST", "/v1/join", json.dumps(
            {"token": token.secret, "requests": {DATASERVER: wrong}}).encode())[0] == 403
    for status, method, path, body in (
            (400, "POST", "/v1/join", b"[]"), (400, "POST", "/v1/join", b"{"), (400, "POST", "/v1/join", b"{}"),
            (400, "POST", "/v1/join", b"[" * 60000), (400, "POST", "/v1/join", b'{"token": 1, "requests": {}}'),
            (400, "POST", "/v1/join", b'{"token": "\\ud800", "requests": {}}'),
            (403, "POST", "/v1/join", b'{"token": "", "requests": {}}'), (403, "GET", "/v1/revoked", b""),
            (403, "POST", "/v1/renew", b"{}"), (404, "GET", "/", b""), (404, "GET", "/v1/join", b""),
            (413, "POST", "/v1/join", b"0" * (enrollment.MOST_BYTES + 1))):
        assert ask(site, method, path, body)[0] == status, (method, path)
    for length in ("-1", "9" * 5000):
        assert ask(site, "POST", "/v1/join", b"{}", **{"Content-Length": length})[0] == 413
    assert site.content() == before


def test_where_there_are_no_threads_no_place_is_lost(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        def fail(self: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")
        patched.setattr(threading.Thread, "start", fail)
        with socket.create_connection(("127.0.0.1", site.server.server_port), 10) as refused:
            assert refused.recv(1) == b""
    assert not site.server._open


def test_silent_strangers_keep_nobody_from_joining(site: Site, tmp_path: Path) -> None:
    token = site.invite("b", DATASERVER)
    silent = [socket.create_connection(("127.0.0.1", site.server.server_port))
              for _ in range(2 * secured_http.CONNECTIONS)]
    joining.join(tmp_path / "b", token)
    for each in silent:
        each.close()


def test_who_is_silent_is_not_waited_for(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secured_http, "SECONDS", 0.5)
    with socket.create_connection(("127.0.0.1", site.server.server_port), 10) as silent:
        assert silent.recv(1) == b""
    wait_until(lambda: not site.server._open, 10, "the place of a silent connection is kept")


@pytest.mark.parametrize("role", ROLES)
def test_only_a_controller_learns_the_bearer_tokens_and_what_it_shows_to_switches(site: Site, role: str) -> None:
    place = site.directory / role if role == AUTHORITY else site.authority.issue(role, role)
    if role == SWITCH:      # which trusts controllers alone
        (place / files.AUTHORITY).write_bytes((site.directory / files.AUTHORITY).read_bytes())
    answer = joining._ask(site.address, "GET", "/v1/revoked", {}, Identity(place).client_context())
    assert ("tokens" in answer) == ("to_switches" in answer) == (role == CONTROLLER)


def shown_to_switches(place: Path, trusted: Path) -> x509.Certificate:
    """What a controller shows, once a switch that trusts `trusted` has verified it."""
    switch = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    switch.check_hostname = False
    switch.load_verify_locations(trusted)
    ours, theirs = socket.socketpair()
    context = Identity(place).server_context(to_switches=True)
    context.verify_mode = ssl.CERT_NONE
    answering = threading.Thread(target=lambda: context.wrap_socket(ours, server_side=True).close())
    answering.start()
    with switch.wrap_socket(theirs) as secured:
        shown = secured.getpeercert(binary_form=True)
    answering.join()
    assert shown
    return x509.load_der_x509_certificate(shown)


def test_a_controller_that_has_joined_shows_switches_what_they_trust_from_the_first_start(
        site: Site, tmp_path: Path) -> None:
    joining.join(tmp_path / "b", site.invite("b", CONTROLLER, address="127.0.0.1"))
    place = tmp_path / "b" / f"{CONTROLLER}-b"
    first = shown_to_switches(place, site.directory / files.SWITCH_AUTHORITY)
    assert not list((tmp_path / "b").rglob("*switch-authority*")), "the authority's key is not theirs"
    (place / files.TO_SWITCHES).unlink()    # as of a machine that joined an earlier version
    joining.hear(tmp_path / "b")
    again = shown_to_switches(place, site.directory / files.SWITCH_AUTHORITY)
    assert again.public_key().public_numbers() == first.public_key().public_numbers()
    kept = (place / files.TO_SWITCHES).stat()
    joining.hear(tmp_path / "b")
    assert (place / files.TO_SWITCHES).stat() == kept, "it is written again for nothing"


def test_another_authority_for_switches_reaches_controllers_here_and_elsewhere(site: Site, tmp_path: Path) -> None:
    switch, own = site.authority.issue("00000000000000a1", SWITCH), site.authority.issue(CONTROLLER, CONTROLLER)
    joining.join(tmp_path / "b", site.invite("b", CONTROLLER, address="127.0.0.1"))
    before = (site.directory / files.SWITCH_AUTHORITY).read_bytes()
    for name in ("switch-authority.pem", "switch-authority.key"):
        (site.directory / name).unlink()
    assert register.is_due(site.directory, time.time())
    site.authority.renew_due()
    joining.hear(tmp_path / "b")
    assert not register.is_due(site.directory, time.time())
    assert before != (switch / files.AUTHORITY).read_bytes() == (site.directory / files.SWITCH_AUTHORITY).read_bytes()
    for place in (own, tmp_path / "b" / f"{CONTROLLER}-b"):
        shown_to_switches(place, switch / files.AUTHORITY)


def test_the_commands_do_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPEEDWELL_STATE_DIRECTORY", str(tmp_path / "state"))

    def run(*arguments: object, code: int = 0) -> str:
        done = CliRunner().invoke(speedwell, [str(each) for each in arguments])
        assert done.exit_code == code, done.output
        return done.output

    directory = tmp_path / "authority"
    run("identity", "issue", AUTHORITY, AUTHORITY, "--directory", directory)
    with subprocess.Popen([sys.executable, "-m", "speedwell.fs.identity.main", "--directory", directory, "--listen",
                           "127.0.0.1:0"], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            ready, address = process.stdout.readline().split()
            assert ready == "ready"
            token = run("identity", "invite", "b", DATASERVER, MOUNT, "--uids", "1000", "--authority", address,
                        "--directory", directory).strip()
            (tmp_path / "token").write_text(f"{token}\n")
            run("join", token, tmp_path / "b", "--token-file", tmp_path / "token", code=2)
            (tmp_path / "key").write_bytes(b"\xe5\0")
            run("join", tmp_path / "b", "--token-file", tmp_path / "key", code=2)
            run("join", tmp_path / "b", "--token-file", tmp_path / "token")
            assert Identity(tmp_path / "b/identity/mount-b").own.role == MOUNT
            with pytest.raises(ClusterError, match="is not empty"):
                speedwell.main(["join", token, str(tmp_path / "b")], standalone_mode=False)
            withdrawn = run("identity", "invite", "c", DATASERVER, "--authority", address, "--directory", directory)
            run("identity", "revoke", "c", "--directory", directory)
            with pytest.raises(IdentityError, match="is not known here"):
                speedwell.main(["join", withdrawn.strip(), str(tmp_path / "c")], standalone_mode=False)
            run("identity", "invite", "c", DATASERVER, "--authority", "nowhere", "--directory", directory, code=1)
            run("identity", "invite", "c", "king", "--authority", address, "--directory", directory, code=2)
        finally:
            process.terminate()
    assert process.wait(30) == 0


def test_an_invitation_of_an_unknown_shape_is_told(site: Site) -> None:
    site.invite("b", DATASERVER)
    path = site.directory / invitations.INVITATIONS
    path.write_text(json.dumps({key: {**value, "more": 1} for key, value in json.loads(path.read_text()).items()}))
    assert "is damaged" in str(failure(lambda: site.invite("c", DATASERVER)))


def test_used_invitations_are_forgotten_in_time(site: Site) -> None:
    site.invite("b", DATASERVER)
    known = invitations._known(site.directory)
    invitations._save(site.directory, {hashed: replace(each, expires_at=time.time() - invitations.TOLD_SECONDS - 1)
                                       for hashed, each in known.items()})
    site.invite("c", DATASERVER)
    assert [each.machine for each in invitations._known(site.directory).values()] == ["c"]
