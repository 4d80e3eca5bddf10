"""What is removed and kept: that it is gone for everybody, comes back whole, and goes for good in time."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from speedwell.fs import paths
from speedwell.fs.errors import AlreadyExists, DirectoryNotEmpty, NoSuchFile, QuotaExceeded
from speedwell.fs.nameserver.namespace import deletions
from speedwell.fs.nameserver.namespace.namespace import Namespace
from speedwell.fs.nameserver.namespace.namespace_records import Content, Inode
from speedwell.fs.nameserver.namespace.quotas import Limits
from speedwell.fs.nameserver.namespace.trash import Removed
from speedwell.fs.store import MemoryStore

DAY_NS = 86_400 * 10**9
NOW_NS = 100 * DAY_NS
MODE: dict[str, Any] = {"mode": 0o700, "uid": 3, "gid": 4, "now_ns": NOW_NS}


class Names:
    """A namespace with /k, whose removed files are kept for a day."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.made = 0
        self.restart()
        self.namespace.make_directory(b"/k", **MODE)
        self.namespace.trash.set_policy(b"/k", DAY_NS)

    def restart(self) -> None:
        self.namespace = Namespace(self.store, now_ns=0, deletion_grace_ns=0)

    def create(self, path: bytes, size_bytes: int = 10) -> Inode:
        self.made += 1
        content = Content(self.made.to_bytes(16, "big"), 1 << 20, 1, (5,))
        inode = self.namespace.create(path, exclusive=True, new_content=lambda: content, **MODE)[0]
        return self.namespace.contents.commit(inode.number, content.file_id, size_bytes, mtime_ns=None, now_ns=NOW_NS)

    def remove(self, path: bytes, now_ns: int = NOW_NS, session: int = 0) -> Inode:
        return self.namespace.remove_file(path, now_ns=now_ns, session=session)

    def trash(self) -> list[Removed]:
        return self.namespace.trash.entries_after(0, 0, 100)

    def kept(self) -> list[bytes]:
        return [entry.path for entry in self.trash()]

    def restore(self, path: bytes, new: bytes | None = None) -> Inode:
        entry = next(entry for entry in self.trash() if entry.path == path)
        return self.namespace.trash.restore(entry.due_ns, entry.inode.number, new or path, now_ns=NOW_NS)

    def deleted(self) -> int:
        """How many contents are to be deleted."""
        return len(deletions.due(self.store, 5, 1000 * DAY_NS))


@pytest.fixture
def names() -> Names:
    return Names()


def test_a_removed_file_is_gone_and_comes_back_with_everything(names: Names) -> None:
    before = names.create(b"/k/f", 77)
    names.namespace.extended_attributes.set(b"/k/f", b"user.a", b"b", now_ns=NOW_NS)
    files = names.namespace.superblocks.file_count
    assert names.remove(b"/k/f").link_count == 0
    with pytest.raises(NoSuchFile):
        names.namespace.tree.lookup(b"/k/f")
    assert names.namespace.superblocks.file_count == files - 1
    assert names.deleted() == 0
    names.restart()
    assert names.kept() == [b"/k/f"]
    assert names.trash()[0].removed_ns == NOW_NS
    names.restore(b"/k/f")
    after = names.namespace.tree.lookup(b"/k/f")
    assert (after.number, after.mode, after.uid, after.link_count) == (before.number, 0o700, 3, 1)
    assert (after.content, after.extended_attributes) == (before.content, {b"user.a": b"b"})
    assert names.kept() == []
    assert names.namespace.superblocks.file_count == files


def test_after_its_time_it_goes_for_good_some_at_once(names: Names) -> None:
    for number in range(5):
        names.create(b"/k/%d" % number)
        names.remove(b"/k/%d" % number, NOW_NS + number)
    assert names.namespace.trash.expire(NOW_NS + DAY_NS - 1) == 0
    assert names.namespace.trash.expire(NOW_NS + DAY_NS + 3, limit=3) == 3
    assert names.namespace.trash.expire(NOW_NS + DAY_NS + 3) == 1
    assert names.kept() == [b"/k/4"]
    assert names.deleted() == 4
    entry = names.trash()[0]
    place = (entry.due_ns, entry.inode.number)
    assert names.namespace.trash.purge([place, place], now_ns=NOW_NS) == 1
    assert names.namespace.trash.purge([place], now_ns=NOW_NS) == 0
    with pytest.raises(NoSuchFile, match="not in the trash any more"):
        names.namespace.trash.restore(*place, b"/k/4", now_ns=NOW_NS)
    assert names.deleted() == 5


def test_a_removed_tree_comes_back_entry_by_entry(names: Names) -> None:
    names.namespace.make_directory(b"/k/d", **MODE)
    names.create(b"/k/d/f")
    with pytest.raises(DirectoryNotEmpty):
        names.namespace.remove_directory(b"/k/d", now_ns=NOW_NS)
    names.remove(b"/k/d/f")
    assert names.namespace.remove_directory(b"/k/d", now_ns=NOW_NS).link_count == 0
    directories = names.namespace.superblocks.directory_count
    with pytest.raises(NoSuchFile):
        names.restore(b"/k/d/f")
    names.restore(b"/k/d")
    names.restore(b"/k/d/f")
    assert names.namespace.tree.lookup(b"/k/d").link_count == 2
    assert names.namespace.tree.lookup(b"/k").link_count == 3
    assert names.namespace.superblocks.directory_count == directories + 1
    assert names.namespace.tree.lookup(b"/k/d/f").size_bytes == 10


def test_a_name_that_is_taken_is_not_replaced(names: Names) -> None:
    names.create(b"/k/f", 1)
    names.remove(b"/k/f")
    names.create(b"/k/f", 2)
    with pytest.raises(AlreadyExists):
        names.restore(b"/k/f")
    names.restore(b"/k/f", b"/old")
    assert names.namespace.tree.lookup(b"/old").size_bytes == 1


def test_only_the_last_name_and_only_removing_fills_the_trash(names: Names) -> None:
    names.create(b"/k/a")
    names.create(b"/k/b")
    names.namespace.link(b"/k/a", b"/k/c", now_ns=NOW_NS)
    names.remove(b"/k/a")
    names.namespace.rename(b"/k/b", b"/k/c", no_replace=False, now_ns=NOW_NS)
    assert names.kept() == []
    assert names.deleted() == 1


def test_the_nearest_policy_holds(names: Names) -> None:
    names.namespace.make_directory(b"/k/not", **MODE)
    names.namespace.trash.set_policy(b"/k/not", 0)
    names.restart()
    for path in (b"/k/f", b"/k/not/f", b"/f"):
        names.create(path)
        names.remove(path)
    assert names.kept() == [b"/k/f"]
    names.namespace.trash.set_policy(b"/k", 0)
    assert [policy.path for policy in names.namespace.trash.policies.values()] == [b"/k/not"]
    names.namespace.remove_directory(b"/k/not", now_ns=NOW_NS)
    names.restart()
    assert names.namespace.trash.policies == {}


def test_a_file_that_is_open_goes_into_the_trash_when_it_is_closed(names: Names) -> None:
    names.create(b"/k/f")
    names.remove(b"/k/f", session=7)
    assert names.kept() == []
    names.restart()
    names.namespace.release(7, NOW_NS + 5)
    entry, = names.trash()
    assert (entry.path, entry.removed_ns, entry.due_ns) == (b"/k/f", NOW_NS, NOW_NS + 5 + DAY_NS)


def test_what_is_in_the_trash_counts_toward_no_quota(names: Names) -> None:
    names.namespace.quotas.set(b"/k", Limits(size_bytes=100))
    names.create(b"/k/f", 80)
    names.remove(b"/k/f")
    assert names.namespace.quotas.of(b"/k")[0].used_bytes == 0
    names.create(b"/k/g", 80)
    with pytest.raises(QuotaExceeded):
        names.restore(b"/k/f")
    names.remove(b"/k/g")
    names.restore(b"/k/f")
    record = names.namespace.quotas.of(b"/k")[0]
    assert (record.used_bytes, record.used_files) == (80, 2)


def test_a_file_in_the_trash_is_not_cut_or_written_over(names: Names) -> None:
    inode = names.create(b"/k/f")
    held = names.create(b"/k/held")
    names.remove(b"/k/f")
    names.remove(b"/k/held", session=7)
    for number in (inode.number, held.number):
        content = names.namespace.tree.inode(number).content
        assert content is not None
        made = replace(content, file_id=number.to_bytes(16, "little"))
        cut: Callable[[], Any] = partial(names.namespace.contents.truncate, paths.of_inode(number), now_ns=NOW_NS,
                                         new_content=lambda old, new=made: new)
        published: Callable[[], Any] = partial(
            names.namespace.contents.publish, number, content.file_id, content.size_bytes, made.file_id, 3,
            epoch=content.epoch, mtime_ns=None, requester=5, now_ns=NOW_NS)
        if number == held.number:
            published()
            cut()
        else:
            for change in (cut, published):
                with pytest.raises(NoSuchFile, match="was removed"):
                    change()
    assert names.restore(b"/k/f").content == inode.content
    names.remove(b"/k/f")
    assert names.kept() == [b"/k/f"]
