"""Certificates: who gets which, how long they are good, what is refused, and that files keep their secrets."""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from speedwell.fs import durable
from speedwell.fs.errors import IdentityError
from speedwell.fs.identity import bearer, files, places, register
from speedwell.fs.identity.authority import VALIDITY_SECONDS, Authority
from speedwell.fs.identity.bundle import LOOK_SECONDS, Identity, explain, peer_of
from speedwell.fs.identity.known import identity_for
from speedwell.fs.identity.roles import CONTROLLER, DATASERVER, MOUNT, NAMESERVER, OPERATOR, ROLES, SWITCH, host_of
from speedwell.fs.proto.speedwell_pb2 import CallReply
from speedwell.fs.wire.channel import ConnectionLost
from speedwell.fs.wire.secure_channel import SecureChannel
from speedwell.fs.wire.tls import TLS
from tests.waiting import wait_until


class Clock:
    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    authority = Authority.make(tmp_path / "identity")
    authority.ensure([("ns", NAMESERVER), ("d0", DATASERVER), ("op", OPERATOR)])
    return authority


def shake(server: Identity, client: Identity, role: str = NAMESERVER) -> tuple[TLS, TLS]:
    """Both ends of a connection. Raises what the client's end, or else the server's, gets."""
    near, far = socket.socketpair()
    near.settimeout(10)
    far.settimeout(10)
    found: list[TLS | OSError] = []

    def serve() -> None:
        try:
            tls = TLS(far, server.server_context(), server_side=True)
            tls.do_handshake()
            found.append(tls)
        except OSError as error:
            found.append(error)
            far.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        mine = TLS(near, client.client_context(), server_hostname=host_of(role))
        mine.do_handshake()
    except OSError:
        near.close()
        raise
    finally:
        thread.join(10)
    if isinstance(found[0], OSError):
        raise found[0]
    return mine, found[0]


def test_both_ends_learn_name_and_role_over_tls_1_3(authority: Authority) -> None:
    mine, theirs = shake(Identity(authority.directory / "ns"), Identity(authority.directory / "op"))
    with mine.socket, theirs.socket:
        assert str(peer_of(mine.session)) == "nameserver ns" and str(peer_of(theirs.session)) == "operator op"
        assert theirs.session.version() == "TLSv1.3"
        assert peer_of(theirs.session).serial == authority.newest()["op"].serial


def test_a_frame_of_many_tls_records_arrives_whole(authority: Authority) -> None:
    server, client = Identity(authority.directory / "ns"), Identity(authority.directory / "op")
    mine, theirs = shake(server, client)
    message = CallReply(reply=bytes(1_000_000))
    sender = SecureChannel(theirs, server, peer_of(theirs.session))
    receiver = SecureChannel(mine, client, peer_of(mine.session))
    sender.is_local = receiver.is_local = False     # as TLS always is
    for receive in (receiver.receive, receiver.receive_alone):
        thread = threading.Thread(target=sender.send, args=(message,))
        thread.start()
        assert receive(CallReply) == message
        thread.join(10)
    sender.close()
    receiver.close()


def test_what_has_come_is_not_left_lying_and_what_is_held_back_goes_with_the_bytes_after_it(
        authority: Authority) -> None:
    server, client = Identity(authority.directory / "ns"), Identity(authority.directory / "op")
    mine, theirs = shake(server, client)
    ours, sender = (SecureChannel(mine, client, peer_of(mine.session)),
                    SecureChannel(theirs, server, peer_of(theirs.session)))
    ours.is_local = sender.is_local = False
    message = CallReply(message="first")
    sender.send(message, more=True)
    assert not ours.is_readable(0) and ours.is_idle()
    sender.send_bytes([b"some", b"more" * 50_000])
    assert ours.is_readable(5) and not ours.is_idle()
    assert ours.receive(CallReply) == message
    some = memoryview(bytearray(4))
    ours.receive_all(some)
    assert some == b"some"
    assert ours.is_pending and ours.is_readable(0) and not ours.is_idle()
    rest = memoryview(bytearray(200_000))
    ours.receive_all(rest)
    assert rest == b"more" * 50_000
    assert not ours.is_pending and ours.is_idle()
    sender.close()
    with pytest.raises(ConnectionLost, match="closed the connection"):
        ours.receive_some(rest)
    ours.close()


def test_a_silent_peer_and_one_that_reads_nothing_are_given_up(authority: Authority) -> None:
    server, client = Identity(authority.directory / "ns"), Identity(authority.directory / "op")
    mine, theirs = shake(server, client)
    ours = SecureChannel(mine, client, peer_of(mine.session))
    silent = SecureChannel(theirs, server, peer_of(theirs.session))
    ours.is_local = silent.is_local = False
    ours.set_timeout(0.2)
    assert ours.is_idle()
    for receive in (ours.receive, ours.receive_alone):
        with pytest.raises(ConnectionLost, match="moved no byte within the time allowed"):
            receive(CallReply)
    with pytest.raises(ConnectionLost, match="moved no byte within the time allowed"):
        for _ in range(100):
            ours.send(CallReply(reply=bytes(1_000_000)))
    silent.close()
    assert not ours.is_idle()
    ours.close()


def test_keys_are_for_their_owner_alone(authority: Authority, tmp_path: Path) -> None:
    for path in authority.directory.rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path
    readable = authority.directory / "op" / "identity.pem"
    readable.chmod(0o644)
    with pytest.raises(IdentityError, match="can be read by others: chmod 600"):
        Identity(authority.directory / "op")


@pytest.mark.parametrize(("name", "content", "says"), [
    ("identity.pem", b"", "is damaged"), ("identity.pem", b"{}\n", "is damaged"),
    ("identity.pem", b'{"name": "a", "role": "b", "serial": "1", "expires_at": 1}\nno key', "is no identity"),
    ("authority.pem", b"nothing", "is no identity"), ("revoked.json", b"[", "is damaged"),
    ("revoked.json", b"[]", "is damaged")])
def test_damaged_files_are_said_by_name(authority: Authority, name: str, content: bytes, says: str) -> None:
    (authority.directory / "op" / name).write_bytes(content)
    with pytest.raises(IdentityError, match=says):
        Identity(authority.directory / "op")


def test_a_certificate_of_another_authority_is_refused_at_both_ends(authority: Authority, tmp_path: Path) -> None:
    foreign = Authority.make(tmp_path / "foreign")
    foreign.ensure([("ns", NAMESERVER), ("op", OPERATOR)])
    ours, theirs = Identity(authority.directory / "ns"), Identity(foreign.directory / "op")
    with pytest.raises(ssl.SSLCertVerificationError) as refused:
        shake(ours, theirs)
    assert "certificate is not good" in str(explain(refused.value))


def test_a_server_of_another_role_is_not_taken_for_one(authority: Authority) -> None:
    with pytest.raises(ssl.SSLCertVerificationError) as refused:
        shake(Identity(authority.directory / "d0"), Identity(authority.directory / "op"))
    assert explain(refused.value) == "its certificate is of another role"


def test_a_mounts_certificate_is_no_servers(authority: Authority) -> None:
    authority.issue("m", MOUNT)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(Identity(authority.directory / "m"), Identity(authority.directory / "op"), MOUNT)


def test_what_is_due_is_renewed_and_old_certificates_stay_valid(tmp_path: Path) -> None:
    clock = Clock(1_800_000_000.0)
    authority = Authority.make(tmp_path, clock)
    authority.ensure([("ns", NAMESERVER), ("op", OPERATOR)])
    clock.now += VALIDITY_SECONDS / 2
    assert authority.renew_due() == []
    authority.renew(["op"])
    clock.now += VALIDITY_SECONDS / 4
    assert authority.renew_due() == ["ns"]
    assert [each.name for each in authority.certificates()] == ["ns", "op", "op", "ns"]
    clock.now += VALIDITY_SECONDS / 2
    authority.renew(["op"])
    assert [each.name for each in authority.certificates()] == ["op", "ns", "op"], "expired ones are forgotten"


@pytest.mark.parametrize("made_ahead", [True, False])
def test_certificates_that_a_clock_ahead_has_made_are_renewed_when_it_is_right_again(
        tmp_path: Path, made_ahead: bool) -> None:
    clock = Clock(time.time())
    if not made_ahead:
        Authority.make(tmp_path, clock).ensure([("ns", NAMESERVER), ("op", OPERATOR)])
    clock.now += 2 * VALIDITY_SECONDS
    authority = Authority.make(tmp_path, clock)
    authority.ensure([("ns", NAMESERVER), ("op", OPERATOR)])
    clock.now = time.time()
    assert register.is_due(tmp_path, clock.now)
    assert authority.renew_due() == ["ns", "op"]
    assert not register.is_due(tmp_path, clock.now)
    for end in shake(Identity(tmp_path / "ns"), Identity(tmp_path / "op")):
        end.socket.close()


def test_a_clock_that_was_ahead_makes_nobody_forget_what_was_revoked(authority: Authority) -> None:
    revoked = authority.newest()["op"]
    authority.revoke("op")
    authority.issue("op", OPERATOR)
    ahead = Authority(authority.directory, Clock(time.time() + 2 * VALIDITY_SECONDS))
    ahead.renew_due()
    authority.renew_due()
    assert revoked.serial in json.loads((authority.directory / "ns" / "revoked.json").read_text())


def test_what_another_machine_knows_of_revoked_certificates_counts_from_then_on(authority: Authority) -> None:
    server, peer = Identity(authority.directory / "ns"), Identity(authority.directory / "op").own
    before = server.revoked
    server.learn({peer.serial: str(peer)})
    assert server.revoked == {peer.serial: "operator op"} and server.revoked is not before
    assert "was revoked" in server.refusal(peer)
    known = server.revoked
    server.learn({peer.serial: str(peer)})
    assert server.revoked is known
    assert "was revoked" in Identity(authority.directory / "ns").refusal(peer)


def test_a_renewed_certificate_and_a_revoked_one_are_noticed_while_in_use(authority: Authority) -> None:
    server, client = Identity(authority.directory / "ns"), Identity(authority.directory / "op")
    mine, theirs = shake(server, client)
    peer = peer_of(theirs.session)
    mine.socket.close()
    theirs.socket.close()
    before = client.generation
    authority.renew(["op"])
    wait_until(lambda: client.generation != before, 20 * LOOK_SECONDS, "the new certificate is not read")
    assert client.own.serial != peer.serial and server.refusal(peer) == ""
    authority.revoke("op")
    wait_until(lambda: server.refusal(peer) == "the certificate of the operator op was revoked", 20 * LOOK_SECONDS,
               "the old certificate still counts")
    authority.issue("op", OPERATOR)
    wait_until(lambda: client.own.serial == authority.newest()["op"].serial and not server.refusal(client.own),
               20 * LOOK_SECONDS, "the new one does not count")


def test_a_damaged_renewal_leaves_what_was_there(authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    client = Identity(authority.directory / "op")
    before = client.own
    (authority.directory / "op" / "identity.pem").write_bytes(b"")
    wait_until(lambda: client.own and "going on with" in caplog.text, 20 * LOOK_SECONDS, "nothing is said")
    assert client.own == before


def test_refusals_name_what_to_do_and_change_nothing(authority: Authority, tmp_path: Path) -> None:
    before = (authority.directory / "issued.json").read_bytes()
    for refused, says in ((lambda: authority.issue("op", OPERATOR), "renew op"),
                          (lambda: authority.issue("../x", OPERATOR), "name: "),
                          (lambda: authority.issue(".", OPERATOR), "name: "),
                          (lambda: authority.issue("x", "root"), "role: "),
                          (lambda: authority.revoke("nobody"), "identity list"),
                          (lambda: authority.renew(["op", "nobody"]), "identity list"),
                          (lambda: authority.renew(["op"], 1.0), "validity: "),
                          (lambda: Authority(tmp_path / "nowhere"), "holds no certificate authority")):
        with pytest.raises(IdentityError, match=says):
            refused()
    assert (authority.directory / "issued.json").read_bytes() == before
    authority.revoke("op")
    with pytest.raises(IdentityError, match="was revoked"):
        authority.renew(["op"])
    authority.ensure([("op", OPERATOR)])
    assert authority.newest()["op"].revoked_at is not None, "what was revoked is not issued again by itself"


def test_a_damaged_list_of_certificates_is_said(authority: Authority) -> None:
    (authority.directory / "issued.json").write_text(json.dumps({"certificates": [{"name": 1}]}))
    with pytest.raises(IdentityError, match=r"issued\.json is damaged"):
        authority.certificates()


def test_commands_find_what_up_made_for_a_nameserver(authority: Authority, tmp_path: Path,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPEEDWELL_STATE_DIRECTORY", str(tmp_path / "state"))
    monkeypatch.delenv(places.VARIABLE, raising=False)
    assert identity_for("127.0.0.1:7400") is None
    places.remember("127.0.0.1:7400,127.0.0.1:7401", authority.directory / "op")
    found = identity_for("127.0.0.1:7401")
    assert found is not None and found.own.name == "op"
    assert identity_for("127.0.0.1:7402") is None
    assert identity_for("127.0.0.1:7401", authority.directory / "d0").own.name == "d0"     # type: ignore[union-attr]
    monkeypatch.setenv(places.VARIABLE, str(authority.directory / "ns"))
    assert identity_for("127.0.0.1:7402").own.name == "ns"      # type: ignore[union-attr]
    monkeypatch.delenv(places.VARIABLE)
    places.forget("127.0.0.1:7400,127.0.0.1:7401")
    assert identity_for("127.0.0.1:7400") is None


@pytest.mark.parametrize("name", ["authority.key", "authority.pem"])
def test_a_damaged_authority_is_said_and_renews_again_when_it_is_whole(authority: Authority, name: str) -> None:
    whole = (authority.directory / name).read_bytes()
    (authority.directory / name).write_text("not a key")
    with pytest.raises(IdentityError, match="key or certificate in"):
        authority.renew()
    (authority.directory / name).write_bytes(whole)
    assert authority.renew() == ["ns", "d0", "op"]


def test_a_certificate_that_was_issued_and_not_written_is_made_again(
        authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_all = durable.replace_all

    def end_before_the_certificates(contents: Sequence[tuple[Path, bytes]], mode: int = 0o600) -> None:
        if contents and contents[0][0].name == files.CERTIFICATE:
            raise KeyboardInterrupt
        replace_all(contents, mode)

    monkeypatch.setattr(durable, "replace_all", end_before_the_certificates)
    for make in (lambda: authority.issue("d1", DATASERVER), lambda: authority.renew(["d0"])):
        with pytest.raises(KeyboardInterrupt):
            make()
    monkeypatch.setattr(durable, "replace_all", replace_all)
    authority.ensure([("ns", NAMESERVER), ("d0", DATASERVER), ("d1", DATASERVER)])
    for name in ("ns", "d0", "d1"):
        assert Identity(authority.directory / name).own.serial == authority.newest()[name].serial
    issued = len(authority.certificates())
    authority.ensure([("ns", NAMESERVER), ("d0", DATASERVER), ("d1", DATASERVER)])
    assert len(authority.certificates()) == issued


def test_a_set_of_certificates_that_ends_in_the_middle_is_completed(
        authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [("ns", NAMESERVER), *((f"s{number}", SWITCH) for number in range(8))]
    replace = Path.replace

    def end_after_the_third(self: Path, target: Path) -> Path:
        if target == authority.directory / "s3" / files.CERTIFICATE:
            raise KeyboardInterrupt
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", end_after_the_third)
    with pytest.raises(KeyboardInterrupt):
        authority.ensure(names)
    monkeypatch.setattr(Path, "replace", replace)
    written = {name: Identity(authority.directory / name).own.serial for name in ("s0", "s1", "s2")}
    assert not (authority.directory / "s3" / files.CERTIFICATE).exists()
    assert not list(authority.directory.glob("*/.*")), "keys of nobody were left"
    authority.ensure(names)
    for name, _ in names:
        serial = Identity(authority.directory / name).own.serial
        assert serial == authority.newest()[name].serial == written.get(name, serial)


def is_signed(certificate: Path, authority: Path) -> bool:
    """As OpenSSL has it, whatever the certificate is for."""
    return subprocess.run(["openssl", "verify", "-x509_strict", "-CAfile", authority, certificate],
                          capture_output=True, check=False).returncode == 0


def test_what_switches_trust_has_signed_what_controllers_show_them_and_nothing_else(tmp_path: Path) -> None:
    authority = Authority.make(tmp_path / "identity")
    for role in ROLES:
        authority.issue(role, role)
    signed = {path.relative_to(authority.directory).as_posix() for path in authority.directory.glob("*/*.pem")
              if path.name != files.AUTHORITY and is_signed(path, authority.directory / SWITCH / files.AUTHORITY)}
    assert signed == {f"{CONTROLLER}/{files.TO_SWITCHES}"}
    assert not is_signed(authority.directory / CONTROLLER / files.TO_SWITCHES, authority.directory / files.AUTHORITY)
    assert all(is_signed(authority.directory / role / files.CERTIFICATE, authority.directory / files.AUTHORITY)
               for role in ROLES)


def test_an_installation_of_before_gets_the_authority_that_switches_trust(tmp_path: Path) -> None:
    names = [("controller", CONTROLLER), ("00000000000000a1", SWITCH)]
    authority = Authority.make(tmp_path / "identity")
    authority.ensure(names)
    controller, switch = (authority.directory / name for name, _ in names)
    for path in (controller / files.TO_SWITCHES, *authority.directory.glob("switch-authority.*")):
        path.unlink()
    (switch / files.AUTHORITY).write_bytes((authority.directory / files.AUTHORITY).read_bytes())
    identity, serials = Identity(controller), [each.serial for each in authority.certificates()]
    assert identity.client_context(to_switches=True), "it starts as before"
    authority.ensure(names)
    assert is_signed(controller / files.TO_SWITCHES, switch / files.AUTHORITY)
    assert [each.serial for each in authority.certificates()] == serials
    wait_until(lambda: identity.generation > 1, 10, "a running controller does not see it")


def test_a_supervisor_shows_no_identity_of_a_switch(tmp_path: Path) -> None:
    authority = Authority.make(tmp_path / "identity")
    authority.ensure([("00000000000000a1", SWITCH)])
    assert files.any_identity(authority.directory) is None
    authority.ensure([("ns", NAMESERVER)])
    assert files.any_identity(authority.directory) == authority.directory / "ns"


def test_switches_take_a_revoked_controller_no_more_and_the_others_still(tmp_path: Path) -> None:
    authority = Authority.make(tmp_path / "identity")
    revoked, left, switch = (authority.issue(name, role) for name, role in (
        ("first", CONTROLLER), ("second", CONTROLLER), ("00000000000000a1", SWITCH)))
    assert all(is_signed(each / files.TO_SWITCHES, switch / files.AUTHORITY) for each in (revoked, left))
    authority.revoke("first")
    assert not is_signed(revoked / files.TO_SWITCHES, switch / files.AUTHORITY)
    assert is_signed(left / files.TO_SWITCHES, switch / files.AUTHORITY)
    again = authority.issue("first", CONTROLLER)
    assert is_signed(again / files.TO_SWITCHES, switch / files.AUTHORITY)


def test_what_a_controller_shows_to_switches_is_renewed_with_its_certificate(tmp_path: Path) -> None:
    clock = Clock(time.time())
    authority = Authority.make(tmp_path / "identity", clock)
    place = authority.issue("controller", CONTROLLER)
    before = (place / files.TO_SWITCHES).read_bytes()
    clock.now += 0.7 * VALIDITY_SECONDS
    assert authority.renew_due() == ["controller"]
    after = (place / files.TO_SWITCHES).read_bytes()
    assert after != before and files.key_in(after) == files.key_in((place / files.CERTIFICATE).read_bytes())
    assert (place / files.TO_SWITCHES).stat().st_mode & 0o777 == 0o600
    (place / files.TO_SWITCHES).chmod(0o640)
    with pytest.raises(IdentityError, match="can be read by others"):
        Identity(place)


def test_keys_that_somebody_left_who_was_killed_are_removed(authority: Authority) -> None:
    left = authority.directory / "d0" / f".{files.CERTIFICATE}.12345"
    left.write_bytes(b"a key")
    authority.renew(["d0"])
    assert not left.exists()
    assert Identity(authority.directory / "d0").own.name == "d0"


def test_the_disk_is_waited_for_before_anything_is_replaced(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    contents = [(tmp_path / str(number), b"new") for number in range(100)]
    for path, _ in contents:
        path.write_bytes(b"old")
    done: list[str] = []
    replace = Path.replace

    def replaced(self: Path, target: Path) -> Path:
        done.append("replaced")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", lambda descriptor: done.append("synced"))
    monkeypatch.setattr(Path, "replace", replaced)
    durable.replace_all(contents)
    assert done == ["synced"] * 100 + ["replaced"] * 100 + ["synced"], "the names, too"
    assert [path.read_bytes() for path, _ in contents] == [b"new"] * 100
    assert len(list(tmp_path.iterdir())) == 100


def test_a_set_of_files_that_cannot_all_be_written_replaces_none(tmp_path: Path) -> None:
    (tmp_path / "there").write_bytes(b"old")
    with pytest.raises(FileNotFoundError):
        durable.replace_all([(tmp_path / "there", b"new"), (tmp_path / "missing" / "file", b"new")])
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("there", b"old")]


@pytest.mark.parametrize("is_removed", [False, True])
def test_a_token_whose_file_is_not_what_the_authority_knows_is_made_again(
        authority: Authority, is_removed: bool) -> None:
    bearer.ensure(authority.directory, "reader")
    place = authority.directory / bearer.FOLDER / "reader"
    first = place.read_text()
    bearer.ensure(authority.directory, "reader")
    assert place.read_text() == first
    if is_removed:
        place.unlink()
    else:
        place.write_text("written before an end in the middle")
    bearer.ensure(authority.directory, "reader")
    assert list(bearer.known(authority.directory)) == [bearer.digest(place.read_text().strip())]


def test_a_token_is_revoked_though_the_certificate_of_that_name_was_before(authority: Authority) -> None:
    from speedwell.cluster.commands.identity import identity

    authority.revoke("op")
    bearer.issue(authority.directory, "op")
    runner, command = CliRunner(), ["revoke", "op", "--directory", str(authority.directory)]
    done = runner.invoke(identity, command)
    assert done.exit_code == 0, done.output
    assert bearer.known(authority.directory) == {}
    assert isinstance(runner.invoke(identity, command).exception, IdentityError)
