"""What a mount remembers of the locks that its programs hold."""

import threading

MAX_WAITERS = 96
"""Programs that wait for a lock; each occupies a thread of libfuse until it has it."""


class HeldLocks:
    """Which owners hold locks through which handles, so that closing a file without any asks nobody."""

    def __init__(self) -> None:
        self.used = False
        self._handles: dict[tuple[int, int, bool], set[int]] = {}
        self._lock = threading.Lock()

    def add(self, inode: int, owner: int, whole: bool, handle: int) -> None:
        self.used = True
        with self._lock:
            self._handles.setdefault((inode, owner, whole), set()).add(handle)

    def is_held(self, inode: int, owner: int, whole: bool) -> bool:
        return (inode, owner, whole) in self._handles

    def is_locked(self, inode: int) -> bool:
        """Whether anybody here holds a lock on the file, or has asked for one."""
        with self._lock:
            return any(key[0] == inode for key in self._handles)

    def drop(self, inode: int, owner: int, whole: bool) -> None:
        with self._lock:
            self._handles.pop((inode, owner, whole), None)

    def of_handle(self, handle: int) -> list[tuple[int, int, bool]]:
        with self._lock:
            return [key for key, handles in self._handles.items() if handle in handles]
