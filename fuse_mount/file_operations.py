"""Operations on open files: open, read, write, truncate, flush.

The public methods are what libfuse calls, each a thin door to a private worker. `info` is libfuse's
`fuse_file_info`.
"""

import errno
import os
import stat

from fs.client import Reader
from fs.errors import IsADirectory
from fs.proto.speedwell_pb2 import DIRECTORY, Attributes
from fuse_mount.door import Path, answers_errno
from fuse_mount.open_files import FileInfo, Handle
from fuse_mount.shared import SharedState


class FileOperations(SharedState):
    """Everything that makes or uses an open file."""

    @answers_errno
    def create(self, path: Path, mode: int, info: FileInfo) -> int:
        return self._create(os.fsencode(path), mode, info)

    def _create(self, path: bytes, mode: int, info: FileInfo) -> int:
        uid, gid, _ = self._caller()
        exclusive = bool(info.flags & os.O_EXCL)
        attributes = self._client.create(path, stat.S_IMODE(mode), uid, gid, exclusive)
        if attributes.type == DIRECTORY:
            raise IsADirectory(f"{os.fsdecode(path)} is a directory")
        # The kernel thought the name was free, but another mount may have been quicker.
        if info.flags & os.O_TRUNC and attributes.size:
            attributes = self._client.truncate(path)
        self._told.tell(attributes.inode, attributes.size, attributes.mtime_ns)  # libfuse asks right after this
        return self._opened(path, attributes, info)

    @answers_errno
    def open(self, path: Path, info: FileInfo) -> int:
        return self._open(os.fsencode(path), info)

    def _open(self, path: bytes, info: FileInfo) -> int:
        if info.flags & os.O_TRUNC:
            return self._opened(path, self._truncate_to_zero(path), info)
        if info.flags & os.O_ACCMODE != os.O_RDONLY:
            return self._opened(path, self._client.lookup(path, True), info)
        reader = self._client.open_read(path)
        attributes = reader.attributes
        info.fh = self._files.add(attributes, path, reader=reader)
        info.noflush = 1  # nothing was written that a close could report on
        if self._pages.reading(path, attributes.file_id):
            info.keep_cache = 1
        elif self._files.other_content_open(path, attributes.file_id):
            # Both handles would fill and read the same pages with different contents.
            info.direct_io = 1
            self._pages.forget(path)
        self._catch_up(path, attributes, attributes.size)
        return 0

    def _opened(self, path: bytes, attributes: Attributes, info: FileInfo) -> int:
        """Hand out a handle for writing (and reading, if the flags say so)."""
        info.fh = self._files.add(attributes, path, writable=True, append=bool(info.flags & os.O_APPEND))
        # The kernel would put the bytes of an append into pages at the offset it believes in, which is wrong
        # as soon as another mount appends too.
        info.direct_io = 1
        self._catch_up(path, attributes, self._files.handle(info.fh).file.size)
        return 0

    def _catch_up(self, path: bytes, attributes: Attributes, size_bytes: int) -> None:
        """Whoever opens a file sees what was written and closed before: also in the next fstat(2)."""
        if not self._told.is_current(attributes.inode, size_bytes, attributes.mtime_ns):
            self._drop_attributes(path)

    @answers_errno
    def read(self, path: Path | None, size: int, offset: int, info: FileInfo) -> bytes:
        return self._reader(path, info).read(offset, size)

    @answers_errno
    def readinto(self, path: Path | None, buffer: memoryview, offset: int, info: FileInfo) -> int:
        """Like `read`, into the memory of the FUSE library."""
        return self._reader(path, info).readinto(offset, buffer)

    def _reader(self, path: Path | None, info: FileInfo) -> Reader:
        handle = self._files.handle(info.fh)
        file = handle.file
        if file.dirty:
            file.flush()
        reader = handle.reader
        if reader is None or (handle.writable and reader.attributes.file_id != file.attributes.file_id):
            return self._reopened(handle, path)
        if reader.size < file.attributes.size:
            reader.grown_to(file.attributes.size)
        return reader

    def _reopened(self, handle: Handle, path: Path | None) -> Reader:
        """The reader of a handle that was opened for writing too; its content may have been truncated."""
        with handle.file.lock:
            if handle.reader is not None:
                handle.reader.close()
                handle.reader = None
            handle.reader = self._client.open_read(handle.path if path is None else path)
            return handle.reader

    @answers_errno
    def write(self, path: Path | None, data: bytes | memoryview, offset: int, info: FileInfo) -> int:
        handle = self._files.handle(info.fh)
        if handle.failure is not None:
            handle.raise_failure()
        handle.wrote = True
        self._told.forget(handle.file.attributes.inode)
        return handle.file.write(handle.path if path is None else os.fsencode(path), offset, data, handle.append)

    @answers_errno
    def truncate(self, path: Path | None, length: int, info: FileInfo | None = None) -> int:
        return self._truncate(os.fsencode(self._name(path, info)), length, info)

    def _truncate(self, path: bytes, length: int, info: FileInfo | None) -> int:
        attributes = self._client.lookup(path, True)
        file = self._files.by_inode(attributes.inode)
        if length == max(attributes.size, file.size if file is not None else 0):
            return 0
        if length != 0:
            raise OSError(errno.EOPNOTSUPP, "files can be truncated to nothing only")
        self._truncate_to_zero(path)
        return 0

    def _truncate_to_zero(self, path: bytes) -> Attributes:
        attributes = self._client.truncate(path)
        file = self._files.by_inode(attributes.inode)
        if file is not None:
            file.refresh(attributes)
        self._pages.forget(path)
        return attributes

    @answers_errno
    def flush(self, path: Path | None, info: FileInfo) -> int:
        return self._flush(path, info)

    @answers_errno
    def fsync(self, path: Path | None, datasync: int, info: FileInfo) -> int:
        return self._flush(path, info)

    def _flush(self, path: Path | None, info: FileInfo) -> int:
        handle = self._files.handle(info.fh)
        if handle.wrote:
            handle.raise_failure()
            handle.file.flush()
            # The commit has set the time of modification anew.
            if path is not None and self._told.is_told(handle.file.attributes.inode):
                self._drop_attributes(os.fsencode(path))
        return 0

    @answers_errno
    def release(self, path: Path | None, info: FileInfo) -> int:
        return self._release(path, info)

    def _release(self, path: Path | None, info: FileInfo) -> int:
        try:
            self._flush(path, info)  # a program that died has not closed its files
        finally:
            self._files.remove(info.fh)
        return 0
