"""Attributes a client has seen, for a short time and a bounded number of files.

A name leads to an inode, and an inode has attributes: whoever changes a file under one of its names, or by its inode,
changes it under all. What this client changes is seen by it at once: a change drops what is cached about it, and a
reply that was on its way meanwhile is not stored, because it may be older than the change. Thread-safe. Only files
that exist are cached, never that one does not exist.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import NamedTuple

from speedwell.fs import paths
from speedwell.fs.proto.speedwell_pb2 import Attributes

MAX_CHANGED = 8192


class Moment(NamedTuple):
    """When the nameserver was asked for something."""

    change: int
    """The last one of this client before it."""
    until: float
    """The answer may be told, by the cache's clock."""


NEVER = Moment(0, 0.0)
"""Of an answer that may not be told."""


class AttributeCache:
    """The least recently used entry leaves when there are more than `capacity`; for 0 `seconds` nothing is kept."""

    def __init__(self, seconds: float, capacity: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        self._keeps = seconds > 0 and capacity > 0
        self._capacity = capacity
        self._clock = clock
        self._names: OrderedDict[bytes, tuple[int, float]] = OrderedDict()
        self._inodes: OrderedDict[int, tuple[Attributes, float]] = OrderedDict()
        self._change = 0
        self._all_changed = 0
        self._changed: dict[bytes | int, int] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._names)

    def get(self, path: bytes) -> Attributes | None:
        """What is cached about `path` and not older than allowed."""
        with self._lock:
            found = self._find(path)
            if found is None:
                return None
            if self._clock() >= found[1]:
                self._drop(_key(path))
                return None
            if path in self._names:
                self._names.move_to_end(path)
            self._inodes.move_to_end(found[0].inode)
            return found[0]

    def seconds_left(self, path: bytes) -> float:
        """For how long what is cached about `path` may still be told; 0 for what is not cached."""
        with self._lock:
            found = self._find(path)
            return 0.0 if found is None else max(0.0, found[1] - self._clock())

    def changed_since(self, moment: Moment, keys: Iterable[bytes | int]) -> set[bytes | int]:
        """Those that this client changed: files and directories in which it changed something, by inode, and names,
        by path."""
        change = moment.change
        with self._lock:
            return set() if self._change == change else {one for one in keys if self._last_change(one) > change}

    def moment(self) -> Moment:
        """To be taken before asking the nameserver."""
        return Moment(self._change, self._clock() + self.seconds) if self._keeps else NEVER

    def fill(self, directory: bytes, moment: Moment, entries: Iterable[tuple[bytes, Attributes]]) -> None:
        """Store what was answered about paths in `directory`, unless this client changed something in it
        since the question was asked."""
        if not self._keeps:
            return
        with self._lock:
            if self._last_change(_key(directory)) > moment.change:
                return
            for path, attributes in entries:
                if self._last_change(attributes.inode) <= moment.change:
                    self._put(path, attributes, moment.until)
            self._make_room()

    def changed(self, path: bytes, attributes: Attributes | None = None) -> None:
        """This client changed `path`; `attributes` are those after the change, None if it is gone or they
        are not known."""
        with self._lock:
            key = _key(path)
            self._note_change(key)
            if isinstance(key, bytes):
                self._note_change(_key(paths.parent(path)))
            self._drop(key)
            if attributes is not None and self._keeps:
                self._note_change(attributes.inode)
                self._put(path, attributes, self._clock() + self.seconds)
                self._make_room()

    def changed_inode(self, attributes: Attributes) -> None:
        """This client changed a file it knows by inode, or has it from who did."""
        if not self._keeps:
            return
        with self._lock:
            self._note_change(attributes.inode)
            self._put(paths.of_inode(attributes.inode), attributes, self._clock() + self.seconds)
            self._make_room()

    def gone(self, path: bytes) -> None:
        """This client may have changed `path`. The directory above is dropped too: its times changed, to what is not
        known here."""
        self.changed(path)
        if not paths.is_inode(path):
            self.changed(paths.parent(path))

    def lost_name(self, attributes: Attributes) -> None:
        """This client removed a name of a file: these are its attributes then."""
        self.changed(paths.of_inode(attributes.inode), attributes if attributes.link_count else None)

    def changed_tree(self, path: bytes) -> None:
        """This client moved, removed or replaced `path`: all below it is unknown."""
        with self._lock:
            self._note_change_of_all()
            for known in [known for known in self._names if paths.is_within(known, path)]:
                self._drop(known)

    def clear(self) -> None:
        """Nothing is known any more."""
        with self._lock:
            self._note_change_of_all()
            self._names.clear()
            self._inodes.clear()

    def made(self, path: bytes, child: Attributes, *, is_directory: bool = False) -> None:
        """This client made `child`: the times of the directory above are the child's, as the nameserver set both in
        one step."""
        self.changed(path, child)
        directory = paths.parent(path)
        with self._lock:
            found = self._find(directory)
            self._note_change(_key(directory) if found is None else found[0].inode)
            if found is None:
                return
            renewed = Attributes()
            renewed.CopyFrom(found[0])
            renewed.mtime_ns = max(renewed.mtime_ns, child.ctime_ns)
            renewed.ctime_ns = max(renewed.ctime_ns, child.ctime_ns)
            renewed.link_count += int(is_directory)
            self._inodes[renewed.inode] = renewed, self._inodes[renewed.inode][1]

    # The caller holds the lock in everything below.

    def _find(self, path: bytes) -> tuple[Attributes, float] | None:
        """The attributes, and until when they and the name may be told."""
        name = self._names.get(path)
        if name is None:
            key = _key(path)
            return self._inodes.get(key) if isinstance(key, int) else None
        found = self._inodes.get(name[0])
        return None if found is None else (found[0], min(name[1], found[1]))

    def _put(self, path: bytes, attributes: Attributes, expires: float) -> None:
        inode = attributes.inode
        if not paths.is_inode(path):
            self._names[path] = inode, expires
            self._names.move_to_end(path)
        known = self._inodes.get(inode)
        if known is None or known[1] <= expires:
            self._inodes[inode] = attributes, expires
            self._inodes.move_to_end(inode)

    def _make_room(self) -> None:
        for kept in (self._names, self._inodes):
            while len(kept) > self._capacity:
                kept.popitem(last=False)

    def _drop(self, key: bytes | int) -> None:
        if isinstance(key, int):
            self._inodes.pop(key, None)
        elif key in self._names:
            self._inodes.pop(self._names.pop(key)[0], None)

    def _last_change(self, key: bytes | int) -> int:
        return max(self._all_changed, self._changed.get(key, 0))

    def _note_change(self, key: bytes | int) -> None:
        if len(self._changed) >= MAX_CHANGED:
            self._note_change_of_all()
        self._change += 1
        self._changed[key] = self._change

    def _note_change_of_all(self) -> None:
        self._change += 1
        self._all_changed = self._change
        self._changed.clear()


def _key(path: bytes) -> bytes | int:
    return int(path[2:]) if paths.is_inode(path) else path
