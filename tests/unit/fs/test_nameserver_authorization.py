"""What the nameserver checks of who has a certificate for some users, request by request, without a network."""

import random
import stat
import threading
from typing import Any, NamedTuple

import pytest
from google.protobuf.message import Message

from speedwell.fs import paths, tokens
from speedwell.fs.errors import InvalidName, NoSuchAttribute, NoSuchFile, NotAuthorised
from speedwell.fs.file_status import CAPABILITIES, STATUS
from speedwell.fs.identity.bundle import Peer
from speedwell.fs.identity.roles import MOUNT
from speedwell.fs.identity.scope import Scope
from speedwell.fs.nameserver.service.dispatch import Requests
from speedwell.fs.nameserver.service.service import NameserverService
from speedwell.fs.nameserver.service.settings import Settings
from speedwell.fs.proto import speedwell_pb2 as pb
from speedwell.fs.store import MemoryStore

ANNE, BEN = 1000, 1001


class Bench(NamedTuple):
    service: NameserverService
    requests: Requests

    def ask(self, kind: str, user: int | None = BEN, /, **fields: Any) -> Any:
        """As a mount for one user; for None as anybody who may do everything."""
        sender = None if user is None else Peer("m", MOUNT, "1", 2e9, Scope(((user, user),), ((user, user),)))
        request: Message = getattr(pb, f"{kind}Request")(**fields)
        reply = getattr(pb, f"{kind}Reply")
        return reply.FromString(self.requests.answer(kind, request.SerializeToString(), sender))

    def make(self, path: bytes, mode: int = 0o644, uid: int = ANNE) -> int:
        kind = "MakeDirectory" if path.endswith(b"d") else "Create"
        made = self.ask(kind, None, path=path, mode=mode, uid=uid, gid=uid)
        return int(made.attributes.inode)


@pytest.fixture
def bench() -> Bench:
    service = NameserverService(MemoryStore(), Settings(), generator=random.Random(1), clock_ns=lambda: 10**18,
                                clock_seconds=lambda: 1000.0)
    service.dataservers.heartbeat(pb.HeartbeatRequest(
        server=pb.Replica(dataserver_id="d0", host="10.0.0.1", port=7000), capacity_bytes=1000, available_bytes=500,
        term=service.provenance.term, inventory_complete=True))
    return Bench(service, Requests(service))


def test_of_a_directory_that_may_be_read_and_not_searched_names_are_told_alone(bench: Bench) -> None:
    directory, f = bench.make(b"/d", 0o744), bench.make(b"/d/f")
    for path in (b"/d", paths.of_inode(directory)):
        with pytest.raises(NotAuthorised):
            bench.ask("List", path=path)
        listed = bench.ask("List", path=path, columns=True, statuses=True)
        assert (list(listed.names), list(listed.inodes), listed.statuses) == ([b"f"], [f], b"")
    assert len(bench.ask("List", ANNE, path=b"/d", columns=True, statuses=True).statuses) == STATUS.size
    assert bench.ask("List", ANNE, path=b"/d").entries[0].attributes.token


@pytest.mark.parametrize("name", [b"f", b"d", b"d/f", b"d/d/f"])
def test_a_refusal_looks_at_as_much_whatever_is_there(bench: Bench, name: bytes,
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    bench.make(b"/closed", 0o700)
    for path in (b"/closed/f", b"/closed/d", b"/closed/d/f", b"/closed/d/d"):
        bench.make(path)
    looked: list[bytes] = []
    get = MemoryStore.get
    monkeypatch.setattr(MemoryStore, "get", lambda self, key: looked.append(key) or get(self, key))

    def refusal(path: bytes) -> tuple[str, int]:
        looked.clear()
        with pytest.raises(NotAuthorised) as refused:
            bench.ask("Lookup", path=path)
        return str(refused.value), len(looked)

    assert refusal(b"/closed/" + name) == refusal(b"/closed/none/" + name) == refusal(b"/closed/none")


def test_nobody_learns_the_session_of_who_has_a_lock(bench: Bench) -> None:
    f = bench.make(b"/f")
    lock = {"inode": f, "exclusive": True, "last": 9}
    assert bench.ask("Lock", ANNE, action=pb.LockRequest.ACQUIRE, session=7, owner=1, process=5, **lock).granted
    for action in (pb.LockRequest.TEST, pb.LockRequest.ACQUIRE):
        found = bench.ask("Lock", action=action, session=8, owner=1, **lock).conflict
        assert (found.session, found.process, found.last) == (0, 5, 9)


def test_who_may_write_to_a_file_takes_its_capabilities_and_nothing_else(bench: Bench) -> None:
    f = bench.make(b"/f", 0o646)
    with pytest.raises(NoSuchAttribute):
        bench.ask("RemoveExtendedAttribute", path=paths.of_inode(f), name=CAPABILITIES)
    for name in (CAPABILITIES, b"security.selinux"):
        bench.ask("SetExtendedAttribute", None, path=b"/f", extended_attribute=pb.ExtendedAttribute(name=name))
        with pytest.raises(NotAuthorised):
            bench.ask("SetExtendedAttribute", path=b"/f", extended_attribute=pb.ExtendedAttribute(name=name))
    bench.ask("RemoveExtendedAttribute", path=b"/f", name=CAPABILITIES)
    with pytest.raises(NotAuthorised):
        bench.ask("RemoveExtendedAttribute", path=b"/f", name=b"security.selinux")
    bench.make(b"/read-only")
    with pytest.raises(NotAuthorised):
        bench.ask("RemoveExtendedAttribute", path=b"/read-only", name=CAPABILITIES)


def test_who_may_write_to_a_file_takes_its_set_id_bits_and_changes_no_other(bench: Bench) -> None:
    bench.make(b"/f", 0o6757)
    for mode in (0o2757, 0o757):    # Ben is not in its group, so that setgid goes too
        bench.ask("SetAttributes", None, path=b"/f", mode=0o6757)
        assert stat.S_IMODE(bench.ask("SetAttributes", path=b"/f", mode=mode).attributes.mode) == 0o757
    bench.ask("SetAttributes", None, path=b"/f", mode=0o757)
    for mode in (0o4757, 0o777, 0o657, 0o1757):
        with pytest.raises(NotAuthorised):
            bench.ask("SetAttributes", path=b"/f", mode=mode)
    bench.make(b"/read-only", 0o4755)
    with pytest.raises(NotAuthorised):
        bench.ask("SetAttributes", path=b"/read-only", mode=0o755)


def test_nobody_writes_to_a_program_that_lends_another_ones_rights(bench: Bench) -> None:
    bench.make(b"/f", 0o666)

    def writes(user: int) -> bool:
        return bool(tokens.read(bench.ask("Lookup", user, path=b"/f").attributes.token).rights & tokens.WRITE)

    for mode, anne, ben in ((0o666, True, True), (0o4666, True, False), (0o2676, True, False), (0o2666, True, True)):
        bench.ask("SetAttributes", None, path=b"/f", mode=mode)
        assert (writes(ANNE), writes(BEN)) == (anne, ben), oct(mode)
    bench.ask("SetAttributes", None, path=b"/f", mode=0o2676, gid=BEN)
    assert (writes(ANNE), writes(BEN)) == (False, True)
    bench.ask("SetAttributes", BEN, path=b"/f", mode=0o676)
    bench.ask("SetExtendedAttribute", None, path=b"/f", extended_attribute=pb.ExtendedAttribute(name=CAPABILITIES))
    assert (writes(ANNE), writes(BEN)) == (False, False)
    bench.ask("RemoveExtendedAttribute", BEN, path=b"/f", name=CAPABILITIES)
    assert writes(ANNE) and writes(BEN)


def test_another_name_is_for_owners_or_for_plain_files_that_one_may_change(bench: Bench) -> None:
    bench.make(b"/home-d", 0o777, BEN)
    bench.make(b"/f", 0o666)
    bench.make(b"/read-only")
    bench.make(b"/setuid-file", 0o4666)
    bench.make(b"/setgid-file", 0o2676)
    bench.ask("MakeSymbolicLink", None, path=b"/link", target=b"f", uid=ANNE, gid=ANNE)
    for source in (b"/read-only", b"/setuid-file", b"/setgid-file", b"/link"):
        with pytest.raises(NotAuthorised):
            bench.ask("Link", source=source, destination=b"/home-d/" + source[1:])
        bench.ask("Link", ANNE, source=source, destination=b"/home-d/" + source[1:])
    bench.ask("Link", source=b"/f", destination=b"/home-d/f")


def test_users_attributes_are_of_files_and_directories_alone(bench: Bench) -> None:
    bench.make(b"/f", 0o666)
    bench.make(b"/d", 0o777)
    bench.ask("MakeSymbolicLink", None, path=b"/link", target=b"f", uid=ANNE, gid=ANNE)
    attribute = pb.ExtendedAttribute(name=b"user.a", value=b"b")
    for path in (b"/f", b"/d"):
        bench.ask("SetExtendedAttribute", path=path, extended_attribute=attribute)
    for user in (ANNE, BEN):
        with pytest.raises(NotAuthorised):
            bench.ask("SetExtendedAttribute", user, path=b"/link", extended_attribute=attribute)


def test_what_is_in_the_trash_or_held_open_is_not_found_around_its_directory(bench: Bench) -> None:
    bench.make(b"/d", 0o700)
    kept, held = bench.make(b"/d/kept"), bench.make(b"/d/open")
    bench.ask("Remove", ANNE, path=b"/d/open", session=7)
    bench.ask("SetTrash", None, path=b"/", keep_ns=10**15)
    bench.ask("Remove", ANNE, path=b"/d/kept")
    for uid in (ANNE, BEN):
        with pytest.raises(NoSuchFile):
            bench.ask("Lookup", uid, inode=kept)
    with pytest.raises(NotAuthorised):
        bench.ask("Lookup", inode=held)
    assert bench.ask("Lookup", ANNE, inode=held).attributes.token
    bench.ask("SetAttributes", None, path=b"/", mode=0o777)
    bench.ask("Remove", ANNE, path=b"/d", directory=True)
    assert bench.ask("Lookup", ANNE, inode=held).attributes.token     # its directory is gone, it is still open


def test_a_file_that_is_gone_can_be_locked_by_who_has_it_open(bench: Bench) -> None:
    f = bench.make(b"/f", uid=BEN)
    bench.ask("Remove", None, path=b"/f")
    assert bench.ask("Lock", inode=f, action=pb.LockRequest.ACQUIRE, session=8, last=9).granted


def test_nobody_waits_for_the_disk_while_it_is_forced(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    was_free = []

    def force() -> None:
        thread = threading.Thread(target=lambda: was_free.append(bench.service.guard.acquire(timeout=10)))
        thread.start()
        thread.join()

    monkeypatch.setattr(bench.service, "_force", force)
    bench.ask("Sync")
    assert was_free == [True]


@pytest.mark.parametrize("path", [b"", b"f", b"/\x00", b"/\x0099999999999999999999", b"/\x00x/f", b"//f", b"/d/../f"])
@pytest.mark.parametrize("kind", ["List", "Create", "Remove", "Truncate", "ListExtendedAttributes"])
def test_what_is_no_path_is_refused_in_words(bench: Bench, kind: str, path: bytes) -> None:
    with pytest.raises((InvalidName, NotAuthorised)):
        bench.ask(kind, path=path)


def test_who_is_revoked_while_the_request_waits_gets_no_token_that_counts() -> None:
    revoked: list[dict[str, str]] = [{}]
    service = NameserverService(MemoryStore(), Settings(), generator=random.Random(1), clock_ns=lambda: 10**18,
                                clock_seconds=lambda: 1000.0, revoked=lambda: revoked[-1])

    def heartbeat() -> None:
        service.dataservers.heartbeat(pb.HeartbeatRequest(
            server=pb.Replica(dataserver_id="d0", host="10.0.0.1", port=7000), capacity_bytes=1000,
            available_bytes=500, term=service.provenance.term, inventory_complete=True))

    heartbeat()
    requests = Requests(service)
    requests.answer("Create", pb.CreateRequest(path=b"/f", mode=0o644).SerializeToString())

    def token(serial: str) -> bytes:
        reply = requests.answer("Lookup", pb.LookupRequest(path=b"/f").SerializeToString(),
                                Peer("m", MOUNT, serial, 2e9))
        return pb.LookupReply.FromString(reply).attributes.token

    def notice(sender: Peer, name: str) -> None:
        revoked.append({"A": "mount m"})
        heartbeat()

    assert token("A")
    requests.permit = notice
    assert not token("A")
    assert token("B")
