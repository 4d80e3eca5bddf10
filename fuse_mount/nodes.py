"""The inodes that the kernel has, and what it was told of each."""

import struct
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from speedwell.fs.file_status import MODE_AND_LINKS, NS
from speedwell.fs.proto.speedwell_pb2 import Attributes

TOLD = struct.Struct("<8xQ16xqq4xII28x")  # what nodes keep of a STATUS (`speedwell.fs.file_status`)


@dataclass(slots=True)
class Node:
    """`place` is the path under which it was looked up last; until `doubtful_until` the kernel may know it under
    another one too, and asks without saying which. `told` is what an open compares with what the nameserver says,
    `pages` the content (file id) of the pages that the kernel keeps, `removed` what a directory was when it was
    removed here. Whoever writes takes a file's set-id bits and capabilities: `sets_id`, and `may_be_capable`."""

    lookups: int = 0
    place: bytes | None = None
    doubtful_until: float = 0.0
    told: object = None
    pages: str | None = None
    removed: Attributes | None = None
    sets_id: bool = False
    may_be_capable: bool = False


Listed = tuple[bytes, bytes, bytes]
"""Of an inode found once, in a listing, and not used since: the directory's path, its name there, and its STATUS.
To make a Node of each would take longer than all else that a listing does."""


class Nodes:
    """By inode number, from the first look-up until the kernel has forgotten all that were answered. Thread-safe."""

    def __init__(self, kept_seconds: float) -> None:
        """The kernel keeps a name for up to `kept_seconds`."""
        self._kept_seconds = kept_seconds
        self._nodes: dict[int, Node | Listed] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._nodes)

    def __contains__(self, inode: int) -> bool:
        return inode in self._nodes

    def links(self, inode: int) -> int:
        """How many links an inode had when a listing found it; 0: not known, or it was used since."""
        known = self._nodes.get(inode)
        return int(MODE_AND_LINKS.unpack(known[2])[1]) if isinstance(known, tuple) else 0

    def get(self, inode: int) -> Node:
        """What is known about an inode; it is kept if the kernel has it."""
        known = self._nodes.get(inode)
        if isinstance(known, tuple):
            with self._lock:
                known = self._node(inode)
        return known or Node()

    def found(self, inode: int, place: bytes, status: bytes = b"") -> None:
        """The kernel is about to be told what has the name `place`, and its STATUS, if that is known."""
        with self._lock:
            self._found(inode, place, status)

    def found_all(self, above: bytes, found: Sequence[tuple[int, bytes, bytes]]) -> None:
        """The same for inodes with their names in the directory with the path `above`, and their STATUS."""
        with self._lock:
            new = {inode: (above, name, status) for inode, name, status in found}
            if len(new) == len(found) and self._nodes.keys().isdisjoint(new):
                self._nodes.update(new)
                return
            for inode, name, status in found:
                self._found(inode, above + name, status)

    def forget(self, forgotten: Iterable[tuple[int, int]]) -> None:
        """The kernel gives back so many look-ups of each inode."""
        with self._lock:
            for inode, lookups in forgotten:
                known = self._nodes.pop(inode, None)
                if isinstance(known, Node) and known.lookups > lookups:
                    known.lookups -= lookups
                    self._nodes[inode] = known

    def reads(self, inode: int, file_id: str) -> bool:
        """Note that the inode is about to be read as `file_id`; True if the kernel's pages are of that content, which
        only ever grows."""
        node = self.get(inode)
        known, node.pages = node.pages, file_id
        return known == file_id

    def published(self, inode: int, before: str, after: str) -> None:
        """This mount made the content `after` from `before` through the kernel's pages: they are of it now."""
        node = self.get(inode)
        if node.pages == before:
            node.pages = after

    # The caller holds the lock in everything below.

    def _found(self, inode: int, place: bytes, status: bytes) -> None:
        node = self._node(inode)
        if node is None:
            node = self._nodes[inode] = Node()
        node.lookups += 1
        if node.place is not None and node.place != place:
            node.doubtful_until = time.monotonic() + self._kept_seconds
        node.place = place
        if status:
            node.told = _told(status)

    def _node(self, inode: int) -> Node | None:
        known = self._nodes.get(inode)
        if isinstance(known, tuple):
            above, name, status = known
            known = self._nodes[inode] = Node(1, above + name, told=_told(status))
        return known


def _told(status: bytes) -> tuple[int, int, int]:
    size, mtime, ctime, mtime_ns, ctime_ns = TOLD.unpack(status)
    return size, mtime * NS + mtime_ns, ctime * NS + ctime_ns
