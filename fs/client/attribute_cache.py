"""Attributes a client has seen, for a short time and a bounded number of files.

What this client changes is seen by it at once: a change drops what is cached about the path, and a reply
that was on its way meanwhile is not stored, because it may be older than the change. Times are monotonic
seconds, passed in. Thread-safe. Only files that exist are cached, never that one does not exist,
and never a file with several names.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterable

from fs import paths
from fs.proto.speedwell_pb2 import DIRECTORY, Attributes

MAX_CHANGED_DIRECTORIES = 4096

Moment = tuple[int, int]
"""When a question was asked, counted in changes of the whole cache and of one directory."""


class AttributeCache:
    """The least recently used entry leaves when there are more than `capacity`."""

    def __init__(self, seconds: float, capacity: int) -> None:
        self._seconds = seconds
        self._capacity = capacity
        self._entries: OrderedDict[bytes, tuple[Attributes, float]] = OrderedDict()
        self._paths_by_inode: dict[int, bytes] = {}
        self._changes_of_all = 0
        self._changes: dict[bytes, int] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, path: bytes, now_seconds: float) -> Attributes | None:
        """What is cached about `path` and not older than allowed."""
        with self._lock:
            entry = self._entries.get(path)
            if entry is None:
                return None
            if now_seconds >= entry[1]:
                self._drop(path)
                return None
            self._entries.move_to_end(path)
            return entry[0]

    def moment(self, directory: bytes) -> Moment:
        """To be taken before asking the nameserver about entries of `directory`."""
        with self._lock:
            return self._changes_of_all, self._changes.get(directory, 0)

    def fill(self, directory: bytes, moment: Moment, entries: Iterable[tuple[bytes, Attributes]],
             now_seconds: float) -> None:
        """Store what was answered about paths in `directory`, unless this client changed something in it
        since `moment`. `now_seconds` is when the question was asked."""
        expires = now_seconds + self._seconds
        with self._lock:
            if moment != (self._changes_of_all, self._changes.get(directory, 0)):
                return
            for path, attributes in entries:
                self._put(path, attributes, expires)

    def changed(self, path: bytes, attributes: Attributes | None, now_seconds: float) -> None:
        """This client changed `path`; `attributes` are those after the change, None if it is gone or they
        are not known."""
        with self._lock:
            self._count_change(paths.parent(path))
            self._drop(path)
            if attributes is not None:
                self._put(path, attributes, now_seconds + self._seconds)

    def changed_inode(self, attributes: Attributes, now_seconds: float) -> None:
        """This client changed a file it knows by inode: what is cached under its path is renewed."""
        with self._lock:
            path = self._paths_by_inode.get(attributes.inode)
            if path is None:
                self._count_change_of_all()  # its path is not known here: any answer on its way may be older
                return
            self._count_change(paths.parent(path))
            self._put(path, attributes, now_seconds + self._seconds)

    def changed_tree(self, path: bytes) -> None:
        """This client moved, removed or replaced `path`: all below it is unknown."""
        with self._lock:
            self._count_change_of_all()
            for known in [known for known in self._entries if paths.is_within(known, path)]:
                self._drop(known)

    def clear(self) -> None:
        """Nothing is known any more."""
        with self._lock:
            self._count_change_of_all()
            self._entries.clear()
            self._paths_by_inode.clear()

    def entry_added(self, directory: bytes, child: Attributes, *, is_directory: bool) -> None:
        """This client made `child` in `directory`: the directory's times are the child's, as the nameserver
        set both in one step."""
        with self._lock:
            self._count_change(paths.parent(directory))
            entry = self._entries.get(directory)
            if entry is None:
                return
            renewed = Attributes()
            renewed.CopyFrom(entry[0])
            renewed.mtime_ns = max(renewed.mtime_ns, child.ctime_ns)
            renewed.ctime_ns = max(renewed.ctime_ns, child.ctime_ns)
            renewed.link_count += int(is_directory)
            self._entries[directory] = (renewed, entry[1])

    # The caller holds the lock in everything below.

    def _put(self, path: bytes, attributes: Attributes, expires: float) -> None:
        self._drop(path)
        if (attributes.link_count > 1 and attributes.type != DIRECTORY) or paths.is_inode(path):
            return  # changed under another name, it would go on unchanged under this one
        self._entries[path] = (attributes, expires)
        self._paths_by_inode[attributes.inode] = path
        while len(self._entries) > self._capacity:
            self._drop(next(iter(self._entries)))

    def _drop(self, path: bytes) -> None:
        entry = self._entries.pop(path, None)
        if entry is not None and self._paths_by_inode.get(entry[0].inode) == path:
            del self._paths_by_inode[entry[0].inode]

    def _count_change(self, directory: bytes) -> None:
        if len(self._changes) >= MAX_CHANGED_DIRECTORIES:
            self._count_change_of_all()
        self._changes[directory] = self._changes.get(directory, 0) + 1

    def _count_change_of_all(self) -> None:
        self._changes_of_all += 1
        self._changes.clear()
