"""Tokens: what they bind, who takes them, and how keys and tokens are renewed. Clocks are in the tests' hands."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speedwell.fs import tokens
from speedwell.fs.client.names.tokens import Tokens
from speedwell.fs.dataserver.admission import Door
from speedwell.fs.dataserver.disk.store import FileStore
from speedwell.fs.dataserver.nameserver_link import NameserverLink
from speedwell.fs.dataserver.replication.lease import Lease, boot_seconds
from speedwell.fs.dataserver.replication.primary_office import Authority
from speedwell.fs.dataserver.server import DataServer
from speedwell.fs.errors import NameserverUnavailable, NotReady, TokenRefused
from speedwell.fs.nameserver.replicas.registry import Registry
from speedwell.fs.nameserver.service import token_keys
from speedwell.fs.nameserver.service.token_keys import TOLD_MS, TokenKeys
from speedwell.fs.proto.speedwell_pb2 import (
    INVALID,
    OK,
    TOKEN_REFUSED,
    Admission,
    AppendOperation,
    Attributes,
    CheckOperation,
    Copy,
    DataReply,
    DataRequest,
    HeartbeatRequest,
    HistoryOperation,
    HolesOperation,
    IdentityOperation,
    InventoryOperation,
    JoinOperation,
    LengthOperation,
    ProofKeyReply,
    ProofOperation,
    QuarantineOperation,
    ReadOperation,
    Replica,
    Revocation,
    SyncOperation,
    TokenKey,
    VerifyOperation,
    WriteOperation,
)
from speedwell.fs.rates import Rates
from speedwell.fs.store import MemoryStore
from speedwell.fs.tokens import OPERATE, READ, SERVE, WRITE
from speedwell.fs.wire.channel import HEADER, MAGIC, Channel, ConnectionLost, connect, encode
from tests.waiting import wait_until

FILE = "0123abcd-0000-4000-8000-00000000000a"
OTHER = "0123abcd-0000-4000-8000-00000000000b"
KEY = TokenKey(number=7, secret=b"k" * 32)
NEXT_KEY = TokenKey(number=8, secret=b"n" * 32)
NOW_MS = 10**12
HOUR_MS = 3_600_000
SERVER = Replica(dataserver_id="d1", host="10.0.0.1", port=7001)
LISTED = Replica(dataserver_id="d1", host="10.0.0.1", port=7001, other_hosts=["10.255.0.1"])
INODE = 5


def token(rights: int = READ, *, file_id: str = FILE, inode: int = INODE, key: TokenKey = KEY, now_ms: int = NOW_MS,
          valid_ms: int = HOUR_MS) -> bytes:
    return tokens.sign(key.number, key.secret, file_id, rights, now_ms, valid_ms, inode)


class Site:
    """A door of a dataserver that holds FILE, which the nameserver has told its keys."""

    def __init__(self, directory: Path) -> None:
        self.store = FileStore(directory, "d0")
        self.seconds = boot_seconds() + 1
        self.door = self.new_door()
        self.hear()

    def new_door(self) -> Door:
        return Door(self.store, clock=lambda: self.seconds, news_seconds=0.02)

    def hear(self, *keys: TokenKey, now_ms: int = NOW_MS, version: int = 3) -> None:
        self.door.hear(Admission(keys=keys or [KEY], now_ms=now_ms, servers_version=version, servers=[LISTED]))

    def make_file(self) -> None:
        with self.store.opened_for_append(FILE, INODE, b"/f", 1 << 20) as file:
            file.ordering.pinned = True

    def check(self, shown: bytes, client: str = "", /, **operation: object) -> None:
        operation = operation or {"read": ReadOperation(file_id=FILE)}
        self.door.check(DataRequest(token=shown, **operation), client)  # type: ignore[arg-type]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path / "data")
    yield site
    site.store.close()


APPEND = AppendOperation(file_id=FILE, inode=INODE)
OPERATIONS = {
    "read": (ReadOperation(file_id=FILE), READ),
    "append": (APPEND, WRITE),
    "length": (LengthOperation(file_id=FILE), READ),
    "write": (WriteOperation(file_id=OTHER, base=FILE, inode=INODE), WRITE),
    "check": (CheckOperation(file_id=FILE), READ),
    "holes": (HolesOperation(file_id=FILE), READ),
    "history": (HistoryOperation(file_id=FILE), SERVE),
    "join": (JoinOperation(copy=Copy(file_id=FILE), candidate=SERVER), SERVE),
    "sync": (SyncOperation(file_id=FILE), WRITE),
    "inventory": (InventoryOperation(), OPERATE),
    "verify": (VerifyOperation(), OPERATE),
    "quarantine": (QuarantineOperation(), OPERATE),
}


class TestTheDoor:
    def test_every_operation_but_the_question_who_somebody_is_needs_a_token(self) -> None:
        every = {field.name for field in DataRequest.DESCRIPTOR.oneofs_by_name["operation"].fields}
        assert every == {*OPERATIONS, "identity", "proof"}

    @pytest.mark.parametrize("name", OPERATIONS)
    @pytest.mark.parametrize("rights", [READ, WRITE, READ | WRITE, READ | WRITE | SERVE, OPERATE])
    def test_an_operation_needs_its_right(self, site: Site, name: str, rights: int) -> None:
        operation, needed = OPERATIONS[name]
        allowed = rights & needed or (needed == READ and rights == OPERATE)
        if allowed:
            site.check(token(rights), **{name: operation})
            return
        with pytest.raises(TokenRefused, match=r"no right to|not one that"):
            site.check(token(rights), **{name: operation})

    @pytest.mark.parametrize("operation", [
        {"append": AppendOperation(file_id=FILE, offset=0)}, {"write": WriteOperation(base=FILE, ordered=True)},
        {"sync": SyncOperation(file_id=FILE, relayed=True)}])
    def test_what_a_primary_orders_needs_the_right_of_servers(self, site: Site, operation: dict) -> None:
        with pytest.raises(TokenRefused, match="act as a dataserver"):
            site.check(token(READ | WRITE), **operation)
        with pytest.raises(TokenRefused, match="it is for one client"):     # who saw it on the network
            site.check(site.door.sign(FILE), **operation)
        site.check(site.door.sign(FILE), "dataserver d0", **operation)

    @pytest.mark.parametrize("position", range(tokens.TOKEN_BYTES))
    def test_a_token_with_another_byte_is_refused(self, site: Site, position: int) -> None:
        altered = bytearray(token())
        for bit in range(8):
            altered[position] ^= 1 << bit
            with pytest.raises(TokenRefused, match=r"it is not one that|it is for one client"):
                site.check(bytes(altered))
            altered[position] ^= 1 << bit
        site.check(bytes(altered))

    @pytest.mark.parametrize("wrong", [
        token(file_id=OTHER), token(key=TokenKey(number=7, secret=b"x" * 32)), token(key=NEXT_KEY), token()[:-1],
        token() + b"\0", b"nonsense"])
    def test_a_foreign_or_forged_one_is_refused_in_the_same_words(self, site: Site, wrong: bytes) -> None:
        with pytest.raises(TokenRefused) as refusal:
            site.check(wrong)
        assert str(refusal.value) == tokens.NOT_OURS
        assert site.door.refused == 1

    def test_none_is_refused_with_what_helps(self, site: Site) -> None:
        with pytest.raises(TokenRefused, match="clients of this version send it"):
            site.check(b"")

    def test_one_that_has_ended_is_refused_after_the_tolerance(self, site: Site) -> None:
        site.seconds += (HOUR_MS + tokens.TOLERANCE_MS) / 1000 - 1
        site.check(token())
        site.seconds += 2
        with pytest.raises(TokenRefused, match="it has ended"):
            site.check(token())

    def test_what_counts_is_the_nameservers_clock(self, site: Site) -> None:
        site.hear(now_ms=NOW_MS + HOUR_MS + tokens.TOLERANCE_MS + 1)
        with pytest.raises(TokenRefused, match="it has ended"):
            site.check(token())

    def test_one_of_another_file_that_claims_the_content_is_refused(self, site: Site) -> None:
        site.make_file()
        site.check(token())
        with pytest.raises(TokenRefused, match="not one that"):
            site.check(token(inode=6))

    @pytest.mark.parametrize("inode", [0, 6])
    @pytest.mark.parametrize("is_there", [True, False])
    def test_nothing_is_made_under_the_inode_of_another_file(self, site: Site, inode: int, is_there: bool) -> None:
        if is_there:
            site.make_file()
        for operation in ({"append": AppendOperation(file_id=FILE, inode=inode)},
                          {"write": WriteOperation(file_id=OTHER, base=FILE, inode=inode)}):
            with pytest.raises(TokenRefused, match="not one that"):
                site.check(token(WRITE), **operation)

    def test_a_content_that_may_have_been_deleted_is_not_made_again(self, site: Site) -> None:
        site.seconds = site.store.remembers_since + 10
        site.hear()
        site.check(token(WRITE, now_ms=NOW_MS - 9_000), append=APPEND)
        with pytest.raises(TokenRefused, match="too old"):
            site.check(token(WRITE, now_ms=NOW_MS - 11_000), append=APPEND)
        site.make_file()
        site.check(token(WRITE, now_ms=NOW_MS - 11_000), append=APPEND)

    @pytest.mark.parametrize("named", [
        Replica(dataserver_id="d1", host="10.0.0.1", port=22),
        Replica(dataserver_id="d1", host="127.0.0.1", port=7001),
        Replica(dataserver_id="d2", host="10.0.0.1", port=7001)])
    @pytest.mark.parametrize("name", ["append", "write", "length", "sync", "join"])
    def test_an_address_of_no_registered_server_is_refused(self, site: Site, name: str, named: Replica) -> None:
        operation = {"append": AppendOperation(file_id=FILE, inode=INODE, relay=[SERVER, named]),
                     "write": WriteOperation(base=FILE, inode=INODE, relay=[named]),
                     "length": LengthOperation(file_id=FILE, others=[named]),
                     "sync": SyncOperation(file_id=FILE, others=[named]),
                     "join": JoinOperation(copy=Copy(file_id=FILE), candidate=named)}[name]
        with pytest.raises(TokenRefused, match="no dataserver of this installation"):
            site.check(token(READ | WRITE | SERVE), **{name: operation})

    def test_a_registered_server_is_taken_at_its_other_addresses(self, site: Site) -> None:
        other = Replica(dataserver_id="d1", host="10.255.0.1", port=7001)
        site.check(token(READ | WRITE | SERVE), length=LengthOperation(file_id=FILE, others=[other, SERVER]))

    def test_a_key_that_comes_with_the_next_heartbeat_is_waited_for(self, tmp_path: Path) -> None:
        site = Site(tmp_path / "data")
        site.door = Door(site.store, clock=lambda: site.seconds, news_seconds=30)
        timer = threading.Timer(0.05, lambda: site.hear(NEXT_KEY, KEY))
        timer.start()
        site.check(token(key=NEXT_KEY))
        timer.join()

    def test_a_server_that_has_heard_nothing_is_not_ready(self, tmp_path: Path) -> None:
        door = Door(FileStore(tmp_path / "data", "d0"), news_seconds=0.02)
        with pytest.raises(NotReady):
            door.check(DataRequest(read=ReadOperation(file_id=FILE), token=token()))
        assert door.sign(FILE) == b""

    def test_keys_and_servers_are_there_after_a_restart_and_nobody_else_can_read_them(self, site: Site) -> None:
        kept = site.store.directory / "admission"
        assert kept.stat().st_mode & 0o777 == 0o600
        assert site.store.directory.stat().st_mode & 0o777 == 0o700
        site.door = site.new_door()
        site.check(token(READ | WRITE | SERVE), length=LengthOperation(file_id=FILE, others=[SERVER]))

    def test_what_is_damaged_on_the_disk_is_asked_for_again(self, site: Site) -> None:
        (site.store.directory / "admission").write_bytes(b"\xff" * 40)
        site.door = site.new_door()
        with pytest.raises(NotReady):
            site.check(token())
        site.hear()
        site.check(token())

    def test_an_insecure_one_is_open(self, site: Site) -> None:
        Door(site.store, insecure=True).check(DataRequest(quarantine=QuarantineOperation(empty=True)))


NONCE = b"n" * tokens.NONCE_BYTES


def proof(client: str, *, key: TokenKey = KEY, nonce: bytes = NONCE, dataserver_id: str = "d0",
          claimed: str = "", number: int = 0) -> ProofOperation:
    mac = tokens.proof(tokens.proof_secret(key.secret, client), nonce, dataserver_id)
    return ProofOperation(client=claimed or client, key=number or key.number, mac=mac)


class TestBinding:
    @pytest.mark.parametrize("rights", [READ, OPERATE])
    def test_a_token_is_for_the_client_that_it_was_given_to(self, site: Site, rights: int) -> None:
        bound = tokens.sign(KEY.number, KEY.secret, FILE, rights, NOW_MS, HOUR_MS, INODE, "mount a")
        request = DataRequest(token=bound, read=ReadOperation(file_id=FILE))
        for _ in range(2):      # the second time it is known as genuine
            site.door.check(request, "mount a")
            for other in ("mount b", "mount", "mount a\0", "local"):
                with pytest.raises(TokenRefused, match="not one that"):
                    site.door.check(request, other)
            with pytest.raises(TokenRefused, match="for one client"):
                site.door.check(request)

    def test_a_binding_cannot_be_taken_off_nor_moved_into_the_name_of_the_content(self, site: Site) -> None:
        bound = bytearray(tokens.sign(KEY.number, KEY.secret, FILE, READ, NOW_MS, HOUR_MS, INODE, "mount a"))
        with pytest.raises(TokenRefused, match="not one that"):
            site.door.check(DataRequest(token=bytes(bound), read=ReadOperation(file_id=FILE + "\0mount")), " a")
        bound[16] &= ~tokens.BOUND
        for file_id in (FILE, FILE + "\0mount a"):
            with pytest.raises(TokenRefused, match="not one that"):
                site.door.check(DataRequest(token=bytes(bound), read=ReadOperation(file_id=file_id)), "mount a")

    def test_one_for_everybody_is_served_on_a_proven_connection_too(self, site: Site) -> None:
        site.door.check(DataRequest(token=token(), read=ReadOperation(file_id=FILE)), "mount a")

    def test_who_answers_the_nonce_of_this_server_is_known(self, site: Site) -> None:
        assert site.door.proven(proof("mount a"), NONCE, "d0") == "mount a"

    @pytest.mark.parametrize("forged", [
        proof("mount a", claimed="mount b"), proof("mount a", nonce=b"o" * tokens.NONCE_BYTES),
        proof("mount a", dataserver_id="d1"), proof("mount a", key=TokenKey(number=7, secret=b"x" * 32)),
        proof("mount a", key=NEXT_KEY), proof("mount a", key=NEXT_KEY, number=KEY.number), proof(""),
        ProofOperation(client="mount a", key=KEY.number), ProofOperation()])
    def test_nothing_else_proves_anything(self, site: Site, forged: ProofOperation) -> None:
        with pytest.raises(TokenRefused, match="proof: it is not that"):
            site.door.proven(forged, NONCE, "d0")
        assert site.door.refused == 1

    def test_without_a_question_there_is_no_answer(self, site: Site) -> None:
        with pytest.raises(TokenRefused, match="proof: it is not that"):
            site.door.proven(proof("mount a", nonce=b""), b"", "d0")

    def test_of_who_was_revoked_only_tokens_from_after_that_count(self, site: Site) -> None:
        learnt: dict[str, str] = {}

        def shown(client: str, now_ms: int) -> None:
            given = tokens.sign(KEY.number, KEY.secret, FILE, READ, now_ms, HOUR_MS, INODE, client)
            site.door.check(DataRequest(token=given, read=ReadOperation(file_id=FILE)), client)

        site.door = Door(site.store, clock=lambda: site.seconds, news_seconds=0.02, learn=learnt.update)
        shown("mount a", NOW_MS)
        news = Admission(keys=[KEY], now_ms=NOW_MS, servers_version=3, revocations_version=1, revocations=[
            Revocation(serial="A", client="mount a", noticed_ms=NOW_MS),
            Revocation(serial="B", client="mount a", noticed_ms=NOW_MS - 5)])
        site.door.hear(news)
        assert learnt == {"A": "mount a", "B": "mount a"}
        site.door.hear(Admission(keys=[KEY], now_ms=NOW_MS, servers_version=3, revocations_version=1))
        for door in (site.door, site.new_door()):
            site.door = door
            with pytest.raises(TokenRefused, match="before the certificate of the mount a was revoked"):
                shown("mount a", NOW_MS)
            shown("mount a", NOW_MS + 1)
            shown("mount b", NOW_MS)

    @pytest.mark.parametrize("file_id", [FILE, tokens.ALL_CONTENTS])
    def test_clients_write_to_a_content_that_lends_rights_with_tokens_from_after_that(self, site: Site,
                                                                                     file_id: str) -> None:
        before, after = token(READ | WRITE), token(READ | WRITE, now_ms=NOW_MS + 1)
        site.check(before, append=APPEND)
        site.door.hear(Admission(keys=[KEY], now_ms=NOW_MS, servers_version=3, revocations_version=1, revocations=[
            Revocation(file_id=file_id, noticed_ms=NOW_MS)]))
        for door in (site.door, site.new_door()):
            site.door = door
            for name in ("append", "write"):
                with pytest.raises(TokenRefused, match="program that lends rights; look the file up again"):
                    site.check(before, **{name: OPERATIONS[name][0]})
                site.check(after, **{name: OPERATIONS[name][0]})
            site.check(before)
            site.check(before, sync=SyncOperation(file_id=FILE))
            site.check(site.door.sign(FILE), "dataserver d0",
                       append=AppendOperation(file_id=FILE, inode=INODE, offset=0))
            if file_id == FILE:
                site.check(token(READ | WRITE, file_id=OTHER), append=AppendOperation(file_id=OTHER, inode=INODE))

    def test_a_server_that_has_heard_nothing_is_not_ready(self, tmp_path: Path) -> None:
        door = Door(FileStore(tmp_path / "data", "d0"), news_seconds=0.02)
        with pytest.raises(NotReady):
            door.proven(proof("mount a"), NONCE, "d0")

    def test_the_secret_of_a_client_opens_nothing_of_another(self) -> None:
        keys = TokenKeys(MemoryStore(), 3600, insecure=False)
        assert keys.proof_key("mount a") == ProofKeyReply()
        keys.renew(NOW_MS)
        first, second = keys.proof_key("mount a"), keys.proof_key("mount b")
        assert first.secret != second.secret and keys.proof_key("") == ProofKeyReply()
        given = tokens.sign(first.key, first.secret, FILE, READ, NOW_MS, HOUR_MS, INODE, "mount a")
        assert given != keys.sign(FILE, INODE, READ, NOW_MS, "mount a")

    def test_the_key_of_a_client_is_renewed_before_dataservers_forget_it(self) -> None:
        keys = TokenKeys(MemoryStore(), 3600, insecure=False)
        registry = TestKeys().registry()
        held: dict[int, int] = {}       # until when each may be used
        for now_ms in range(0, 8 * HOUR_MS, 5000):
            keys.renew(now_ms)
            told = {key.number for key in keys.admission(registry, HeartbeatRequest(), now_ms).keys}
            assert {number for number, until in held.items() if until >= now_ms} <= told
            given = keys.proof_key("mount a")
            held[given.key] = now_ms + given.valid_ms
        assert len(held) == 4


# ---------------------------------------------------------------- keys of the nameserver


class TestKeys:
    def registry(self) -> Registry:
        registry = Registry(MemoryStore(), now_seconds=0)
        registry.heartbeat("d1", "10.0.0.1", 7001, "r", "p", capacity_bytes=1, available_bytes=1, now_seconds=0)
        return registry

    def numbers(self, keys: TokenKeys, now_ms: int) -> list[int]:
        return [key.number for key in keys.admission(self.registry(), HeartbeatRequest(), now_ms).keys]

    def test_two_are_alive_and_a_new_one_signs_once_it_is_known(self) -> None:
        keys = TokenKeys(MemoryStore(), 3600, insecure=False)
        assert keys.sign(FILE, 1, READ, 0) == b""
        seen: dict[int, tuple[int, int]] = {}    # by key: from when until when it is told
        last_signed: dict[int, int] = {}
        for now_ms in range(0, 8 * HOUR_MS, 5000):
            keys.renew(now_ms)
            numbers = self.numbers(keys, now_ms)
            assert len(numbers) <= 2
            for number in numbers:
                seen[number] = seen.get(number, (now_ms, 0))[0], now_ms
            claims = tokens.read(keys.sign(FILE, 1, READ, now_ms))
            assert claims.key == numbers[0]
            assert claims.key == 1 or now_ms - seen[claims.key][0] >= TOLD_MS
            last_signed[claims.key] = claims.ends_ms
        for number, end in last_signed.items():
            assert seen[number][1] >= min(end, 8 * HOUR_MS - 5000), number
        assert len(last_signed) == 4

    def test_the_next_leader_signs_with_a_key_that_dataservers_know(self) -> None:
        store = MemoryStore()
        before = TokenKeys(store, 3600, insecure=False)
        before.renew(NOW_MS)
        after = TokenKeys(store, 3600, insecure=False)
        after.renew(NOW_MS + 1000)
        assert after.sign(FILE, 1, READ, NOW_MS) == before.sign(FILE, 1, READ, NOW_MS) != b""

    def test_servers_are_listed_once_for_each_change(self) -> None:
        registry, keys = self.registry(), TokenKeys(MemoryStore(), 3600, insecure=False)
        keys.renew(NOW_MS)

        def listed(known: Admission) -> list[Replica]:
            request = HeartbeatRequest(servers_version=known.servers_version)
            return list(keys.admission(registry, request, NOW_MS).servers)

        first = keys.admission(registry, HeartbeatRequest(), NOW_MS)
        assert [server.dataserver_id for server in first.servers] == ["d1"]
        assert not listed(first)
        registry.heartbeat("d2", "10.0.0.2", 7001, "r", "p", capacity_bytes=1, available_bytes=1, now_seconds=0)
        assert len(listed(first)) == 2
        registry.heartbeat("d2", "10.0.0.2", 7001, "r", "p", capacity_bytes=1, available_bytes=1, now_seconds=0,
                           other_hosts=("10.255.0.2",))
        second = keys.admission(registry, HeartbeatRequest(), NOW_MS)
        assert [list(server.other_hosts) for server in second.servers] == [[], ["10.255.0.2"]]
        assert not listed(second)
        registry.remove(1)      # files name it until their replicas are made anew
        assert len(listed(first)) == 2

    def test_revoked_certificates_are_told_once_and_kept(self) -> None:
        revoked = [{"A": "mount a"}]
        store, registry = MemoryStore(), self.registry()
        keys = TokenKeys(store, 3600, insecure=False, revoked=lambda: revoked[-1])
        keys.renew(NOW_MS)
        first = keys.admission(registry, HeartbeatRequest(), NOW_MS)
        assert list(first.revocations) == [Revocation(serial="A", client="mount a", noticed_ms=NOW_MS)]
        request = HeartbeatRequest(revocations_version=first.revocations_version)
        assert not keys.admission(registry, request, NOW_MS).revocations
        revoked.append({"A": "mount a", "B": "mount a"})
        keys.renew(NOW_MS + 5)
        assert [each.noticed_ms for each in keys.admission(registry, request, NOW_MS).revocations] == [
            NOW_MS, NOW_MS + 5]
        after = TokenKeys(store, 3600, insecure=False, revoked=lambda: revoked[-1])
        after.renew(NOW_MS + 9)
        told = after.admission(registry, HeartbeatRequest(), NOW_MS)
        assert ([each.noticed_ms for each in told.revocations], [key.number for key in told.keys]) == (
            [NOW_MS, NOW_MS + 5], [1])

    def test_a_dataserver_that_is_revoked_knows_none_of_the_keys_from_then_on(self) -> None:
        revoked: list[dict[str, str]] = [{}]
        keys = TokenKeys(MemoryStore(), 3600, insecure=False, revoked=lambda: revoked[-1])
        keys.renew(NOW_MS)
        revoked.append({"A": "dataserver d1"})
        keys.renew(NOW_MS + 1)
        keys.renew(NOW_MS + 2)
        assert self.numbers(keys, NOW_MS) == [2]

    def test_only_the_last_of_too_many_revocations_are_told(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(token_keys, "MOST_REVOKED", 3)
        keys = TokenKeys(MemoryStore(), 3600, insecure=False,
                         revoked=lambda: {str(number): "mount a" for number in range(5)})
        keys.renew(NOW_MS)
        told = keys.admission(self.registry(), HeartbeatRequest(), NOW_MS).revocations
        assert [each.serial for each in told] == ["2", "3", "4"]
        keys._looked_at = None
        keys.renew(NOW_MS + 1)
        assert list(keys.admission(self.registry(), HeartbeatRequest(), NOW_MS).revocations) == list(told)

    def test_ended_writes_are_told_and_kept_as_long_as_a_token_from_before_could_count(
            self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(token_keys, "MOST_ENDED", 3)
        store, registry = MemoryStore(), self.registry()
        keys = TokenKeys(store, 3600, insecure=False)
        keys.renew(NOW_MS)

        def told(keys: TokenKeys) -> dict[str, int]:
            return {each.file_id: each.noticed_ms
                    for each in keys.admission(registry, HeartbeatRequest(), NOW_MS).revocations}

        first = keys.admission(registry, HeartbeatRequest(), NOW_MS)
        keys.end_writes(FILE, NOW_MS)
        known = HeartbeatRequest(revocations_version=first.revocations_version)
        assert len(keys.admission(registry, known, NOW_MS).revocations) == 1
        assert told(keys) == told(TokenKeys(store, 3600, insecure=False)) == {FILE: NOW_MS}
        for now_ms in (NOW_MS - HOUR_MS, NOW_MS):
            assert tokens.read(keys.sign(FILE, 1, WRITE, now_ms)).signed_ms == NOW_MS + 1
        assert tokens.read(keys.sign(OTHER, 1, WRITE, NOW_MS)).signed_ms == NOW_MS
        for number in range(3):
            keys.end_writes(str(number), NOW_MS + number)
        assert told(keys) == {tokens.ALL_CONTENTS: NOW_MS + 2}
        keys.end_writes(OTHER, NOW_MS + 3 + HOUR_MS + tokens.TOLERANCE_MS)
        assert set(told(keys)) == {OTHER}

    def test_an_insecure_nameserver_gives_none(self) -> None:
        keys = TokenKeys(MemoryStore(), 3600, insecure=True)
        keys.renew(NOW_MS)
        assert keys.sign(FILE, 1, READ, NOW_MS) == b""
        assert keys.admission(self.registry(), HeartbeatRequest(), NOW_MS) == Admission()

    @pytest.mark.parametrize("jump_ms", [-5 * HOUR_MS, 5 * HOUR_MS])
    def test_a_jump_of_the_clock_leaves_a_key_that_signs(self, jump_ms: int) -> None:
        keys = TokenKeys(MemoryStore(), 3600, insecure=False)
        for now_ms in (NOW_MS, NOW_MS + jump_ms, NOW_MS + jump_ms + 1000, NOW_MS):
            keys.renew(now_ms)
            assert tokens.read(keys.sign(FILE, 1, READ, now_ms)).key in self.numbers(keys, now_ms)


# ---------------------------------------------------------------- the client's side


class Metadata:
    """A nameserver that gives a new token with each look-up."""

    def __init__(self) -> None:
        self.now_ms = NOW_MS
        self.looked_up = 0
        self.is_away = False
        self.key: ProofKeyReply | None = None
        self.asked_for_key = 0

    def proof_key(self) -> ProofKeyReply | None:
        self.asked_for_key += 1
        return self.key

    def lookup_inode(self, inode: int, *, to_append: bool = False) -> Attributes:
        if self.is_away:
            raise NameserverUnavailable("away")
        self.looked_up += 1
        return self.attributes(READ | WRITE)

    def attributes(self, rights: int) -> Attributes:
        return Attributes(inode=INODE, file_id=FILE, token=token(rights, now_ms=self.now_ms))


class TestRenewal:
    def kept(self, metadata: Metadata) -> tuple[Tokens, Callable[[float], None]]:
        now = [0.0]

        def advance(seconds: float) -> None:
            now[0] += seconds
            metadata.now_ms += int(seconds * 1000)

        return Tokens(metadata, lambda: now[0]), advance  # type: ignore[arg-type]

    def test_where_there_is_no_key_it_is_not_asked_for_with_each_connection(self) -> None:
        metadata = Metadata()
        kept, advance = self.kept(metadata)
        for _ in range(10):
            assert kept.proof_key() is None
        assert metadata.asked_for_key == 1
        metadata.key = ProofKeyReply(client="mount a", valid_ms=HOUR_MS)
        kept.refused(metadata.attributes(READ))
        assert kept.proof_key() == metadata.key and metadata.asked_for_key == 2
        metadata.key = None
        kept.refused(metadata.attributes(READ))
        assert kept.proof_key() is None
        advance(10)
        metadata.key = ProofKeyReply(client="mount a", valid_ms=HOUR_MS)
        assert kept.proof_key() == metadata.key and metadata.asked_for_key == 4

    def test_a_handle_of_days_always_shows_a_token_that_has_not_ended(self) -> None:
        metadata = Metadata()
        kept, advance = self.kept(metadata)
        opened = metadata.attributes(READ)
        for _ in range(3 * 24 * 6):
            looked_up = metadata.looked_up
            shown = kept.of(opened)
            assert tokens.read(shown).ends_ms >= metadata.now_ms + 10 * 60_000
            due = tokens.read(shown).ends_ms - metadata.now_ms <= HOUR_MS // 2
            if due:
                wait_until(lambda before=looked_up: metadata.looked_up > before, 15, "it is not renewed")
                wait_until(lambda old=shown: kept.of(opened) != old, 15, "the new one is not shown")
            advance(600)
        assert 72 <= metadata.looked_up <= 144 + 10
        kept.close()

    def test_while_no_nameserver_answers_the_old_one_is_shown_at_once(self) -> None:
        metadata = Metadata()
        kept, advance = self.kept(metadata)
        opened = metadata.attributes(READ)
        assert kept.of(opened) == opened.token
        metadata.is_away = True
        advance(3000)
        assert kept.of(opened) == opened.token
        kept.close()

    def test_a_right_that_lacks_is_asked_for(self) -> None:
        metadata = Metadata()
        kept, advance = self.kept(metadata)
        listed = metadata.attributes(READ)
        assert kept.of(listed) == listed.token
        advance(1)
        assert tokens.read(kept.of(listed, WRITE)).rights == READ | WRITE
        assert tokens.read(kept.of(listed, WRITE)).rights == READ | WRITE
        assert metadata.looked_up == 1

    def test_a_refused_one_is_renewed_at_once(self) -> None:
        metadata = Metadata()
        kept, advance = self.kept(metadata)
        opened = metadata.attributes(READ)
        kept.of(opened)
        advance(1)
        kept.refused(opened)
        assert kept.of(opened) != opened.token
        assert metadata.looked_up == 1

    def test_a_clock_that_was_set_back_leaves_no_refused_token_in_use(self) -> None:
        metadata = Metadata()
        kept, advance = self.kept(metadata)
        earlier = metadata.attributes(READ | WRITE)
        advance(60)
        opened = metadata.attributes(READ | WRITE)
        assert kept.of(opened) == opened.token
        metadata.now_ms -= 24 * HOUR_MS
        kept.refused(opened)
        shown = kept.of(opened)
        assert tokens.read(shown).signed_ms == metadata.now_ms
        assert kept.of(earlier) == earlier.token
        kept.refused(earlier)
        advance(60)
        assert kept.of(earlier) == kept.of(opened) == kept.of(earlier) != shown
        assert tokens.read(kept.of(opened)).signed_ms == metadata.now_ms
        assert metadata.looked_up == 2

    def test_without_tokens_nothing_is_asked(self) -> None:
        metadata = Metadata()
        kept, _ = self.kept(metadata)
        assert kept.of(Attributes(inode=INODE, file_id=FILE), WRITE) == b""
        assert metadata.looked_up == 0


# ---------------------------------------------------------------- what a stranger can send


@contextmanager
def serving(site: Site, **limits: float) -> Iterator[tuple[DataServer, tuple[str, int]]]:
    listener = socket.create_server(("127.0.0.1", 0))
    server = DataServer(site.store, listener, Authority("d0", Lease(), NameserverLink("127.0.0.1:1", "d0")),
                        door=site.door, **limits)  # type: ignore[arg-type]
    thread = threading.Thread(target=server.serve)
    thread.start()
    try:
        yield server, listener.getsockname()
    finally:
        server.stop(0.1)
        thread.join(15)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Site, tuple[str, int]]]:
    site = Site(tmp_path_factory.mktemp("served") / "data")
    site.make_file()
    with serving(site) as (server, address):
        server._refused = Rates(1e6, 1e6)
        yield site, address
    site.store.close()


def test_requests_of_one_client_beyond_its_rate_wait_and_those_of_another_do_not(site: Site) -> None:
    site.make_file()
    took = {}
    with serving(site, requests_per_second=5) as (_, address):
        for client, count in (("mount a", 9), ("mount b", 5)):
            channel = connect(*address, stall_timeout_seconds=30)
            channel.send(DataRequest(identity=IdentityOperation()))
            channel.send(DataRequest(proof=proof(client, nonce=channel.expect(DataReply).nonce)))
            began = time.monotonic()
            for _ in range(count):
                channel.send(DataRequest(token=token(), length=LengthOperation(file_id=FILE)))
                assert channel.expect(DataReply).status == OK
            took[client] = time.monotonic() - began
            channel.close()
    assert took["mount a"] > max(0.7, took["mount b"])


def test_a_source_that_is_refused_often_is_answered_late(site: Site) -> None:
    with serving(site) as (server, address):
        server._refused = Rates(10, 3)
        channel = connect(*address, stall_timeout_seconds=30)
        began = time.monotonic()
        for _ in range(8):
            channel.send(DataRequest(token=b"none", length=LengthOperation(file_id=FILE)))
            assert channel.expect(DataReply).status == TOKEN_REFUSED
        assert time.monotonic() - began > 0.4
        channel.close()


def names(site: Site) -> set[Path]:
    return {path for path in site.store.directory.rglob("*") if path.is_file()}


def answer_to(address: tuple[str, int], data: bytes) -> DataReply | None:
    channel = connect(*address, stall_timeout_seconds=5)
    try:
        channel.send_bytes([data])
        channel.socket.shutdown(socket.SHUT_WR)
        return channel.receive(DataReply)
    except ConnectionLost:
        return None
    finally:
        channel.close()


requests = st.builds(
    lambda name, size, shown, relay: DataRequest(token=shown, **{name: {
        "append": AppendOperation(file_id=FILE, inode=INODE, length=size, chunk_size=1 << 20, epoch=1, relay=relay),
        "write": WriteOperation(file_id=OTHER, base=FILE, relay=relay, size=size),
        "length": LengthOperation(file_id=FILE, strong=True, others=relay, epoch=1),
    }.get(name, OPERATIONS[name][0])}),
    st.sampled_from(sorted(OPERATIONS)), st.integers(0, 2**62), st.binary(max_size=60),
    st.lists(st.builds(Replica, dataserver_id=st.text(max_size=3), host=st.just("127.0.0.1"),
                       port=st.integers(0, 2**32 - 1)), max_size=20))


sent = st.one_of(
    st.binary(max_size=300),
    st.binary(max_size=300).map(lambda body: HEADER.pack(MAGIC, len(body)) + body),
    st.tuples(st.integers(0, 2**32 - 1), st.binary(max_size=40)).map(
        lambda pair: HEADER.pack(MAGIC, pair[0]) + pair[1]),
    requests.map(encode))


@given(data=sent)
@settings(max_examples=300)
def test_nothing_that_a_stranger_sends_is_carried_out(served: tuple[Site, tuple[str, int]], data: bytes) -> None:
    site, address = served
    before = names(site)
    reply = answer_to(address, data)
    assert reply is None or reply.status in (INVALID, TOKEN_REFUSED) or (reply.status == OK and reply.dataserver_id)
    assert reply is None or (not reply.file_size and not reply.length and not reply.contents and not reply.records)
    assert names(site) == before


def test_the_server_goes_on_after_all_that(served: tuple[Site, tuple[str, int]]) -> None:
    _, address = served
    channel = Channel(socket.create_connection(address))
    with suppress(ConnectionLost):
        channel.send(DataRequest(length=LengthOperation(file_id=FILE), token=token()))
    assert channel.expect(DataReply).status == OK
    channel.close()
