"""The files that programs on this mount have open, by inode and by the number that the kernel knows a handle by."""

import errno
import itertools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from speedwell.fs.client import Client, Reader
from speedwell.fs.client.change.open_file import Handle, OpenFile
from speedwell.fs.errors import SpeedwellError
from speedwell.fs.proto.speedwell_pb2 import Attributes

FLUSHED_AT_ONCE = 64


class OpenFiles:
    """All open files by inode, and all handles by the number the kernel knows them by."""

    def __init__(self, client: Client, staging_directory: str | None = None) -> None:
        self._client = client
        self._staging_directory = staging_directory
        self._files: dict[int, OpenFile] = {}
        self._handles: dict[int, Handle] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def by_inode(self, inode: int) -> OpenFile | None:
        return self._files.get(inode)

    def handle(self, number: int) -> Handle:
        """Raises OSError(EBADF) for a number that is not open."""
        try:
            return self._handles[number]
        except KeyError:
            raise OSError(errno.EBADF, "not an open file") from None

    def __len__(self) -> int:
        return len(self._handles)

    def add(self, attributes: Attributes, *, writable: bool = False, append: bool = False,
            reader: Reader | None = None) -> int:
        """Register an open file and return the number of its handle."""
        with self._lock:
            known = self._files.get(attributes.inode)
            file = known or OpenFile(self._client, attributes, self._staging_directory)
            self._files[file.inode] = file
            number = next(self._numbers)
            self._handles[number] = handle = Handle(file, writable, append, reader)
            file.handles.add(handle)
        if known is not None:
            known.refresh(attributes)
        return number

    def remove(self, number: int) -> None:
        """Forget a handle, and its file with the last one."""
        with self._lock:
            handle = self._handles.pop(number, None)
            if handle is None:
                return
            file = handle.file
            file.handles.discard(handle)
            last = not file.handles
            if last:
                self._files.pop(file.inode, None)
        handle.close()
        if last:
            file.discard()     # its handles have flushed

    def flush_all(self) -> list[tuple[int, SpeedwellError]]:
        """Flush every file; returns the inodes of those that could not be, with the reason. Each that a lost server
        keeps waiting keeps no other one waiting."""
        with self._lock:
            files = list(self._files.values())
        with ThreadPoolExecutor(FLUSHED_AT_ONCE) as pool:
            return [failed for failed in pool.map(_flush, files) if failed is not None]

    def any_handle(self, inode: int, is_so: Callable[[Handle], bool]) -> bool:
        """Whether a handle of the file is."""
        with self._lock:
            file = self._files.get(inode)
            return file is not None and any(map(is_so, file.handles))


def _flush(file: OpenFile) -> tuple[int, SpeedwellError] | None:
    try:
        file.flush()
    except SpeedwellError as error:
        return file.inode, error
    return None
