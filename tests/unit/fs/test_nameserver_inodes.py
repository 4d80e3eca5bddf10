"""Requests that name a file by its inode, or by its directory's inode and its name there."""

import random
from collections.abc import Iterator

import pytest

from speedwell.fs import paths
from speedwell.fs.errors import InvalidArgument, InvalidName, NoSuchFile, NotADirectory
from speedwell.fs.nameserver.namespace import namespace_records as records
from speedwell.fs.nameserver.service.service import NameserverService
from speedwell.fs.nameserver.service.settings import Settings
from speedwell.fs.proto import speedwell_pb2 as pb
from speedwell.fs.store import Batch, MemoryStore

KEEP_NS = 10**12


class Bench:
    """A service with one dataserver."""

    def __init__(self, store: MemoryStore | None = None) -> None:
        self.service = NameserverService(store or MemoryStore(), Settings(), generator=random.Random(1),
                                         clock_ns=lambda: 10**12, clock_seconds=lambda: 1000.0)
        self.service.dataservers.heartbeat(pb.HeartbeatRequest(
            server=pb.Replica(dataserver_id="d0", host="10.0.0.1", port=7000), capacity_bytes=1000,
            available_bytes=500, term=self.service.provenance.term, inventory_complete=True))

    def create(self, path: bytes) -> pb.Attributes:
        return self.service.create(pb.CreateRequest(path=path, mode=0o644)).attributes

    def mkdir(self, path: bytes) -> bytes:
        """The new directory's path by inode."""
        return paths.of_inode(self.service.make_directory(pb.MakeDirectoryRequest(path=path)).attributes.inode)

    def lookup(self, path: bytes) -> pb.Attributes:
        return self.service.lookup(pb.LookupRequest(path=path)).attributes

    def remove(self, path: bytes, *, directory: bool = False) -> pb.RemoveReply:
        return self.service.remove(pb.RemoveRequest(path=path, directory=directory))

    def rename(self, source: bytes, destination: bytes, *, exchange: bool = False) -> None:
        self.service.rename(pb.RenameRequest(source=source, destination=destination, exchange=exchange))


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_name_in_a_directory_leads_to_the_same_file_wherever_the_directory_is(bench: Bench) -> None:
    directory = bench.mkdir(b"/d")
    made = bench.create(paths.join(directory, b"f"))
    assert made.path == b"/d/f"
    assert bench.lookup(b"/d/f").inode == bench.lookup(paths.join(directory, b"f")).inode == made.inode
    bench.rename(b"/d", b"/moved")
    assert bench.lookup(paths.join(directory, b"f")).inode == made.inode
    assert bench.create(paths.join(directory, b"g")).path == b"/moved/g"
    reply = bench.remove(paths.join(directory, b"f"))
    assert reply.removed.inode == made.inode and paths.of_inode(reply.directory.inode) == directory


def test_who_names_a_path_knows_it(bench: Bench) -> None:
    assert bench.create(b"/f").path == b""


def test_a_directory_does_not_move_into_itself_or_over_one_that_holds_it(bench: Bench) -> None:
    outer = bench.mkdir(b"/outer")
    inner = bench.mkdir(paths.join(outer, b"inner"))
    root = paths.of_inode(1)
    with pytest.raises(InvalidArgument, match="inside the directory"):
        bench.rename(paths.join(root, b"outer"), paths.join(inner, b"x"))
    with pytest.raises(InvalidArgument, match="inside the other"):
        bench.create(paths.join(inner, b"f"))
        bench.rename(paths.join(root, b"outer"), paths.join(inner, b"f"), exchange=True)
    assert paths.of_inode(bench.lookup(b"/outer/inner").inode) == inner


def test_nothing_is_made_below_what_is_no_directory_or_was_removed(bench: Bench) -> None:
    file = paths.of_inode(bench.create(b"/f").inode)
    with pytest.raises(NotADirectory):
        bench.create(paths.join(file, b"x"))
    directory = bench.mkdir(b"/d")
    bench.remove(b"/d", directory=True)
    with pytest.raises(NoSuchFile):
        bench.create(paths.join(directory, b"x"))


def test_nothing_is_made_in_a_directory_in_the_trash_and_the_trash_knows_where_it_was(bench: Bench) -> None:
    bench.service.trash.set_trash(pb.SetTrashRequest(path=b"/", keep_ns=KEEP_NS))
    outer = bench.mkdir(b"/outer")
    inner = bench.mkdir(paths.join(outer, b"inner"))
    bench.create(paths.join(inner, b"f"))
    bench.rename(b"/outer", b"/moved")
    bench.remove(paths.join(inner, b"f"))
    bench.remove(paths.join(outer, b"inner"), directory=True)
    with pytest.raises(NoSuchFile, match="was removed"):
        bench.create(paths.join(inner, b"x"))
    assert {entry.path for entry in bench.service.trash.entries(pb.TrashRequest()).entries} == {
        b"/moved/inner", b"/moved/inner/f"}


def test_quotas_are_told_of_an_inode_with_the_paths_their_directories_have_now(bench: Bench) -> None:
    outer = bench.mkdir(b"/outer")
    bench.service.quota.set_quota(pb.SetQuotaRequest(path=b"/outer", max_files=9))
    file = bench.create(paths.join(bench.mkdir(paths.join(outer, b"inner")), b"f"))
    bench.rename(paths.join(paths.of_inode(1), b"outer"), paths.join(paths.of_inode(1), b"moved"))
    quotas = bench.service.quota.quotas(pb.QuotasRequest(path=paths.of_inode(file.inode))).quotas
    assert [quota.path for quota in quotas] == [b"/moved"]
    assert [quota.path for quota in bench.service.quota.quotas(pb.QuotasRequest()).quotas] == [b"/moved"]


@pytest.mark.parametrize("bad", [b"/\0", b"/\0x", b"/\0-1/a", b"/\x001//a", b"/\x001/..", b"/\x001/a\0b",
                                 b"/\0" + b"9" * 20, b"/\0" + b"9" * 20 + b"/a"])
def test_what_names_no_inode_is_refused(bench: Bench, bad: bytes) -> None:
    with pytest.raises(InvalidName):
        bench.lookup(bad)


def test_an_inode_without_a_name_is_not_renamed_or_removed(bench: Bench) -> None:
    directory = bench.mkdir(b"/d")
    for request in (lambda: bench.rename(directory, b"/x"), lambda: bench.rename(b"/d", directory),
                    lambda: bench.remove(directory, directory=True)):
        with pytest.raises(InvalidName):
            request()
    assert paths.of_inode(bench.lookup(b"/d").inode) == directory


class StoreWithoutScans(MemoryStore):
    """Fails where a directory's entries are gone through, once `closed`."""

    closed = False

    def iterate(self, start: bytes, stop: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        assert not self.closed or not start.startswith(records.DENTRY_PREFIX)
        return super().iterate(start, stop)


def test_where_a_directory_lies_is_told_without_a_look_through_the_one_above() -> None:
    bench = Bench(store := StoreWithoutScans())
    inner = bench.mkdir(paths.join(bench.mkdir(b"/outer"), b"inner"))
    other = bench.mkdir(b"/other")
    store.closed = True
    assert bench.create(paths.join(inner, b"f")).path == b"/outer/inner/f"
    bench.rename(b"/outer", b"/other", exchange=True)
    assert bench.create(paths.join(inner, b"g")).path == b"/other/inner/g"
    bench.rename(b"/other/inner", b"/outer/there")
    assert bench.create(paths.join(inner, b"h")).path == b"/outer/there/h"
    assert bench.create(paths.join(other, b"i")).path == b"/outer/i"


def test_a_directory_of_an_earlier_version_is_found_in_the_one_above() -> None:
    bench = Bench(store := MemoryStore())
    directory = bench.mkdir(b"/d")
    key = records.inode_key(int(directory[2:]))
    record = pb.InodeRecord.FromString(store.get(key) or b"")
    record.ClearField("name")
    batch = Batch()
    batch.put(key, record.SerializeToString())
    store.write(batch)
    assert bench.create(paths.join(directory, b"f")).path == b"/d/f"


def test_quotas_are_told_of_a_file_whose_last_directory_is_gone(bench: Bench) -> None:
    outer = bench.mkdir(b"/outer")
    bench.service.quota.set_quota(pb.SetQuotaRequest(path=b"/outer", max_files=9))
    file = bench.create(paths.join(outer, b"f"))
    bench.mkdir(paths.join(outer, b"gone"))
    bench.service.posix.link(pb.LinkRequest(source=paths.of_inode(file.inode), destination=b"/outer/gone/name"))
    bench.remove(b"/outer/gone/name")
    bench.remove(b"/outer/gone", directory=True)
    quotas = bench.service.quota.quotas(pb.QuotasRequest(path=paths.of_inode(file.inode))).quotas
    assert [(quota.path, quota.used_files) for quota in quotas] == [(b"/outer", 2)]
