"""What the operations on names and those on open files share."""

import errno
from collections.abc import Callable

from fs.client import Client
from fuse_mount.door import Path
from fuse_mount.kernel_cache import AttributesTold, PageVersions
from fuse_mount.open_files import FileInfo, OpenFiles


class SharedState:
    """One mounted filesystem.

    `caller` returns the (uid, gid, pid) of the program whose request is being served, `drop_attributes` makes
    the kernel ask again for what it knows about a path. Changes that are not published yet lie in
    `staging_directory` (None: the system's for temporary files).
    """

    def __init__(self, client: Client, caller: Callable[[], tuple[int, int, int]],
                 drop_attributes: Callable[[bytes], None] = lambda path: None,
                 on_mounted: Callable[[], None] = lambda: None, staging_directory: str | None = None) -> None:
        self._client = client
        self._caller = caller
        self._drop_attributes = drop_attributes
        self._on_mounted = on_mounted
        self._files = OpenFiles(client, staging_directory)
        self._pages = PageVersions()
        self._told = AttributesTold()

    def _name(self, path: Path | None, info: FileInfo | None) -> Path:
        """The path of a request, which libfuse leaves out for an open file that lost its name."""
        if path is not None:
            return path
        if info is None:
            raise OSError(errno.ENOENT, "the file has no name any more")
        handle = self._files.handle(info.fh)
        if handle.file.unlinked:
            raise OSError(errno.ENOENT, "the file has no name any more")
        return handle.path
