"""The files that programs on this mount have open.

All handles of one inode share an `OpenFile`, and with it one appender: their writes keep one order, and every
handle sees the length that includes what the others have buffered.
"""

import errno
import itertools
import threading
from typing import Protocol

from fs.client import Appender, Client, Reader
from fs.errors import NoSuchFile, SpeedwellError, StaleFile
from fs.proto.speedwell_pb2 import Attributes


class WriteFailed(OSError):
    """An earlier write of this handle failed; the handle repeats it until it is closed."""


class OpenFile:
    """One inode that is open on this mount. Its methods may be called from any thread."""

    def __init__(self, client: Client, attributes: Attributes) -> None:
        self.attributes = attributes
        self.handles: set[Handle] = set()
        self.unlinked = False
        self.dirty = False  # something was written since the last successful flush
        self.lock = threading.RLock()
        self.size = attributes.size  # in bytes, what is buffered here included
        self._client = client
        self._appender: Appender | None = None

    def refresh(self, attributes: Attributes) -> None:
        """Take over attributes that were just fetched: appends of other mounts, a new content."""
        with self.lock:
            if attributes.file_id != self.attributes.file_id:
                self.discard()
            elif attributes.size < self.attributes.size:
                return  # fetched before our last commit
            elif self._appender is not None and not self.dirty and attributes.size != self.size:
                self._drop_appender()
            self._take(attributes)

    def write(self, path: bytes, offset: int, data: memoryview | bytes, append: bool) -> int:
        """Append `data`, which has to begin at the end of the file unless `append`.

        Raises OSError(EOPNOTSUPP) for any other offset, and the errors of `Appender.write`.
        """
        with self.lock:
            if not append and offset != self.size:
                raise OSError(errno.EOPNOTSUPP, "files are written from their end only")
            if self._appender is None:
                self._appender = self._client.open_append(path, self.attributes)
            # Counts as dirty even if the write fails: the bytes before it may be on their way.
            self.dirty = True
            try:
                written = self._appender.write(data)
            except SpeedwellError as error:
                self._fail(error)
                raise
            self.size += written
            return written

    def flush(self) -> None:
        """Make everything written here visible to everybody. Raises the errors of `Appender.flush`."""
        if not self.dirty:
            return
        with self.lock:
            if not self.dirty or self._appender is None:
                return
            try:
                attributes = self._appender.flush()
            except SpeedwellError as error:
                removed = isinstance(error, NoSuchFile) or (self.unlinked and isinstance(error, StaleFile))
                if not removed:
                    self._fail(error)
                    raise
                # The name is gone and the bytes with it, as if the removal had come after the write.
                self._drop_appender()
                self.dirty = False
                return
            self.dirty = False
            self._take(attributes)

    def discard(self) -> None:
        """Give up the content written so far: the file gets a new one."""
        with self.lock:
            self._drop_appender()
            self.dirty = False

    def close(self) -> None:
        """Release what is held; the handles have flushed before."""
        with self.lock:
            self._drop_appender()

    def _fail(self, error: SpeedwellError) -> None:
        for handle in self.handles:
            if handle.wrote:
                handle.failure = error
        self._drop_appender()
        self.dirty = False
        self.size = self.attributes.size

    def _take(self, attributes: Attributes) -> None:
        self.attributes = attributes
        if not self.dirty:
            self.size = attributes.size

    def _drop_appender(self) -> None:
        appender, self._appender = self._appender, None
        if appender is None:
            return
        try:
            appender.close()
        except SpeedwellError:
            return  # reported by the write or flush that failed, or of no interest for a discarded content


class Handle:
    """What one open(2) returned."""

    __slots__ = ("append", "failure", "file", "path", "reader", "writable", "wrote")

    def __init__(self, file: OpenFile, path: bytes, *, writable: bool = False, append: bool = False,
                 reader: Reader | None = None) -> None:
        self.file = file
        self.path = path  # as it was at open
        self.writable = writable
        self.append = append
        self.reader = reader
        self.wrote = False
        self.failure: SpeedwellError | None = None

    def raise_failure(self) -> None:
        """Repeat the error of an earlier write of this handle."""
        if self.failure is not None:
            raise WriteFailed(self.failure.errno, str(self.failure))


class FileInfo(Protocol):
    """The fields of libfuse's `struct fuse_file_info` that the mount uses."""

    flags: int
    fh: int
    direct_io: int
    keep_cache: int
    noflush: int  # libfuse 3.11 and later


class OpenFiles:
    """All open files by inode, and all handles by the number the kernel knows them by."""

    def __init__(self, client: Client) -> None:
        self._client = client
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

    def add(self, attributes: Attributes, path: bytes, *, writable: bool = False, append: bool = False,
            reader: Reader | None = None) -> int:
        """Register an open file and return the number of its handle."""
        with self._lock:
            file = self._files.get(attributes.inode)
            if file is None:
                file = self._files[attributes.inode] = OpenFile(self._client, attributes)
                fresh = True
            else:
                fresh = False
            handle = Handle(file, path, writable=writable, append=append, reader=reader)
            file.handles.add(handle)
            number = next(self._numbers)
            self._handles[number] = handle
        if not fresh:
            file.refresh(attributes)
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
                self._files.pop(file.attributes.inode, None)
        if handle.reader is not None:
            handle.reader.close()
        if last:
            file.close()

    def flush_all(self) -> list[tuple[bytes, SpeedwellError]]:
        """Flush every file; returns the paths that could not be, with the reason."""
        with self._lock:
            files = list(self._files.values())
        failures = []
        for file in files:
            try:
                file.flush()
            except SpeedwellError as error:
                paths = sorted(handle.path for handle in file.handles)
                failures.append((paths[0] if paths else b"?", error))
        return failures

    def other_content_open(self, path: bytes, file_id: str) -> bool:
        """Whether a handle that was opened under `path` reads a content other than `file_id`."""
        with self._lock:
            return any(handle.path == path and handle.reader is not None
                       and handle.reader.attributes.file_id != file_id
                       for handle in self._handles.values())
