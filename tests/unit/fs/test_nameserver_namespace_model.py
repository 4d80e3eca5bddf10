"""Random histories: the namespace answers what the machine's own filesystem answers."""

import errno
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from speedwell.fs.errors import SpeedwellError
from speedwell.fs.nameserver.namespace import deletions
from speedwell.fs.nameserver.namespace.namespace import Namespace
from speedwell.fs.nameserver.namespace.namespace_records import Content
from speedwell.fs.store import MemoryStore

NAMES = (b"a", b"b", b"c")
choices = st.integers(0, 10**6)
"""Draws a path: see `NamespaceComparison.path`."""


class NamespaceComparison(RuleBasedStateMachine):
    """Runs each operation on a namespace and on a local directory."""

    def __init__(self) -> None:
        super().__init__()
        self.root = tempfile.mkdtemp(prefix="speedwell-model-").encode()
        self.store = MemoryStore()
        self.now_ns = 0
        self.namespace = Namespace(self.store, now_ns=0, deletion_grace_ns=0)
        self.file_ids = 0

    def teardown(self) -> None:
        shutil.rmtree(self.root)

    def local(self, path: bytes) -> bytes:
        return self.root + path

    def path(self, choice: int) -> bytes:
        """A path that exists, or could exist, or whose parent does not or is a file: mostly the former."""
        known: list[bytes] = []
        for folder, _, filenames in os.walk(self.root):
            path = folder[len(self.root):]
            known += [path + b"/" + name for name in NAMES]
            known += [path + b"/" + name + b"/" + NAMES[0] for name in filenames]
        known.append(b"/missing/a")
        return sorted(known)[choice % len(known)]

    def content(self, *_: object) -> Content:
        self.file_ids += 1
        return Content(self.file_ids.to_bytes(16, "big"), 1 << 20, 1, (5,))

    def compare(self, ours: Callable[[], Any], local: Callable[[], Any]) -> Any:
        self.now_ns += 1
        try:
            local()
            expected = 0
        except OSError as error:
            expected = error.errno or -1
        result = None
        try:
            result = ours()
            answered = 0
        except SpeedwellError as error:
            answered = error.errno
        assert errno.errorcode.get(answered) == errno.errorcode.get(expected)
        return result

    @rule(choice=choices, exclusive=st.booleans())
    def create(self, choice: int, exclusive: bool) -> None:
        path = self.path(choice)
        flags = os.O_CREAT | os.O_WRONLY | (os.O_EXCL if exclusive else 0)
        self.compare(lambda: self.namespace.create(path, mode=0o644, uid=0, gid=0, exclusive=exclusive,
                                                   new_content=self.content, now_ns=self.now_ns),
                     lambda: os.close(os.open(self.local(path), flags)))

    @rule(choice=choices)
    def make_directory(self, choice: int) -> None:
        path = self.path(choice)
        self.compare(lambda: self.namespace.make_directory(path, mode=0o755, uid=0, gid=0, now_ns=self.now_ns),
                     lambda: os.mkdir(self.local(path)))  # noqa: PTH102

    @rule(choice=choices)
    def remove_file(self, choice: int) -> None:
        path = self.path(choice)
        self.compare(lambda: self.namespace.remove_file(path, now_ns=self.now_ns),
                     lambda: os.unlink(self.local(path)))  # noqa: PTH108

    @rule(choice=choices)
    def remove_directory(self, choice: int) -> None:
        path = self.path(choice)
        self.compare(lambda: self.namespace.remove_directory(path, now_ns=self.now_ns),
                     lambda: os.rmdir(self.local(path)))  # noqa: PTH106

    @rule(source_choice=choices, destination_choice=choices)
    def rename(self, source_choice: int, destination_choice: int) -> None:
        source, destination = self.path(source_choice), self.path(destination_choice)
        self.compare(lambda: self.namespace.rename(source, destination, no_replace=False, now_ns=self.now_ns),
                     lambda: os.rename(self.local(source), self.local(destination)))  # noqa: PTH104

    @rule(choice=choices, size_bytes=st.integers(1, 100))
    def grow(self, choice: int, size_bytes: int) -> None:
        path = self.path(choice)
        local = Path(os.fsdecode(self.local(path)))
        if not local.is_file():
            return
        inode = self.namespace.tree.lookup(path)
        assert inode.content is not None
        size_bytes += inode.content.size_bytes
        self.namespace.contents.commit(inode.number, inode.content.file_id, size_bytes, mtime_ns=None,
                                       now_ns=self.now_ns)
        os.truncate(local, size_bytes)

    @rule(choice=choices)
    def truncate(self, choice: int) -> None:
        path = self.path(choice)
        self.compare(lambda: self.namespace.contents.truncate(path, new_content=self.content, now_ns=self.now_ns),
                     lambda: os.close(os.open(self.local(path), os.O_WRONLY | os.O_TRUNC)))

    @precondition(lambda self: self.file_ids > 0)
    @rule()
    def restart(self) -> None:
        self.namespace = Namespace(self.store, now_ns=0, deletion_grace_ns=0)

    @invariant()
    def the_trees_are_equal(self) -> None:
        files, directories, used = 0, 0, set()
        for folder, subfolders, filenames in os.walk(self.root):
            directories += 1
            files += len(filenames)
            path = folder[len(self.root):] or b"/"
            directory, entries, more = self.namespace.tree.names(path, b"", 100)
            assert not more
            assert [name for name, *_ in entries] == sorted(subfolders + filenames)
            assert directory.link_count == 2 + len(subfolders)
            for name, kind, number in entries:
                inode = self.namespace.tree.inode(number)
                assert inode.kind == kind
                assert inode.is_directory == (name in subfolders)
                if inode.content is not None:
                    assert inode.link_count == 1
                    assert inode.content.size_bytes == os.stat(os.path.join(folder, name)).st_size  # noqa: PTH116, PTH118
                    used.add(inode.content.file_id)
        superblocks = self.namespace.superblocks
        assert (superblocks.file_count, superblocks.directory_count) == (files, directories)
        # Every content ever made is in use or waits to be deleted, and none is both.
        waiting = set(deletions.due(self.store, 5, self.now_ns))
        assert len(used) + len(waiting) == self.file_ids
        assert not used & waiting


TestNamespaceComparison = NamespaceComparison.TestCase
TestNamespaceComparison.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
