"""The namespace, operation by operation. test_nameserver_namespace_model.py compares whole histories."""

import errno
import uuid
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from speedwell.fs.errors import SpeedwellError, StaleFile, StorageFailed
from speedwell.fs.nameserver.namespace import deletions
from speedwell.fs.nameserver.namespace.namespace import Namespace
from speedwell.fs.nameserver.namespace.namespace_records import Content, Inode
from speedwell.fs.nameserver.replicas.replica_set import Configuration
from speedwell.fs.store import Batch, LevelDBStore, MemoryStore, Store

GRACE_NS = 1000


class Tree:
    """A namespace with a clock that moves on by one at each operation, and short names for its methods."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.now_ns = 0
        self.namespace = Namespace(store, now_ns=0, deletion_grace_ns=GRACE_NS)
        self._file_ids = (number.to_bytes(16, "big") for number in count(1))

    def tick(self) -> int:
        self.now_ns += 1
        return self.now_ns

    def content(self, *_: object) -> Content:
        return Content(next(self._file_ids), 1 << 20, 3, (0, 1, 2))

    def create(self, path: bytes, exclusive: bool = True) -> Inode:
        return self.namespace.create(path, mode=0o644, uid=1, gid=2, exclusive=exclusive,
                                     new_content=self.content, now_ns=self.tick())[0]

    def mkdir(self, path: bytes) -> Inode:
        return self.namespace.make_directory(path, mode=0o755, uid=1, gid=2, now_ns=self.tick())

    def remove(self, path: bytes) -> None:
        self.namespace.remove_file(path, now_ns=self.tick())

    def rmdir(self, path: bytes) -> None:
        self.namespace.remove_directory(path, now_ns=self.tick())

    def rename(self, source: bytes, destination: bytes, no_replace: bool = False) -> None:
        self.namespace.rename(source, destination, no_replace=no_replace, now_ns=self.tick())

    def truncate(self, path: bytes) -> Inode:
        return self.namespace.contents.truncate(path, new_content=self.content, now_ns=self.tick())

    def commit(self, inode: Inode, size_bytes: int, mtime_ns: int | None = None) -> Inode:
        assert inode.content is not None
        return self.namespace.contents.commit(inode.number, inode.content.file_id, size_bytes, mtime_ns=mtime_ns,
                                              origin=inode.content.origin, now_ns=self.tick())

    def listing(self, path: bytes) -> list[bytes]:
        return [name for name, *_ in self.namespace.tree.names(path, b"", 1000)[1]]

    def waiting_for_deletion(self, dataserver: int) -> set[bytes]:
        return set(deletions.due(self.store, dataserver, self.now_ns + GRACE_NS))

    def everything(self) -> list[tuple[bytes, bytes]]:
        return list(self.store.iterate(b""))


@pytest.fixture(params=["memory", "leveldb"])
def tree(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Tree]:
    store: Store = MemoryStore() if request.param == "memory" else LevelDBStore(tmp_path / "store")
    yield Tree(store)
    store.close()


def content_of(inode: Inode) -> Content:
    assert inode.content is not None
    return inode.content


def test_a_new_namespace_has_only_the_root(tree: Tree) -> None:
    root = tree.namespace.tree.lookup(b"/")
    assert (root.number, root.is_directory, root.mode, root.link_count) == (1, True, 0o755, 2)
    assert tree.listing(b"/") == []
    assert (tree.namespace.superblocks.file_count, tree.namespace.superblocks.directory_count) == (0, 1)


def test_a_created_file_is_found_with_what_it_was_created_with(tree: Tree) -> None:
    made = tree.create(b"/f")
    found = tree.namespace.tree.lookup(b"/f")
    assert found == made == tree.namespace.tree.inode(made.number)
    assert (found.mode, found.uid, found.gid, found.link_count) == (0o644, 1, 2, 1)
    assert (found.atime_ns, found.mtime_ns, found.ctime_ns) == (1, 1, 1)
    assert content_of(found).replicas == (0, 1, 2)


def test_creating_an_existing_file_returns_it_and_places_nothing(tree: Tree) -> None:
    made = tree.create(b"/f")

    def must_not_be_called() -> Content:
        raise AssertionError

    again, created = tree.namespace.create(b"/f", mode=0, uid=0, gid=0, exclusive=False,
                                       new_content=must_not_be_called, now_ns=9)
    assert (again, created) == (made, False)


def test_a_create_whose_placement_fails_leaves_nothing(tree: Tree) -> None:
    before = tree.everything()

    def no_server() -> Content:
        raise SpeedwellError("none")

    with pytest.raises(SpeedwellError):
        tree.namespace.create(b"/f", mode=0, uid=0, gid=0, exclusive=False, new_content=no_server, now_ns=9)
    assert tree.everything() == before


Operation = Callable[[Tree], object]

REFUSALS: dict[str, tuple[Operation, int]] = {
    "lookup of nothing": (lambda t: t.namespace.tree.lookup(b"/no"), errno.ENOENT),
    "lookup below nothing": (lambda t: t.namespace.tree.lookup(b"/no/no"), errno.ENOENT),
    "lookup below a file": (lambda t: t.namespace.tree.lookup(b"/f/x"), errno.ENOTDIR),
    "list of a file": (lambda t: t.namespace.tree.names(b"/f", b"", 10), errno.ENOTDIR),
    "exclusive create of a file": (lambda t: t.create(b"/f"), errno.EEXIST),
    "exclusive create of a directory": (lambda t: t.create(b"/d"), errno.EEXIST),
    "create of a directory": (lambda t: t.create(b"/d", exclusive=False), errno.EISDIR),
    "create of the root": (lambda t: t.create(b"/", exclusive=False), errno.EISDIR),
    "create below nothing": (lambda t: t.create(b"/no/f"), errno.ENOENT),
    "mkdir of a file": (lambda t: t.mkdir(b"/f"), errno.EEXIST),
    "mkdir of the root": (lambda t: t.mkdir(b"/"), errno.EEXIST),
    "mkdir below a file": (lambda t: t.mkdir(b"/f/d"), errno.ENOTDIR),
    "remove of nothing": (lambda t: t.remove(b"/no"), errno.ENOENT),
    "remove of a directory": (lambda t: t.remove(b"/d"), errno.EISDIR),
    "remove of the root": (lambda t: t.remove(b"/"), errno.EISDIR),
    "rmdir of a file": (lambda t: t.rmdir(b"/f"), errno.ENOTDIR),
    "rmdir of a full directory": (lambda t: t.rmdir(b"/d"), errno.ENOTEMPTY),
    "rmdir of the root": (lambda t: t.rmdir(b"/"), errno.EBUSY),
    "rename of nothing": (lambda t: t.rename(b"/no", b"/x"), errno.ENOENT),
    "rename into nothing": (lambda t: t.rename(b"/f", b"/no/x"), errno.ENOENT),
    "rename of a file over a directory": (lambda t: t.rename(b"/f", b"/e"), errno.EISDIR),
    "rename of a directory over a file": (lambda t: t.rename(b"/e", b"/f"), errno.ENOTDIR),
    "rename over a full directory": (lambda t: t.rename(b"/e", b"/d"), errno.ENOTEMPTY),
    "rename into itself": (lambda t: t.rename(b"/d", b"/d/x"), errno.EINVAL),
    "rename into its descendant": (lambda t: t.rename(b"/d", b"/d/s/x"), errno.EINVAL),
    "rename over an ancestor": (lambda t: t.rename(b"/d/s", b"/d"), errno.ENOTEMPTY),
    "rename without replacing": (lambda t: t.rename(b"/f", b"/g", no_replace=True), errno.EEXIST),
    "rename without replacing itself": (lambda t: t.rename(b"/f", b"/f", no_replace=True), errno.EEXIST),
    "rename of the root": (lambda t: t.rename(b"/", b"/x"), errno.EBUSY),
    "rename over the root": (lambda t: t.rename(b"/e", b"/"), errno.EBUSY),
    "truncate of a directory": (lambda t: t.truncate(b"/d"), errno.EISDIR),
    "truncate of nothing": (lambda t: t.truncate(b"/no"), errno.ENOENT),
    "path with dots": (lambda t: t.create(b"/d/../x"), errno.EINVAL),
    "long name": (lambda t: t.create(b"/" + b"n" * 256), errno.ENAMETOOLONG),
}


@pytest.mark.parametrize("what", REFUSALS)
def test_what_is_refused_answers_its_errno_and_changes_nothing(tree: Tree, what: str) -> None:
    for directory in (b"/d", b"/d/s", b"/e"):
        tree.mkdir(directory)
    tree.create(b"/f")
    tree.create(b"/g")
    before = tree.everything()
    operation, expected = REFUSALS[what]
    with pytest.raises(SpeedwellError) as caught:
        operation(tree)
    assert caught.value.errno == expected
    assert tree.everything() == before


def test_a_rename_replaces_a_file_in_one_step_and_queues_its_content(tree: Tree) -> None:
    kept, replaced = tree.create(b"/new"), tree.create(b"/old")
    tree.rename(b"/new", b"/old")
    assert tree.listing(b"/") == [b"old"]
    assert tree.namespace.tree.lookup(b"/old").number == kept.number
    assert tree.namespace.superblocks.file_count == 1
    assert tree.waiting_for_deletion(0) == {content_of(replaced).file_id}
    with pytest.raises(SpeedwellError):
        tree.namespace.tree.inode(replaced.number)


def test_a_renamed_directory_takes_along_what_is_below_it(tree: Tree) -> None:
    tree.mkdir(b"/a")
    tree.mkdir(b"/a/b")
    made = tree.create(b"/a/b/f")
    tree.mkdir(b"/z")
    tree.rename(b"/a", b"/z/moved")
    assert tree.namespace.tree.lookup(b"/z/moved/b/f").number == made.number
    assert tree.namespace.tree.lookup(b"/z").link_count == 3
    assert tree.namespace.tree.lookup(b"/").link_count == 3


@pytest.mark.parametrize("destination", [b"/empty", b"/d/empty"])
def test_a_directory_that_replaces_an_empty_one_keeps_the_link_counts_true(tree: Tree,
                                                                           destination: bytes) -> None:
    for directory in (b"/d", b"/moved", b"/moved/inside", destination):
        tree.mkdir(directory)
    tree.rename(b"/moved", destination)
    for path in (b"/", b"/d", destination):
        directory, entries, _ = tree.namespace.tree.names(path, b"", 10)
        assert directory.link_count == 2 + len(entries)
    assert tree.namespace.superblocks.directory_count == 4


def test_a_rename_onto_itself_changes_nothing(tree: Tree) -> None:
    tree.create(b"/f")
    before = tree.everything()
    tree.rename(b"/f", b"/f")
    assert tree.everything() == before


def test_changes_of_a_directory_set_its_times_and_no_others(tree: Tree) -> None:
    tree.mkdir(b"/d")
    for change in (lambda: tree.create(b"/d/f"), lambda: tree.mkdir(b"/d/s"),
                   lambda: tree.rename(b"/d/f", b"/d/g"), lambda: tree.remove(b"/d/g"),
                   lambda: tree.rmdir(b"/d/s")):
        root = tree.namespace.tree.lookup(b"/")
        change()
        directory = tree.namespace.tree.lookup(b"/d")
        assert (directory.mtime_ns, directory.ctime_ns) == (tree.now_ns, tree.now_ns)
        assert tree.namespace.tree.lookup(b"/") == root


def test_listings_come_in_pages_in_the_order_of_bytes(tree: Tree) -> None:
    names = sorted([b"%d" % number for number in range(25)] + [b"\xff", b"a\xff", b"a\xffb", b"B"])
    tree.mkdir(b"/d")
    tree.mkdir(b"/e")
    for name in reversed(names):
        tree.create(b"/d/" + name)
    tree.create(b"/e/other")
    seen: list[bytes] = []
    more = True
    while more:
        directory, entries, more = tree.namespace.tree.names(b"/d", seen[-1] if seen else b"", 7)
        assert directory.number == tree.namespace.tree.lookup(b"/d").number
        assert len(entries) == 7 or not more
        seen += [name for name, *_ in entries]
        found = [(tree.namespace.tree.lookup(b"/d/" + name), kind, number) for name, kind, number in entries]
        assert all((inode.kind, inode.number) == (kind, number) for inode, kind, number in found)
    assert seen == names


def test_a_full_last_page_says_that_there_is_no_more(tree: Tree) -> None:
    tree.create(b"/a")
    tree.create(b"/b")
    assert tree.namespace.tree.names(b"/", b"", 2)[2] is False
    assert tree.namespace.tree.names(b"/", b"", 1)[2] is True
    assert tree.namespace.tree.names(b"/", b"b", 2)[1:] == ([], False)


def test_set_attributes_changes_only_what_is_given(tree: Tree) -> None:
    made = tree.create(b"/f")
    changed = tree.namespace.set_attributes(b"/f", mode=0o600, uid=None, gid=7, atime_ns=-5, mtime_ns=None,
                                        now_ns=50)
    assert (changed.mode, changed.uid, changed.gid) == (0o600, made.uid, 7)
    assert (changed.atime_ns, changed.mtime_ns, changed.ctime_ns) == (-5, made.mtime_ns, 50)
    assert tree.namespace.tree.lookup(b"/f") == changed


# ------------------------------------------------------------------ contents


def test_truncation_gives_a_new_content_and_queues_the_old_one(tree: Tree) -> None:
    made = tree.create(b"/f")
    tree.commit(made, 100)
    truncated = tree.truncate(b"/f")
    assert truncated.number == made.number
    assert content_of(truncated).size_bytes == 0
    assert content_of(truncated).file_id != content_of(made).file_id
    assert tree.waiting_for_deletion(2) == {content_of(made).file_id}


def test_commits_only_grow_a_file(tree: Tree) -> None:
    made = tree.create(b"/f")
    assert content_of(tree.commit(made, 100, mtime_ns=77)).size_bytes == 100
    grown = tree.namespace.tree.lookup(b"/f")
    assert (grown.mtime_ns, grown.ctime_ns) == (77, tree.now_ns)
    assert tree.commit(made, 60, mtime_ns=88) == grown
    assert tree.commit(made, 100, mtime_ns=88) == grown


def test_a_commit_for_replaced_content_is_stale_and_for_a_removed_file_not_found(tree: Tree) -> None:
    made = tree.create(b"/f")
    tree.truncate(b"/f")
    with pytest.raises(StaleFile):
        tree.commit(made, 100)
    tree.remove(b"/f")
    with pytest.raises(SpeedwellError) as caught:
        tree.commit(made, 100)
    assert caught.value.errno == errno.ENOENT


def test_a_commit_for_a_content_from_which_later_versions_were_made_changes_nothing(tree: Tree) -> None:
    versions = [tree.create(b"/f")]
    for _ in range(3):
        base, version = content_of(versions[-1]), uuid.uuid4().bytes
        versions.append(tree.namespace.contents.publish(
            versions[-1].number, base.file_id, base.size_bytes, version, 500, epoch=base.epoch, mtime_ns=None,
            requester=base.replicas[0], now_ns=tree.tick()))
    newest = tree.namespace.tree.lookup(b"/f")
    assert len({content_of(version).file_id for version in versions}) == 4
    for version in versions[:-1]:
        assert tree.commit(version, 9_000) == newest == tree.namespace.tree.lookup(b"/f")
    assert content_of(tree.commit(versions[-1], 600)).size_bytes == 600
    tree.truncate(b"/f")
    for version in versions:
        with pytest.raises(StaleFile):
            tree.commit(version, 9_000)


def test_a_change_of_the_replicas_is_kept_and_counts_the_epoch(tree: Tree) -> None:
    made = tree.create(b"/f")
    file_id = content_of(made).file_id
    tree.namespace.contents.configure(made.number, file_id, lambda now: Configuration(now.epoch + 1, (0, 2)))
    content = content_of(tree.namespace.tree.lookup(b"/f"))
    assert (content.epoch, content.replicas) == (2, (0, 2))
    tree.truncate(b"/f")
    with pytest.raises(StaleFile):
        tree.namespace.contents.configure(made.number, file_id, lambda now: now)


def test_a_dataservers_report_repairs_only_a_shorter_length_of_the_same_content(tree: Tree) -> None:
    made = tree.create(b"/f")
    file_id = content_of(made).file_id

    def report(number: int, reported_id: bytes, size_bytes: int, reporter: int) -> bool:
        return tree.namespace.contents.repair_length(number, reported_id, size_bytes, reporter, now_ns=tree.tick())

    assert report(made.number, file_id, 10, 0)
    assert content_of(tree.namespace.tree.lookup(b"/f")).size_bytes == 10
    assert not report(made.number, file_id, 10, 0)
    assert not report(made.number, file_id, 9, 0)
    assert not report(made.number, bytes(16), 99, 0)
    assert not report(made.number, file_id, 99, 7)  # no replica of the file
    assert not report(made.number, file_id, 99, 1)  # not the primary
    assert not report(999, file_id, 99, 0)
    assert not report(1, file_id, 99, 0)  # a directory
    assert content_of(tree.namespace.tree.lookup(b"/f")).size_bytes == 10


def test_content_waits_for_its_grace_period_and_until_it_is_reported_gone(tree: Tree) -> None:
    made = tree.create(b"/f")
    file_id = content_of(made).file_id
    tree.remove(b"/f")
    removed_ns = tree.now_ns
    assert deletions.due(tree.store, 0, removed_ns + GRACE_NS - 1) == []
    assert deletions.due(tree.store, 0, removed_ns + GRACE_NS) == [file_id]
    assert deletions.due(tree.store, 0, removed_ns + GRACE_NS) == [file_id]
    assert deletions.due(tree.store, 0, removed_ns + GRACE_NS, [file_id]) == []
    assert deletions.due(tree.store, 0, removed_ns + GRACE_NS) == []
    assert deletions.due(tree.store, 1, removed_ns + GRACE_NS) == [file_id]


def test_a_long_deletion_queue_is_worked_off_heartbeat_by_heartbeat(tree: Tree) -> None:
    total = deletions.MAX_PER_HEARTBEAT + 50
    batch = Batch()
    for number in range(total):
        deletions.enqueue(batch, Content(number.to_bytes(16, "big"), 1, 1, ()), [3], due_ns=number)
    tree.store.write(batch)
    first = deletions.due(tree.store, 3, total)
    assert first == [number.to_bytes(16, "big") for number in range(deletions.MAX_PER_HEARTBEAT)]
    second = deletions.due(tree.store, 3, total, first)
    assert len(second) == 50
    assert deletions.due(tree.store, 3, total, second) == []


# ------------------------------------------------------------------ the store below


def test_everything_is_there_when_the_namespace_is_opened_again(tree: Tree) -> None:
    tree.mkdir(b"/d")
    made = tree.create(b"/d/f")
    again = Namespace(tree.store, now_ns=99, deletion_grace_ns=0)
    assert again.tree.lookup(b"/d/f") == made
    assert (again.superblocks.file_count, again.superblocks.directory_count) == (1, 2)
    other, _ = again.create(b"/g", mode=0, uid=0, gid=0, exclusive=True, new_content=tree.content, now_ns=99)
    assert other.number > made.number


def test_a_store_of_something_else_is_refused(tree: Tree) -> None:
    foreign = MemoryStore()
    batch = Batch()
    batch.put(b"somebody", b"else's")
    foreign.write(batch)
    with pytest.raises(StorageFailed, match="not a namespace"):
        Namespace(foreign, now_ns=0, deletion_grace_ns=0)


def test_a_namespace_of_another_format_is_refused(tree: Tree) -> None:
    batch = Batch()
    batch.put(b"!", b"\x00\x63" + bytes(24))
    tree.store.write(batch)
    with pytest.raises(StorageFailed, match="format 99"):
        Namespace(tree.store, now_ns=0, deletion_grace_ns=0)


def test_when_the_store_fails_nothing_has_changed(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    tree.create(b"/f")
    before = tree.everything()

    def full(batch: Batch) -> None:
        raise StorageFailed("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(tree.store, "write", full)
        for change in (lambda: tree.create(b"/g"), lambda: tree.remove(b"/f"), lambda: tree.mkdir(b"/d")):
            with pytest.raises(StorageFailed):
                change()
    assert tree.everything() == before
    assert (tree.namespace.superblocks.file_count, tree.namespace.superblocks.directory_count) == (1, 1)
    assert tree.create(b"/g").number == tree.namespace.tree.lookup(b"/f").number + 1
