"""The inodes that the kernel has, and what it was told of each."""

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass

from speedwell.fs.proto.speedwell_pb2 import Attributes


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


class Nodes:
    """By inode number, from the first look-up until the kernel has forgotten all that were answered. Thread-safe."""

    def __init__(self, kept_seconds: float) -> None:
        """The kernel keeps a name for up to `kept_seconds`."""
        self._kept_seconds = kept_seconds
        self._nodes: dict[int, Node] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._nodes)

    def get(self, inode: int) -> Node:
        """What is known about an inode; it is kept if the kernel has it."""
        return self._nodes.get(inode) or Node()

    def found(self, inode: int, place: bytes) -> None:
        """The kernel is about to be told what has the name `place`."""
        self.found_all([(inode, place, None)])

    def found_all(self, found: Iterable[tuple[int, bytes, object]]) -> None:
        """The same for many names, each with what else is `told` of it, if that is known."""
        with self._lock:
            for inode, place, told in found:
                node = self._nodes.get(inode)
                if node is None:
                    node = self._nodes[inode] = Node()
                node.lookups += 1
                if node.place is not None and node.place != place:
                    node.doubtful_until = time.monotonic() + self._kept_seconds
                node.place = place
                if told is not None:
                    node.told = told

    def forget(self, forgotten: Iterable[tuple[int, int]]) -> None:
        """The kernel gives back so many look-ups of each inode."""
        with self._lock:
            for inode, lookups in forgotten:
                node = self._nodes.get(inode)
                if node is not None:
                    node.lookups -= lookups
                    if node.lookups <= 0:
                        del self._nodes[inode]

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
