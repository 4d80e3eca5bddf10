"""What the operations on names and those on open files share."""

import errno
import threading
from collections.abc import Callable

from fs import paths
from fs.client import Client
from fs.client.session import Session
from fuse_mount.door import FileInfo, Path
from fuse_mount.held_locks import MAX_WAITERS, HeldLocks
from fuse_mount.kernel_cache import AttributesTold, PageVersions
from fuse_mount.kernel_links import KernelLinks
from fuse_mount.nameless import HiddenNames, Nameless
from fuse_mount.open_files import OpenFiles
from fuse_mount.rename_requests import RenameRequests

SET_ID_BITS = 0o6000


class SharedState:
    """One mounted filesystem.

    `caller` returns the (uid, gid, pid) of the program whose request is being served, `drop_attributes` makes
    the kernel ask again for what it knows about a path, `interrupted` tells whether the program whose request is
    being served got a signal. Changes that are not published yet lie in
    `staging_directory` (None: the system's for temporary files).
    """

    def __init__(self, client: Client, caller: Callable[[], tuple[int, int, int]],
                 drop_attributes: Callable[[bytes], None] = lambda path: None,
                 on_mounted: Callable[[], None] = lambda: None, staging_directory: str | None = None,
                 interrupted: Callable[[], bool] = lambda: False) -> None:
        self._client = client
        self._metadata = client.metadata
        self._caller = caller
        self._drop_attributes = drop_attributes
        self._on_mounted = on_mounted
        self._files = OpenFiles(client, staging_directory)
        self._pages = PageVersions()
        self._told = AttributesTold()
        self._links = KernelLinks(drop_attributes)
        self._session = Session(client.metadata)
        self._nameless = Nameless(self._session)
        self._set_id: set[int] = set()
        self._locks = HeldLocks()
        self._lock_waiters = threading.BoundedSemaphore(MAX_WAITERS)
        self._interrupted = interrupted
        self.hidden = HiddenNames()
        self.rename_requests = RenameRequests()

    def _name(self, path: Path | None, info: FileInfo | None) -> Path:
        """The path of a request, which libfuse leaves out for an open file that lost its name."""
        if path is not None:
            return path
        if info is None:
            raise OSError(errno.ENOENT, "the file has no name any more")
        return paths.of_inode(self._files.handle(info.fh).file.attributes.inode)

    def _note_mode(self, inode: int, mode: int) -> None:
        """Remember who has set-id bits to lose."""
        if mode & SET_ID_BITS:
            self._set_id.add(inode)
        elif self._set_id:
            self._set_id.discard(inode)

    def _written(self, inode: int) -> None:
        """A program writes to a file: unless it is root's, the set-id bits go, as on any filesystem."""
        if inode not in self._set_id or self._caller()[0] == 0:
            return
        path = paths.of_inode(inode)
        mode = self._client.lookup(path).mode
        cleared = mode & ~0o4000 & ~(0o2000 if mode & 0o010 else 0)
        if cleared != mode:
            self._client.set_attributes(path, mode=cleared)
            self._links.changed(inode)
        self._set_id.discard(inode)
