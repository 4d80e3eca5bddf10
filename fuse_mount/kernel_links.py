"""The names under which the kernel knows a file that has several.

libfuse gives the kernel an inode for each name, so a change made under one of them has to be made known under the
others: for some milliseconds the kernel would answer from what it was told before.
"""

from collections.abc import Callable

MAX_FILES = 4096


class KernelLinks:
    """Paths by inode number, for files with more than one name."""

    def __init__(self, drop_attributes: Callable[[bytes], None]) -> None:
        self._drop_attributes = drop_attributes
        self._paths: dict[int, set[bytes]] = {}

    def told(self, inode: int, path: bytes) -> None:
        """The kernel was told the attributes of `inode` under `path`."""
        known = self._paths.get(inode)
        if known is None:
            if len(self._paths) >= MAX_FILES:
                self._forget_oldest()
            known = self._paths[inode] = set()
        known.add(path)

    def changed(self, inode: int) -> None:
        """The kernel has to ask again under every name."""
        for path in self._paths.pop(inode, ()):
            self._drop_attributes(path)

    def _forget_oldest(self) -> None:
        try:
            inode = next(iter(self._paths))
        except (StopIteration, RuntimeError):
            return
        self.changed(inode)
