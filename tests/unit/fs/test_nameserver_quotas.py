"""Quotas of directories: what is refused, and that the counters are a recount's at any time."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from speedwell.fs.errors import CrossesQuota, QuotaExceeded, SpeedwellError
from speedwell.fs.nameserver.namespace import deletions, quotas
from speedwell.fs.nameserver.namespace import namespace_records as records
from speedwell.fs.nameserver.namespace.namespace import Namespace
from speedwell.fs.nameserver.namespace.namespace_records import Content, Inode
from speedwell.fs.nameserver.namespace.quotas import Limits
from speedwell.fs.store import MemoryStore, end_of_prefix

MODE: dict[str, Any] = {"mode": 0o755, "uid": 0, "gid": 0, "now_ns": 1}


class Names:
    """A namespace with short ways to fill it."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.made = 0
        self.restart()

    def restart(self) -> None:
        self.namespace = Namespace(self.store, now_ns=0, deletion_grace_ns=0)

    def content(self, *_: object) -> Content:
        self.made += 1
        return Content(self.made.to_bytes(16, "big"), 1 << 20, 1, (5,))

    def mkdir(self, path: bytes) -> None:
        self.namespace.make_directory(path, **MODE)

    def create(self, path: bytes, size_bytes: int = 0) -> Inode:
        inode = self.namespace.create(path, exclusive=True, new_content=self.content, **MODE)[0]
        return self.append(path, size_bytes) if size_bytes else inode

    def append(self, path: bytes, size_bytes: int) -> Inode:
        inode = self.namespace.tree.lookup(path)
        assert inode.content is not None
        return self.namespace.contents.commit(inode.number, inode.content.file_id, inode.size_bytes + size_bytes,
                                              mtime_ns=None, now_ns=1)

    def publish(self, path: bytes, size_bytes: int) -> Inode:
        inode = self.namespace.tree.lookup(path)
        assert inode.content is not None
        return self.namespace.contents.publish(
            inode.number, inode.content.file_id, inode.size_bytes, self.content().file_id, size_bytes,
            epoch=inode.content.epoch, mtime_ns=None, requester=5, now_ns=1)

    def rename(self, source: bytes, destination: bytes, **options: Any) -> None:
        self.namespace.rename(source, destination, **{"no_replace": False, "now_ns": 1, **options})

    def quota(self, path: bytes, size_bytes: int | None = None, files: int | None = None) -> None:
        self.namespace.quotas.set(path, Limits(size_bytes, files))
        while self.namespace.quotas.count():
            pass

    def used(self, path: bytes) -> tuple[int, int]:
        """Bytes and files that count toward the innermost quota of `path`."""
        record = self.namespace.quotas.of(path)[0]
        assert record.path == path
        return record.used_bytes, record.used_files


@pytest.fixture
def names() -> Names:
    made = Names()
    made.mkdir(b"/q")
    made.mkdir(b"/other")
    return made


def test_names_that_are_too_many_are_refused_and_leave_nothing(names: Names) -> None:
    names.quota(b"/q", files=3)
    names.create(b"/q/a")
    names.mkdir(b"/q/d")
    before = dict(names.store.iterate(b""))
    for refused in (lambda: names.create(b"/q/b"), lambda: names.mkdir(b"/q/d/e"),
                    lambda: names.namespace.make_symbolic_link(b"/q/s", b"a", uid=0, gid=0, now_ns=1),
                    lambda: names.namespace.make_special(b"/q/p", 4, mode=0o644, uid=0, gid=0, device=0, now_ns=1),
                    lambda: names.rename(b"/other", b"/q/other")):
        with pytest.raises(QuotaExceeded, match="the quota on /q allows 3 files and directories"):
            refused()
    assert dict(names.store.iterate(b"")) == before
    names.namespace.link(b"/q/a", b"/q/d/a", now_ns=1)  # another name is no other file
    names.namespace.remove_file(b"/q/a", now_ns=1)
    with pytest.raises(QuotaExceeded):
        names.create(b"/q/b")
    names.namespace.remove_file(b"/q/d/a", now_ns=1)
    names.create(b"/q/b")


def test_a_published_version_that_is_too_long_is_refused_and_its_content_deleted(names: Names) -> None:
    names.quota(b"/q", size_bytes=100)
    names.create(b"/q/a", 60)
    names.create(b"/q/b", 30)
    with pytest.raises(QuotaExceeded, match="the quota on /q allows 100 B, this would be 1 B too much"):
        names.publish(b"/q/a", 71)
    assert names.made.to_bytes(16, "big") in deletions.due(names.store, 5, 2)
    assert names.publish(b"/q/a", 70).size_bytes == 70
    assert names.used(b"/q") == (100, 3)
    assert names.publish(b"/q/a", 10).size_bytes == 10


def test_acknowledged_appends_count_and_are_never_refused(names: Names) -> None:
    names.quota(b"/q", size_bytes=100)
    names.create(b"/q/a", 300)
    assert names.used(b"/q") == (300, 2)
    assert names.namespace.accounting.room(names.namespace.tree.lookup(b"/q/a").quota) == 0
    names.namespace.contents.truncate(b"/q/a", new_content=names.content, now_ns=1)
    assert names.namespace.accounting.room(names.namespace.tree.lookup(b"/q/a").quota) == 100


def test_a_quota_on_a_directory_with_content_counts_it_in_steps_and_over_restarts(names: Names) -> None:
    names.mkdir(b"/q/d")
    for number in range(40):
        names.create(b"/q/%d" % number, 1)
        names.create(b"/q/d/%d" % number, 2)
    names.namespace.quotas.set(b"/q", Limits(size_bytes=1000))
    assert names.namespace.quotas.count(entries=7)
    assert names.namespace.quotas.of(b"/q")[0].counting
    names.create(b"/q/d/new", 5)
    names.create(b"/q/00", 5)
    names.namespace.remove_file(b"/q/39", now_ns=1)
    names.restart()
    steps = 0
    while names.namespace.quotas.count(entries=7):
        steps += 1
    assert steps > 10
    assert not names.namespace.quotas.of(b"/q")[0].counting
    assert names.used(b"/q") == (39 + 80 + 10, 1 + 1 + 39 + 40 + 2)


def test_quotas_inside_one_another_all_hold(names: Names) -> None:
    names.mkdir(b"/q/in")
    names.quota(b"/q", size_bytes=100)
    names.quota(b"/q/in", size_bytes=1000)
    names.create(b"/q/in/a", 40)
    assert names.used(b"/q") == (40, 3)
    assert names.used(b"/q/in") == (40, 2)
    with pytest.raises(QuotaExceeded, match="the quota on /q allows 100"):
        names.publish(b"/q/in/a", 101)
    assert names.namespace.quotas.clear(b"/q")
    assert not names.namespace.quotas.clear(b"/q")
    names.publish(b"/q/in/a", 101)
    assert [record.path for record in names.namespace.quotas.limited()] == [b"/q/in"]
    names.rename(b"/q/in", b"/other/in")
    names.quota(b"/q", size_bytes=100)
    assert names.used(b"/q") == (0, 1)
    assert names.used(b"/other/in") == (101, 2)


def test_renaming_into_and_out_of_a_quota_is_counted(names: Names) -> None:
    names.mkdir(b"/other/d")
    names.create(b"/other/d/f", 50)
    names.quota(b"/q", size_bytes=80)
    names.rename(b"/other/d", b"/q/d")
    assert names.used(b"/q") == (50, 3)
    names.create(b"/other/g", 31)
    with pytest.raises(QuotaExceeded):
        names.rename(b"/other/g", b"/q/g")
    names.rename(b"/other/g", b"/q/d/f")  # replaces what it needs the room of
    assert names.used(b"/q") == (31, 3)
    names.rename(b"/q/d", b"/other/d")
    assert names.used(b"/q") == (0, 1)


def test_what_would_count_toward_two_quotas_or_move_too_much_is_refused(names: Names,
                                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    names.quota(b"/q", size_bytes=80)
    names.create(b"/other/f")
    with pytest.raises(CrossesQuota):
        names.namespace.link(b"/other/f", b"/q/f", now_ns=1)
    names.namespace.link(b"/other/f", b"/other/g", now_ns=1)
    with pytest.raises(CrossesQuota, match="several names"):
        names.rename(b"/other/f", b"/q/f")
    names.create(b"/q/e")
    with pytest.raises(CrossesQuota, match="exchanged"):
        names.rename(b"/other/f", b"/q/e", exchange=True)
    names.mkdir(b"/other/d")
    for number in range(20):
        names.create(b"/other/d/%d" % number)
    monkeypatch.setattr(quotas, "MAX_MOVED", 20)
    with pytest.raises(CrossesQuota, match="more than 20 files below it"):
        names.rename(b"/other/d", b"/q/d")
    names.namespace.remove_file(b"/other/d/0", now_ns=1)
    names.rename(b"/other/d", b"/q/d")
    assert names.used(b"/q") == (0, 22)


def test_a_file_that_is_open_without_a_name_counts_until_it_is_released(names: Names) -> None:
    names.quota(b"/q", size_bytes=100)
    names.create(b"/q/a", 60)
    names.namespace.remove_file(b"/q/a", now_ns=1, session=7)
    assert names.used(b"/q") == (60, 2)
    names.namespace.remove_directory(b"/q", now_ns=1)
    names.namespace.release(7, 1)
    assert list(names.namespace.accounting.all()) == []


NAMES = (b"a", b"b")
PLACES = [b"/" + first for first in NAMES] + [b"/" + first + b"/" + second for first in NAMES for second in NAMES] + [
    b"/" + first + b"/" + second + b"/" + third for first in NAMES for second in NAMES for third in NAMES]
places = st.sampled_from(PLACES)


class Counters(RuleBasedStateMachine):
    """Any operations in any order: what is allowed is not asked here, only what is counted."""

    def __init__(self) -> None:
        super().__init__()
        self.names = Names()

    def attempt(self, operation: Any, *arguments: Any, **options: Any) -> None:
        with suppress(SpeedwellError, AssertionError):
            operation(*arguments, **options)

    @rule(path=places, size_bytes=st.integers(0, 50))
    def create(self, path: bytes, size_bytes: int) -> None:
        self.attempt(self.names.create, path, size_bytes)

    @rule(path=places)
    def mkdir(self, path: bytes) -> None:
        self.attempt(self.names.mkdir, path)

    @rule(path=places, size_bytes=st.integers(1, 50))
    def append(self, path: bytes, size_bytes: int) -> None:
        self.attempt(self.names.append, path, size_bytes)

    @rule(path=places, size_bytes=st.integers(0, 100))
    def publish(self, path: bytes, size_bytes: int) -> None:
        self.attempt(self.names.publish, path, size_bytes)

    @rule(path=places)
    def truncate(self, path: bytes) -> None:
        self.attempt(self.names.namespace.contents.truncate, path, new_content=self.names.content, now_ns=1)

    @rule(path=places, session=st.sampled_from([0, 7]))
    def remove(self, path: bytes, session: int) -> None:
        self.attempt(self.names.namespace.remove_file, path, now_ns=1, session=session)

    @rule(path=places)
    def rmdir(self, path: bytes) -> None:
        self.attempt(self.names.namespace.remove_directory, path, now_ns=1)

    @rule()
    def release(self) -> None:
        self.attempt(self.names.namespace.release, 7, 1)

    @rule(source=places, destination=places, exchange=st.booleans(), session=st.sampled_from([0, 7]))
    def rename(self, source: bytes, destination: bytes, exchange: bool, session: int) -> None:
        self.attempt(self.names.rename, source, destination, exchange=exchange, session=session)

    @rule(source=places, destination=places)
    def link(self, source: bytes, destination: bytes) -> None:
        self.attempt(self.names.namespace.link, source, destination, now_ns=1)

    @rule(path=st.sampled_from([b"/", *PLACES]), size_bytes=st.none() | st.integers(0, 200),
          files=st.none() | st.integers(1, 8))
    def set_quota(self, path: bytes, size_bytes: int | None, files: int | None) -> None:
        self.attempt(self.names.namespace.quotas.set, path, Limits(size_bytes, files))

    @rule(path=places)
    def clear_quota(self, path: bytes) -> None:
        self.attempt(self.names.namespace.quotas.clear, path)

    @rule(entries=st.integers(1, 4))
    def count(self, entries: int) -> None:
        self.names.namespace.quotas.count(entries)

    @rule()
    def restart(self) -> None:
        self.names.restart()

    @invariant()
    def counters_are_those_of_a_recount(self) -> None:
        accounting = self.names.namespace.accounting
        inodes = [Inode.decode(records.inode_number(key), value) for key, value in self.names.store.iterate(
            b"i", end_of_prefix(b"i"))]
        counted: dict[int, list[int]] = {number: [0, 0] for number, _ in accounting.all()}
        for inode in inodes:
            for number, _ in accounting.chain(inode.quota):
                counted[number][0] += inode.size_bytes
                counted[number][1] += 1
        assert counted == {number: [record.used_bytes, record.used_files] for number, record in accounting.all()}
        if not any(record.counting for _, record in accounting.all()):
            self.everything_counts_where_it_lies(1, 0)

    def everything_counts_where_it_lies(self, directory: int, around: int) -> None:
        tree = self.names.namespace.tree
        inode = tree.inode(directory)
        if inode.quota == directory:
            assert self.names.namespace.accounting.get(directory).above == around
        else:
            assert inode.quota == around
        prefix = records.dentry_key(directory, b"")
        for _, value in self.names.store.iterate(prefix, end_of_prefix(prefix)):
            kind, number = records.decode_dentry(value)
            if kind == records.DIRECTORY:
                self.everything_counts_where_it_lies(number, inode.quota)
            elif tree.inode(number).link_count == 1:
                assert tree.inode(number).quota == inode.quota


TestCounters = Counters.TestCase
TestCounters.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)
