"""The filesystem as the kernel asks for it: FUSE operations over the client library.

The public methods are what libfuse calls, each a thin door to a private worker. This is the only place where
errors of the filesystem become an errno.
"""

import errno
import functools
import logging
import os
import stat
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from fs.client import Client, Reader
from fs.errors import IsADirectory, SpeedwellError
from fs.proto.speedwell_pb2 import DIRECTORY, Attributes
from fuse_mount.kernel_cache import AttributesTold, PageVersions
from fuse_mount.open_files import FileInfo, Handle, OpenFile, OpenFiles

log = logging.getLogger(__name__)

PREFERRED_IO_BYTES = 128 * 1024  # what programs such as cp and cat take as their block
FRAGMENT_BYTES = 4096
NAME_MAX_BYTES = 255
# In place of nanoseconds in a timespec (utimensat(2)).
UTIME_NOW = (1 << 30) - 1
UTIME_OMIT = (1 << 30) - 2
RENAME_NOREPLACE = 1

Path = str | bytes
Door = TypeVar("Door", bound=Callable[..., Any])


def _answers_errno(door: Door) -> Door:
    """Turn every error into the OSError that the FUSE library answers the kernel with."""

    @functools.wraps(door)
    def guarded(*arguments: Any) -> Any:
        try:
            return door(*arguments)
        except OSError:
            raise
        except SpeedwellError as error:
            if error.errno == errno.EIO:
                log.error("%s: %s", door.__name__, error)
            raise OSError(error.errno, str(error)) from error
        except Exception as error:
            log.exception("%s failed in a way nobody foresaw", door.__name__)
            raise OSError(errno.EIO, str(error)) from error

    return guarded  # type: ignore[return-value]


class SpeedwellOperations:
    """One mounted filesystem.

    `caller` returns the (uid, gid, pid) of the program whose request is being served, `drop_attributes` makes
    the kernel ask again for what it knows about a path. Paths arrive as bytes, or as text from a library that
    decodes them; `info` is libfuse's `fuse_file_info`.
    """

    # For the libraries: times are nanoseconds; and for libfuse 2: UTIME_OMIT is understood, and so is a request
    # about an open file without a name.
    use_ns = True
    flag_utime_omit_ok = 1
    flag_nullpath_ok = 1

    def __init__(self, client: Client, caller: Callable[[], tuple[int, int, int]],
                 drop_attributes: Callable[[bytes], None] = lambda path: None,
                 on_mounted: Callable[[], None] = lambda: None) -> None:
        self._client = client
        self._caller = caller
        self._drop_attributes = drop_attributes
        self._on_mounted = on_mounted
        self._files = OpenFiles(client)
        self._pages = PageVersions()
        self._told = AttributesTold()

    # ------------------------------------------------------------------ the mount itself

    def init(self, path: Path) -> None:
        self._on_mounted()

    def destroy(self, path: Path) -> None:
        for name, error in self._files.flush_all():
            log.error("%s: not everything written was saved: %s", os.fsdecode(name), error)

    @_answers_errno
    def statfs(self, path: Path) -> dict[str, int]:
        return self._statfs()

    def _statfs(self) -> dict[str, int]:
        statistics = self._client.statistics()
        copies = max(1, statistics.replication)
        available = statistics.available_bytes // copies // FRAGMENT_BYTES
        return {
            "f_bsize": PREFERRED_IO_BYTES, "f_frsize": FRAGMENT_BYTES, "f_namemax": NAME_MAX_BYTES,
            "f_blocks": statistics.capacity_bytes // copies // FRAGMENT_BYTES,
            "f_bfree": available, "f_bavail": available,
            "f_files": statistics.files + statistics.directories,
        }

    # ------------------------------------------------------------------ attributes

    @_answers_errno
    def getattr(self, path: Path | None, info: FileInfo | None = None) -> dict[str, int]:
        return self._getattr(path, info)

    def _getattr(self, path: Path | None, info: FileInfo | None) -> dict[str, int]:
        if info is None:
            attributes = self._client.lookup(_required(path))
            file = self._files.by_inode(attributes.inode)
        else:
            file = self._files.handle(info.fh).file
            attributes = file.attributes
            if path is not None and not file.unlinked:
                found = self._client.lookup(path)
                if found.inode == attributes.inode:
                    attributes = found
        size = attributes.size
        if file is not None and file.attributes.file_id == attributes.file_id:
            if size > file.attributes.size and not file.dirty:
                file.refresh(attributes)  # what the kernel is told, handles that are open have to read
            size = max(size, file.size)
        self._told.tell(attributes.inode, size, attributes.mtime_ns)
        return _stat_fields(attributes, size, 0 if file is not None and file.unlinked else None)

    @_answers_errno
    def chmod(self, path: Path | None, mode: int, info: FileInfo | None = None) -> int:
        self._client.set_attributes(self._name(path, info), mode=stat.S_IMODE(mode))
        return 0

    @_answers_errno
    def chown(self, path: Path | None, uid: int, gid: int, info: FileInfo | None = None) -> int:
        self._client.set_attributes(self._name(path, info), uid=None if uid == -1 else uid,
                                    gid=None if gid == -1 else gid)
        return 0

    @_answers_errno
    def utimens(self, path: Path | None, times: tuple[int, int] | None = None,
                info: FileInfo | None = None) -> int:
        return self._utimens(self._name(path, info), times or (UTIME_NOW, UTIME_NOW), info)

    def _utimens(self, path: Path, times: tuple[int, int], info: FileInfo | None) -> int:
        # A commit sets the time of the write: what is buffered has to be committed before, not after.
        inode = self._files.handle(info.fh).file.attributes.inode if info else self._client.lookup(path).inode
        file = self._files.by_inode(inode)
        if file is not None:
            file.flush()
        now = time.time_ns()
        atime_ns, mtime_ns = (None if value == UTIME_OMIT else now if value == UTIME_NOW else value
                              for value in times)
        if atime_ns is not None or mtime_ns is not None:
            self._client.set_attributes(path, atime_ns=atime_ns, mtime_ns=mtime_ns)
        return 0

    # ------------------------------------------------------------------ names

    @_answers_errno
    def readdir(self, path: Path, info: FileInfo | int | None = None) -> Iterator[tuple[str, Any, int]]:
        return self._readdir(path)

    def _readdir(self, path: Path) -> Iterator[tuple[str, Any, int]]:
        entries = self._client.list(path)
        directory = {"st_mode": stat.S_IFDIR}
        listing: list[tuple[str, Any, int]] = [(".", directory, 0), ("..", directory, 0)]
        listing += [(os.fsdecode(entry.name), {"st_mode": _type_bits(entry.attributes),
                                               "st_ino": entry.attributes.inode}, 0) for entry in entries]
        return iter(listing)

    @_answers_errno
    def mkdir(self, path: Path, mode: int) -> int:
        uid, gid, _ = self._caller()
        self._client.mkdir(path, stat.S_IMODE(mode), uid, gid)
        return 0

    @_answers_errno
    def rmdir(self, path: Path) -> int:
        self._client.rmdir(path)
        return 0

    @_answers_errno
    def mknod(self, path: Path, mode: int, device: int) -> int:
        if not stat.S_ISREG(mode) and stat.S_IFMT(mode) != 0:
            raise OSError(errno.EPERM, "only files and directories can be made")
        uid, gid, _ = self._caller()
        self._client.create(path, stat.S_IMODE(mode), uid, gid, True)
        return 0

    # EPERM is what Linux answers on a filesystem without links, and what programs fall back on.
    def symlink(self, target: Path, source: Path) -> int:
        raise OSError(errno.EPERM, "no symbolic links on this filesystem")

    def link(self, target: Path, source: Path) -> int:
        raise OSError(errno.EPERM, "no hard links on this filesystem")

    @_answers_errno
    def unlink(self, path: Path) -> int:
        return self._unlink(os.fsencode(path))

    def _unlink(self, path: bytes) -> int:
        removed = self._if_open(path)
        self._client.remove(path)
        self._pages.forget(path)
        if removed is not None:
            removed.unlinked = True
        return 0

    @_answers_errno
    def rename(self, source: Path, destination: Path, flags: int = 0) -> int:
        return self._rename(os.fsencode(source), os.fsencode(destination), flags)

    def _rename(self, source: bytes, destination: bytes, flags: int) -> int:
        if flags & ~RENAME_NOREPLACE:
            raise OSError(errno.EINVAL, "only RENAME_NOREPLACE is supported")
        replaced = self._if_open(destination) if source != destination else None
        self._client.rename(source, destination, no_replace=bool(flags & RENAME_NOREPLACE))
        self._pages.forget(source, destination)
        if replaced is not None:
            replaced.unlinked = True
        return 0

    def _if_open(self, path: bytes) -> OpenFile | None:
        """The open file that `path` names, if any."""
        if not self._files:
            return None
        try:
            return self._files.by_inode(self._client.lookup(path).inode)
        except SpeedwellError:
            return None  # the operation that asks will say what is wrong

    # ------------------------------------------------------------------ content

    @_answers_errno
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

    @_answers_errno
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

    @_answers_errno
    def read(self, path: Path | None, size: int, offset: int, info: FileInfo) -> bytes:
        return self._reader(path, info).read(offset, size)

    @_answers_errno
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

    @_answers_errno
    def write(self, path: Path | None, data: bytes | memoryview, offset: int, info: FileInfo) -> int:
        handle = self._files.handle(info.fh)
        if handle.failure is not None:
            handle.raise_failure()
        handle.wrote = True
        self._told.forget(handle.file.attributes.inode)
        return handle.file.write(handle.path if path is None else os.fsencode(path), offset, data, handle.append)

    @_answers_errno
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

    @_answers_errno
    def flush(self, path: Path | None, info: FileInfo) -> int:
        return self._flush(path, info)

    @_answers_errno
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

    @_answers_errno
    def release(self, path: Path | None, info: FileInfo) -> int:
        return self._release(path, info)

    def _release(self, path: Path | None, info: FileInfo) -> int:
        try:
            self._flush(path, info)  # a program that died has not closed its files
        finally:
            self._files.remove(info.fh)
        return 0

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


def _required(path: Path | None) -> Path:
    if path is None:
        raise OSError(errno.ENOENT, "the file has no name any more")
    return path


def _type_bits(attributes: Attributes) -> int:
    return stat.S_IFDIR if attributes.type == DIRECTORY else stat.S_IFREG


def _stat_fields(attributes: Attributes, size_bytes: int, links: int | None) -> dict[str, int]:
    return {
        "st_mode": attributes.mode | _type_bits(attributes),
        "st_ino": attributes.inode,
        "st_nlink": attributes.link_count if links is None else links,
        "st_uid": attributes.uid,
        "st_gid": attributes.gid,
        "st_size": size_bytes,
        "st_blocks": (size_bytes + 511) // 512,
        "st_blksize": PREFERRED_IO_BYTES,
        "st_atime": attributes.atime_ns,
        "st_mtime": attributes.mtime_ns,
        "st_ctime": attributes.ctime_ns,
    }
