"""What the kernel may hold in its caches, so that an open knows what in them is out of date."""

import threading


class PageVersions:
    """Remembers per path the content (file id) that was read last.

    The kernel keeps pages by path, not by inode, and cannot know that another mount put a different file
    there, or made a new version. A content only ever grows, so its pages stay true as long as the file id is the
    same.
    """

    def __init__(self, limit: int = 65536) -> None:
        self._file_ids: dict[bytes, str] = {}
        self._limit = limit
        self._lock = threading.Lock()

    def reading(self, path: bytes, file_id: str) -> bool:
        """Note that `path` is about to be read as `file_id`; True if the cached pages are of that content."""
        with self._lock:
            if self._file_ids.get(path) == file_id:
                return True
            if len(self._file_ids) >= self._limit:
                self._file_ids.clear()
            self._file_ids[path] = file_id
            return False

    def published(self, path: bytes, before: str, after: str) -> None:
        """This mount made the content `after` from `before` through the kernel's pages: they are of it now."""
        with self._lock:
            if self._file_ids.get(path) == before:
                self._file_ids[path] = after

    def forget(self, *paths: bytes) -> None:
        """The pages of these paths may be of anything now."""
        with self._lock:
            for path in paths:
                self._file_ids.pop(path, None)


class AttributesTold:
    """Remembers the length and time that the kernel was last told per inode.

    The kernel keeps attributes for a few milliseconds only, so that one system call does not ask for the same
    ones several times; whoever is not remembered here may have been told anything.
    """

    def __init__(self, limit: int = 4096) -> None:
        self._told: dict[int, tuple[int, int]] = {}
        self._limit = limit

    def tell(self, inode: int, size_bytes: int, mtime_ns: int) -> None:
        if len(self._told) >= self._limit:
            self._told.clear()
        self._told[inode] = (size_bytes, mtime_ns)

    def forget(self, inode: int) -> None:
        """The kernel has dropped by itself what it was told: it does so when a program writes."""
        self._told.pop(inode, None)

    def is_told(self, inode: int) -> bool:
        return inode in self._told

    def is_current(self, inode: int, size_bytes: int, mtime_ns: int) -> bool:
        return self._told.get(inode) == (size_bytes, mtime_ns)
