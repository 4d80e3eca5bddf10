"""Operations on open files: open, read, write, truncate, flush.

The public methods are what libfuse calls, each a thin door to a private worker. `info` is libfuse's
`fuse_file_info`.
"""

import errno
import os
import stat

from fs.client import Changes
from fs.errors import IsADirectory, ProgramRuns, SpeedwellError
from fs.limits import LEAST_ADVISED_BYTES, require_possible_length
from fs.proto.speedwell_pb2 import DIRECTORY, Attributes
from fuse_mount.door import FileInfo, Path, answers_errno
from fuse_mount.lock_operations import LockOperations
from fuse_mount.open_file import Handle

# linux/fs.h: the kernel tells that way of an open whose handle it keeps as long as a program runs from the file
FMODE_EXEC = 0x20
# linux/falloc.h
FALLOC_KEEP_SIZE = 1
FALLOC_PUNCH_HOLE = 2
FALLOC_ZERO_RANGE = 16


class FileOperations(LockOperations):
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
            attributes = self._truncate_to_zero(path)
        self._told.tell(attributes.inode, attributes.size, attributes.mtime_ns)  # libfuse asks right after this
        self._opened(path, attributes, info)
        self._files.handle(info.fh).made_file = not attributes.size
        return 0

    @answers_errno
    def open(self, path: Path, info: FileInfo) -> int:
        return self._open(os.fsencode(path), info)

    def _open(self, path: bytes, info: FileInfo) -> int:
        if info.flags & os.O_TRUNC:
            self._refuse_to_empty_a_program(path, info)
            return self._opened(path, self._truncate_to_zero(path), info)
        attributes = self._newest(path)
        if info.flags & os.O_ACCMODE != os.O_RDONLY:
            return self._opened(path, attributes, info)
        info.fh = self._files.add(attributes, path, reader=self._client.open_read(path, attributes))
        self._files.handle(info.fh).executes = bool(info.flags & FMODE_EXEC)
        if not self._locks.used:
            info.noflush = 1  # nothing was written that a close could report on, no lock to give up
        if self._client.strong:
            info.direct_io = 1  # the kernel's pages, and the size it knows, may be older than the last append
            self._files.handle(info.fh).is_direct = True
        else:
            self._use_pages(path, attributes, info)
        self._catch_up(path, attributes, self._files.handle(info.fh).file.size)
        return 0

    def _refuse_to_empty_a_program(self, path: bytes, info: FileInfo) -> None:
        """What is opened for writing the kernel checks before it asks here, what is only emptied afterwards."""
        reads_only = info.flags & os.O_ACCMODE == os.O_RDONLY
        if reads_only and self._files.is_executed(self._client.lookup(path, True).inode):
            raise ProgramRuns(f"{os.fsdecode(path)} is a running program")

    def _newest(self, path: bytes) -> Attributes:
        """What the nameserver says now. Staged changes of a version that another mount has replaced are
        published first: whoever opens the file is to see both."""
        attributes = self._client.lookup(path, True)
        if attributes.type == DIRECTORY:
            raise IsADirectory(f"{os.fsdecode(path)} is a directory")
        file = self._files.by_inode(attributes.inode)
        if file is None or not file.dirty or file.attributes.file_id == attributes.file_id:
            return attributes
        file.flush()
        self._after_flush(path, file)
        return file.attributes

    def _opened(self, path: bytes, attributes: Attributes, info: FileInfo) -> int:
        """Hand out a handle for writing (and reading, if the flags say so)."""
        self._note_mode(attributes.inode, attributes.mode)
        append = bool(info.flags & os.O_APPEND)
        info.fh = self._files.add(attributes, path, writable=True, append=append)
        handle = self._files.handle(info.fh)
        handle.synchronous = bool(info.flags & os.O_DSYNC)     # O_SYNC has that bit too
        size_bytes = handle.file.size
        if append or (info.flags & os.O_ACCMODE == os.O_WRONLY and not size_bytes):
            # The kernel would put the bytes of an append into pages at the offset it believes in, which is wrong
            # as soon as another mount appends too. A file that is only written costs a copy less this way. All
            # others need pages, without which nothing can be mapped.
            info.direct_io = 1
        else:
            self._use_pages(path, attributes, info)
        handle.is_direct = bool(info.direct_io)
        self._catch_up(path, attributes, size_bytes)
        return 0

    def _use_pages(self, path: bytes, attributes: Attributes, info: FileInfo) -> None:
        if self._pages.reading(path, attributes.file_id):
            info.keep_cache = 1
        elif self._files.other_content_open(path, attributes.file_id):
            # Both handles would fill and read the same pages with different contents.
            info.direct_io = 1
            self._pages.forget(path)

    def _catch_up(self, path: bytes, attributes: Attributes, size_bytes: int) -> None:
        """Whoever opens a file sees what was written and closed before: also in the next fstat(2)."""
        if not self._told.is_current(attributes.inode, size_bytes, attributes.mtime_ns):
            self._drop_attributes(path)

    # ------------------------------------------------------------------ content

    @answers_errno
    def read(self, path: Path | None, size: int, offset: int, info: FileInfo) -> bytes:
        buffer = bytearray(size)
        return bytes(buffer[:self._read_into(memoryview(buffer), offset, info)])

    @answers_errno
    def readinto(self, path: Path | None, buffer: memoryview, offset: int, info: FileInfo) -> int:
        """Like `read`, into the memory of the FUSE library."""
        return self._read_into(buffer, offset, info)

    def _read_into(self, buffer: memoryview, offset: int, info: FileInfo) -> int:
        handle = self._files.handle(info.fh)
        self._require_locks(handle)
        return handle.file.read_into(handle, offset, buffer)

    @answers_errno
    def write(self, path: Path | None, data: bytes | memoryview, offset: int, info: FileInfo) -> int:
        handle = self._writing(info)
        written = handle.file.write(handle.path if path is None else os.fsencode(path), offset, data, handle.append)
        if handle.synchronous:
            self._fsync(path, info)
        return written

    @answers_errno
    def truncate(self, path: Path | None, length: int, info: FileInfo | None = None) -> int:
        if info is None:
            return self._truncate(os.fsencode(self._name(path, info)), length)
        handle = self._writing(info)
        if length == handle.file.size:
            self._touch(self._name(path, info))
        elif length == 0 and path is not None and not handle.file.unlinked:
            self._truncate_to_zero(os.fsencode(path))
        else:
            handle.file.resize(handle.path if path is None else os.fsencode(path), length)
        return 0

    def _truncate(self, path: bytes, length: int) -> int:
        attributes = self._newest(path)
        if self._set_id:
            self._written(attributes.inode)
        file = self._files.by_inode(attributes.inode)
        if length == (file.size if file is not None else attributes.size):
            self._touch(path)
        elif file is not None:
            file.resize(path, length)
            file.flush()
            self._after_flush(path, file)
        else:
            published = self._client.change(path, Changes(size=length, keep=length), attributes)
            self._pages.published(path, attributes.file_id, published.file_id)
        return 0

    def _touch(self, path: Path) -> None:
        """A file that is cut to the length it has counts as changed (POSIX, truncate)."""
        self._links.changed(self._metadata.set_attributes(path, mtime_now=True).inode)

    def _truncate_to_zero(self, path: bytes) -> Attributes:
        attributes = self._client.truncate(path)
        file = self._files.by_inode(attributes.inode)
        if file is not None:
            file.replace(attributes)
        self._pages.forget(path)
        return attributes

    @answers_errno
    def fallocate(self, path: Path | None, mode: int, offset: int, length: int, info: FileInfo) -> int:
        """Space is not reserved: only what the call does to content and length. A file that was just made is placed
        anew, as one of that length."""
        if mode & ~(FALLOC_KEEP_SIZE | FALLOC_PUNCH_HOLE | FALLOC_ZERO_RANGE):
            raise OSError(errno.EOPNOTSUPP, "ranges can be punched or made zeros, not collapsed or inserted")
        require_possible_length(offset + length)
        handle = self._writing(info)
        name = handle.path if path is None else os.fsencode(path)
        if offset + length >= LEAST_ADVISED_BYTES and path is not None and handle.may_be_placed_anew():
            handle.file.replace(self._client.preallocate(name, offset + length))
            self._pages.forget(name)
        if mode & (FALLOC_PUNCH_HOLE | FALLOC_ZERO_RANGE):
            handle.file.zero(name, offset, offset + length)
        if not mode & FALLOC_KEEP_SIZE and offset + length > handle.file.size:
            handle.file.resize(name, offset + length)
        return 0

    def _writing(self, info: FileInfo) -> Handle:
        handle = self._files.handle(info.fh)
        if handle.failure is not None:
            handle.raise_failure()
        self._require_locks(handle)
        handle.wrote = True
        inode = handle.file.attributes.inode
        if self._set_id:
            self._written(inode)
        self._told.forget(inode)
        return handle

    @answers_errno
    def flush(self, path: Path | None, info: FileInfo) -> int:
        return self._flush(path, info)

    @answers_errno
    def fsync(self, path: Path | None, datasync: int, info: FileInfo) -> int:
        return self._fsync(path, info)

    def _fsync(self, path: Path | None, info: FileInfo) -> int:
        self._flush(path, info)
        self._client.sync(self._files.handle(info.fh).file.attributes)
        return 0

    @answers_errno
    def fsyncdir(self, path: Path | None, datasync: int, info: FileInfo | int) -> int:
        self._metadata.sync()
        return 0

    @answers_errno
    def release(self, path: Path | None, info: FileInfo) -> int:
        return self._release(path, info)

    def _release(self, path: Path | None, info: FileInfo) -> int:
        try:
            self._flush(path, info)  # a program that died has not closed its files
        except SpeedwellError:
            if path is not None:   # the kernel's pages have what is given up now
                self._pages.forget(os.fsencode(path))
                self._drop_attributes(os.fsencode(path))
            raise
        finally:
            inode = self._files.handle(info.fh).file.attributes.inode
            self._unlock_all_of(info.fh)
            self._files.remove(info.fh)
            if self._files.by_inode(inode) is None:
                self._nameless.closed(inode)
        return 0
