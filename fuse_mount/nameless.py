"""Files that are open on this mount and have lost a name.

libfuse renames an open file that is removed to a hidden name, so that its path goes on to lead somewhere. Here
nothing gets such a name: the file is removed, the nameserver keeps its inode for this mount's session, and what
libfuse asks about the hidden name is asked about the inode.
"""

import os
import re
import threading
from contextlib import suppress

from fs import paths
from fs.client.session import Session

MAX_DROPPED = 4096
_HIDDEN_NAME = re.compile(rb"\.fuse_hidden[0-9a-f]{16}")


class HiddenNames:
    """libfuse's hidden names and the inodes they stand for. Thread-safe."""

    def __init__(self) -> None:
        self._inodes: dict[bytes, int] = {}
        self._paths: dict[int, bytes] = {}
        self._dropped: dict[bytes, None] = {}

    @staticmethod
    def is_hiding(source: bytes, destination: bytes) -> bool:
        """Whether a rename looks like libfuse's way to hide a file."""
        return (_HIDDEN_NAME.fullmatch(paths.name(destination)) is not None
                and paths.parent(source) == paths.parent(destination))

    def hide(self, path: bytes, inode: int) -> None:
        self._inodes[paths.name(path)] = inode
        self._paths[inode] = path

    def drop(self, path: bytes) -> int | None:
        """Forget a hidden name; what it stood for, if it was one."""
        name = paths.name(path)
        inode = self._inodes.pop(name, None)
        if inode is None:
            return None
        if paths.name(self._paths.get(inode, path)) == name:
            self._paths.pop(inode, None)
        self._dropped[name] = None
        if len(self._dropped) > MAX_DROPPED:
            with suppress(StopIteration, RuntimeError, KeyError):   # another thread does it
                del self._dropped[next(iter(self._dropped))]
        return inode

    def knows(self, path: str | bytes) -> bool:
        """Whether it is one, or was one lately: libfuse never gives one out twice, but the kernel may still ask."""
        if not self._inodes and not self._dropped:
            return False
        name = paths.name(os.fsencode(path))
        return name in self._inodes or name in self._dropped

    def known_as(self, inode: int) -> bytes | None:
        """The hidden path under which the kernel has the inode."""
        return self._paths.get(inode)

    def path_of(self, path: str | bytes) -> bytes:
        """A path that the nameserver knows. The directory part plays no role: it may have been renamed."""
        raw = os.fsencode(path)
        inode = self._inodes.get(paths.name(raw))
        return raw if inode is None else paths.of_inode(inode)


class Nameless:
    """The inodes that the nameserver keeps for this mount because they are open. Thread-safe."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._inodes: set[int] = set()
        self._lock = threading.Lock()

    def add(self, inode: int) -> None:
        with self._lock:
            self._inodes.add(inode)

    def closed(self, inode: int) -> None:
        """The last handle of `inode` was closed."""
        if not self._inodes:
            return
        with self._lock:
            if inode not in self._inodes:
                return
            self._inodes.remove(inode)
        self._session.release([inode])
