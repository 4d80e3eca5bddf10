"""Links, special files, extended attributes and sessions as requests, without a network."""

import random

import pytest

from speedwell.fs import paths
from speedwell.fs.errors import (
    AlreadyExists,
    InvalidArgument,
    NameTooLong,
    NoSpace,
    NoSuchAttribute,
    NoSuchFile,
    NotADirectory,
    NotPermitted,
    TooManyLocks,
)
from speedwell.fs.nameserver.locks import sessions
from speedwell.fs.nameserver.service.asking import asking
from speedwell.fs.nameserver.service.service import NameserverService
from speedwell.fs.nameserver.service.settings import Settings
from speedwell.fs.proto import speedwell_pb2 as pb
from speedwell.fs.store import MemoryStore

LEASE_SECONDS = 5.0
GRACE_SECONDS = 60.0


class Bench:
    """A service with clocks in the test's hands and one dataserver."""

    def __init__(self, store: MemoryStore | None = None) -> None:
        self.store = store or MemoryStore()
        self.now_seconds = 1000.0
        self.service = self.start()
        self.beat()

    def start(self) -> NameserverService:
        self.service = NameserverService(
            self.store, Settings(deletion_grace_seconds=GRACE_SECONDS, session_lease_seconds=LEASE_SECONDS),
            generator=random.Random(1), clock_ns=lambda: int(self.now_seconds * 1e9),
            clock_seconds=lambda: self.now_seconds)
        return self.service

    def beat(self) -> list[str]:
        return list(self.service.dataservers.heartbeat(pb.HeartbeatRequest(
            server=pb.Replica(dataserver_id="d0", host="10.0.0.1", port=7000), capacity_bytes=1000,
            available_bytes=500, term=self.service.provenance.term, inventory_complete=True)).delete)

    def create(self, path: bytes) -> pb.Attributes:
        return self.service.create(pb.CreateRequest(path=path, mode=0o644)).attributes

    def lookup(self, path: bytes) -> pb.Attributes:
        return self.service.lookup(pb.LookupRequest(path=path)).attributes

    def mkdir(self, path: bytes, mode: int = 0o755, gid: int = 0) -> pb.Attributes:
        return self.service.make_directory(pb.MakeDirectoryRequest(path=path, mode=mode, gid=gid)).attributes

    def remove(self, path: bytes, session: int = 0) -> pb.Attributes:
        return self.service.remove(pb.RemoveRequest(path=path, session=session)).removed

    def link(self, source: bytes, destination: bytes) -> pb.Attributes:
        return self.service.posix.link(pb.LinkRequest(source=source, destination=destination)).attributes

    def rename(self, source: bytes, destination: bytes, **fields: bool) -> pb.Attributes:
        return self.service.rename(pb.RenameRequest(source=source, destination=destination, **fields)).replaced

    def set_xattr(self, name: bytes, value: bytes, **fields: bool) -> pb.Attributes:
        return self.service.posix.set_extended_attribute(pb.SetExtendedAttributeRequest(
            path=b"/f", extended_attribute=pb.ExtendedAttribute(name=name, value=value), **fields)).attributes

    def xattrs(self, path: bytes = b"/f") -> dict[bytes, bytes]:
        reply = self.service.posix.list_extended_attributes(pb.ListExtendedAttributesRequest(path=path))
        return {each.name: each.value for each in reply.extended_attributes}

    def file_count(self) -> int:
        return self.service.statistics(pb.StatisticsRequest()).files


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_hard_link_is_the_same_file_and_counts_the_names(bench: Bench) -> None:
    file = bench.create(b"/f")
    bench.now_seconds += 1
    linked = bench.link(b"/f", b"/g")
    assert (linked.inode, linked.link_count) == (file.inode, 2)
    assert linked.ctime_ns > file.ctime_ns
    assert linked.mtime_ns == file.mtime_ns
    assert bench.lookup(b"/f") == bench.lookup(b"/g")
    assert bench.file_count() == 1
    assert bench.remove(b"/f").link_count == 1
    assert bench.lookup(b"/g").inode == file.inode
    assert bench.remove(b"/g").link_count == 0
    bench.now_seconds += GRACE_SECONDS
    assert bench.beat() == [file.file_id]


def test_a_link_is_refused_for_directories_and_taken_names(bench: Bench) -> None:
    bench.mkdir(b"/d")
    bench.create(b"/f")
    with pytest.raises(NotPermitted):
        bench.link(b"/d", b"/e")
    with pytest.raises(AlreadyExists):
        bench.link(b"/f", b"/d")
    with pytest.raises(NoSuchFile):
        bench.link(b"/x", b"/y")


def test_replacing_one_of_two_names_by_rename_keeps_the_file(bench: Bench) -> None:
    file, other = bench.create(b"/f"), bench.create(b"/other")
    bench.link(b"/f", b"/g")
    replaced = bench.rename(b"/other", b"/f")
    assert (replaced.inode, replaced.link_count) == (file.inode, 1)
    assert bench.lookup(b"/f").inode == other.inode
    assert bench.lookup(b"/g").link_count == 1
    bench.now_seconds += GRACE_SECONDS
    assert bench.beat() == []


def test_renaming_onto_another_name_of_the_same_file_changes_nothing(bench: Bench) -> None:
    bench.create(b"/f")
    bench.link(b"/f", b"/g")
    bench.rename(b"/f", b"/g")
    assert bench.lookup(b"/f") == bench.lookup(b"/g")


def test_a_symbolic_link_keeps_its_target_and_is_not_followed(bench: Bench) -> None:
    made = bench.service.posix.make_symbolic_link(
        pb.MakeSymbolicLinkRequest(path=b"/l", target=b"a/../b", uid=7)).attributes
    assert (made.type, made.target, made.size, made.mode, made.uid) == (pb.SYMBOLIC_LINK, b"a/../b", 6, 0o777, 7)
    assert bench.lookup(b"/l") == made
    with pytest.raises(NotADirectory):
        bench.lookup(b"/l/x")
    with pytest.raises(NameTooLong):
        bench.service.posix.make_symbolic_link(pb.MakeSymbolicLinkRequest(path=b"/m", target=b"x" * 4096))
    with pytest.raises(InvalidArgument):
        bench.service.posix.make_symbolic_link(pb.MakeSymbolicLinkRequest(path=b"/m"))


def test_special_files_keep_their_device_and_take_no_space(bench: Bench) -> None:
    made = bench.service.posix.make_special(pb.MakeSpecialRequest(
        path=b"/n", type=pb.CHARACTER_DEVICE, mode=0o600, device=(1 << 40) + 3)).attributes
    assert (made.type, made.device, made.size) == (pb.CHARACTER_DEVICE, (1 << 40) + 3, 0)
    with pytest.raises(InvalidArgument, match="type"):
        bench.service.posix.make_special(pb.MakeSpecialRequest(path=b"/o", type=pb.DIRECTORY))
    with pytest.raises(AlreadyExists):
        bench.create(b"/n")
    bench.remove(b"/n")
    assert bench.file_count() == 0


def test_what_is_made_in_a_setgid_directory_belongs_to_its_group(bench: Bench) -> None:
    bench.mkdir(b"/d", 0o2755, gid=42)
    assert bench.create(b"/d/f").gid == 42
    below = bench.mkdir(b"/d/e", 0o755)
    assert (below.gid, below.mode) == (42, 0o2755)


def test_a_new_owner_takes_the_setuid_bit_from_a_file_but_not_from_a_directory(bench: Bench) -> None:
    bench.create(b"/f")
    bench.mkdir(b"/d")
    for path, mode in ((b"/f", 0o777), (b"/d", 0o6777)):
        bench.service.set_attributes(pb.SetAttributesRequest(path=path, mode=0o6777))
        changed = bench.service.set_attributes(pb.SetAttributesRequest(path=path, uid=5)).attributes
        assert (changed.mode, changed.uid) == (mode, 5)


def test_exchange_swaps_a_file_and_a_directory_in_different_places(bench: Bench) -> None:
    bench.mkdir(b"/d")
    file, inner = bench.create(b"/f"), bench.mkdir(b"/d/inner")
    bench.create(b"/d/inner/x")
    bench.rename(b"/f", b"/d/inner", exchange=True)
    assert bench.lookup(b"/f").inode == inner.inode
    assert bench.lookup(b"/d/inner").inode == file.inode
    assert bench.lookup(b"/f/x").inode
    assert (bench.lookup(b"/").link_count, bench.lookup(b"/d").link_count) == (4, 2)


def test_exchange_needs_both_and_neither_inside_the_other(bench: Bench) -> None:
    bench.mkdir(b"/d")
    bench.create(b"/d/f")
    with pytest.raises(NoSuchFile):
        bench.rename(b"/d", b"/x", exchange=True)
    for source, destination in ((b"/d", b"/d/f"), (b"/d/f", b"/d")):
        with pytest.raises(InvalidArgument):
            bench.rename(source, destination, exchange=True)
    with pytest.raises(InvalidArgument):
        bench.rename(b"/d", b"/d", exchange=True, no_replace=True)


def test_extended_attributes_are_set_listed_replaced_and_removed(bench: Bench) -> None:
    before = bench.create(b"/f")
    bench.now_seconds += 1
    after = bench.set_xattr(b"user.a", b"\0value")
    assert (before.has_extended_attributes, after.has_extended_attributes) == (False, True)
    assert (after.ctime_ns > before.ctime_ns, after.mtime_ns) == (True, before.mtime_ns)
    bench.set_xattr(b"user.b", b"")
    assert bench.xattrs() == {b"user.a": b"\0value", b"user.b": b""}
    with pytest.raises(AlreadyExists):
        bench.set_xattr(b"user.a", b"x", create=True)
    with pytest.raises(NoSuchAttribute):
        bench.set_xattr(b"user.c", b"x", replace=True)
    bench.set_xattr(b"user.a", b"new", replace=True)
    bench.service.posix.remove_extended_attribute(pb.RemoveExtendedAttributeRequest(path=b"/f", name=b"user.b"))
    with pytest.raises(NoSuchAttribute):
        bench.service.posix.remove_extended_attribute(pb.RemoveExtendedAttributeRequest(path=b"/f", name=b"user.b"))
    assert bench.xattrs() == {b"user.a": b"new"}


def test_extended_attributes_have_limits_that_change_nothing_when_passed(bench: Bench) -> None:
    bench.create(b"/f")
    bench.set_xattr(b"user." + b"n" * 250, b"v" * 65536)
    with pytest.raises(InvalidArgument):
        bench.set_xattr(b"user.x", b"v" * 65537)
    with pytest.raises(InvalidArgument):
        bench.set_xattr(b"user." + b"n" * 251, b"v")
    with pytest.raises(NoSpace):
        bench.set_xattr(b"user.y", b"v" * 65536)
    assert len(bench.xattrs()) == 1


def test_a_file_without_a_name_lives_as_long_as_the_session_that_has_it_open(bench: Bench) -> None:
    file = bench.create(b"/f")
    assert bench.remove(b"/f", session=9).link_count == 0
    with pytest.raises(NoSuchFile):
        bench.lookup(b"/f")
    assert bench.lookup(paths.of_inode(file.inode)).file_id == file.file_id
    bench.service.commit(pb.CommitRequest(inode=file.inode, file_id=file.file_id, size=10))
    bench.service.sessions.release(pb.ReleaseRequest(session=10, inodes=[file.inode]))  # not its own
    for _ in range(20):
        bench.now_seconds += LEASE_SECONDS
        bench.service.sessions.renew_session(pb.RenewSessionRequest(session=9))
        assert bench.beat() == []
    assert bench.lookup(paths.of_inode(file.inode)).size == 10


def test_a_session_that_ends_or_falls_silent_loses_its_files_without_a_name(bench: Bench) -> None:
    files = [bench.create(b"/%d" % number) for number in range(3)]
    for number, file in enumerate(files):
        bench.remove(b"/%d" % number, session=number + 1)
        assert bench.lookup(paths.of_inode(file.inode)).link_count == 0
    bench.service.sessions.release(pb.ReleaseRequest(session=1, inodes=[files[0].inode]))
    bench.service.sessions.end_session(pb.EndSessionRequest(session=2))
    for file in files[:2]:
        with pytest.raises(NoSuchFile):
            bench.lookup(paths.of_inode(file.inode))
    bench.now_seconds += LEASE_SECONDS
    bench.beat()
    assert bench.lookup(paths.of_inode(files[2].inode)).inode
    bench.now_seconds += 0.1
    bench.beat()
    with pytest.raises(NoSuchFile):
        bench.lookup(paths.of_inode(files[2].inode))
    assert bench.file_count() == 0


def test_after_a_restart_of_the_nameserver_a_session_has_a_whole_lease(bench: Bench) -> None:
    file = bench.create(b"/f")
    bench.remove(b"/f", session=9)
    bench.now_seconds += 100 * LEASE_SECONDS
    bench.start()
    bench.beat()
    assert bench.lookup(paths.of_inode(file.inode)).inode
    bench.now_seconds += LEASE_SECONDS + 0.1
    bench.beat()
    with pytest.raises(NoSuchFile):
        bench.lookup(paths.of_inode(file.inode))


def test_one_client_does_not_take_the_sessions_of_the_others(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MAX_OF_A_CLIENT", 3)

    def begin(client: str, session: int) -> None:
        monkeypatch.setattr(asking, "client", client)
        bench.service.sessions.renew_session(pb.RenewSessionRequest(session=session))

    for session in (1, 2, 3, 3):
        begin("mount greedy", session)
    with pytest.raises(TooManyLocks, match="sessions of one client"):
        begin("mount greedy", 4)
    with pytest.raises(TooManyLocks):
        bench.service.sessions.lock(pb.LockRequest(session=4, inode=1, last=2**63 - 1, action=pb.LockRequest.ACQUIRE))
    begin("mount modest", 5)
    begin("", 6)
    bench.service.sessions.end_session(pb.EndSessionRequest(session=2))
    begin("mount greedy", 4)
    with pytest.raises(TooManyLocks):
        begin("mount greedy", 7)
    bench.now_seconds += LEASE_SECONDS + 1
    begin("mount greedy", 8)
