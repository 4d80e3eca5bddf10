"""The kernel's requests as calls of the operations, and the operations' results as libfuse's answers."""

import ctypes
import errno
import struct
from bisect import bisect_right
from collections.abc import Callable, Iterable
from ctypes import byref
from functools import cache
from itertools import accumulate
from operator import attrgetter
from typing import Any

from speedwell.fs.file_status import NS, STATUS, TYPE_BITS
from speedwell.fuse_mount.door import ANSWERS, PASSED
from speedwell.fuse_mount.libfuse import Session
from speedwell.fuse_mount.shared import ONE_CALL_SECONDS, Listing, Status

# fuse_lowlevel.h, FUSE_SET_ATTR_...
SET_MODE, SET_UID, SET_GID, SET_SIZE, SET_ATIME, SET_MTIME, SET_ATIME_NOW, SET_MTIME_NOW = (
    1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 4, 1 << 5, 1 << 7, 1 << 8)


# linux/fuse.h: struct fuse_dirent without its name, fuse_open_out, fuse_attr_out without its status; what
# fuse_entry_out has between inode and status
DIRENT = struct.Struct("=QQII")
OPENED = struct.Struct("=QII")
ATTRIBUTE_TIME = struct.Struct("=QII")
TIMES = struct.Struct("=QQQII")
INODE_BYTES = ALIGNMENT = 8
LEAST_DIRENT_BYTES = DIRENT.size + ALIGNMENT
NO_TIMES, NO_STATUS = bytes(TIMES.size), bytes(STATUS.size)
ENTRY_BYTES = INODE_BYTES + TIMES.size + STATUS.size
READ_ONLY = 0x100   # Python's PyBUF_READ
_bytes_at = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)(
    ("PyMemoryView_FromMemory", ctypes.pythonapi))
POINTED = {"info": attrgetter("contents"), "lock": attrgetter("contents"), "handle": attrgetter("contents.fh")}
KINDS = bytes(TYPE_BITS.get(kind, 0) >> 12 for kind in range(256))
FORGOTTEN = struct.Struct("=QQ")


class Requests(Session):
    """The methods are named after the fields of `struct fuse_lowlevel_ops`."""

    # ------------------------------------------------------------------ names

    def _forget(self, request: int, inode: int, lookups: int) -> None:
        self._operations.forget([(inode, lookups)])
        self._libfuse.fuse_reply_none(request)

    def _forget_multi(self, request: int, count: int, forgotten: Any) -> None:
        self._operations.forget(FORGOTTEN.iter_unpack(ctypes.string_at(forgotten, count * FORGOTTEN.size)))
        self._libfuse.fuse_reply_none(request)

    # ------------------------------------------------------------------ attributes

    def _setattr(self, request: int, inode: int, wanted: Any, fields: int, info: Any) -> None:
        status = wanted.contents
        fields &= ~(fields >> 3 & (SET_ATIME | SET_MTIME))      # a time that is to be now comes with both bits
        atime, mtime = status.st_atimespec, status.st_mtimespec
        changes = {key: value for bit, key, value in (
            (SET_MODE, "mode", status.st_mode & 0o7777), (SET_UID, "uid", status.st_uid),
            (SET_GID, "gid", status.st_gid), (SET_ATIME, "atime_ns", atime.tv_sec * NS + atime.tv_nsec),
            (SET_MTIME, "mtime_ns", mtime.tv_sec * NS + mtime.tv_nsec), (SET_ATIME_NOW, "atime_now", True),
            (SET_MTIME_NOW, "mtime_now", True)) if fields & bit}
        self._answer_attributes(request, self._operations.setattr(
            inode, info.contents.fh if info else None, status.st_size if fields & SET_SIZE else None, changes))

    def _statfs(self, request: int, _: int) -> None:
        self._libfuse.fuse_reply_statfs(request, byref(self._statvfs_type(**self._operations.statfs())))

    def _setxattr(self, request: int, inode: int, name: bytes, value: int | None, size: int, flags: int) -> None:
        self._operations.setxattr(inode, name, ctypes.string_at(value, size) if value else b"", flags)
        self._answer_done(request, None)

    def _getxattr(self, request: int, inode: int, name: bytes, size: int) -> None:
        self._value(request, self._operations.getxattr(inode, name), size)

    def _listxattr(self, request: int, inode: int, size: int) -> None:
        self._value(request, self._operations.listxattr(inode), size)

    # ------------------------------------------------------------------ directories

    def _opendir(self, request: int, inode: int, info: Any) -> None:
        number = info.contents.fh = self._operations.opendir(inode)
        if self._libfuse.fuse_reply_open(request, info):
            self._operations.releasedir(number)

    def _readdir(self, request: int, inode: int, size: int, offset: int, info: Any) -> None:
        listing = self._operations.entries(inode, info.contents.fh, offset, size // LEAST_DIRENT_BYTES)
        self._reply(request, [_dirent(len(name))(number, following, len(name), kind, name)
                              for following, name, number, kind in _fitting(listing, offset, size)])

    def _readdirplus(self, request: int, inode: int, size: int, offset: int, info: Any) -> None:
        room = size // (ENTRY_BYTES + LEAST_DIRENT_BYTES)
        listing = self._operations.entries(inode, info.contents.fh, offset, room, statuses=True)
        entries = _fitting(listing, offset, size, ENTRY_BYTES)
        statuses, seconds = self._operations.looked_up(inode, listing, offset, offset + len(entries))
        times = _times(seconds)
        # Of what is not known the kernel gets no inode, and asks if it needs one.
        if self._reply(request, [
                _direntplus(len(name))(number, times, status, number, following, len(name), kind, name) if status else
                _direntplus(len(name))(0, NO_TIMES, NO_STATUS, number, following, len(name), kind, name)
                for status, (following, name, number, kind) in zip(statuses, entries, strict=True)]):
            self._operations.forget([(number, 1) for status, (_, _, number, _) in zip(statuses, entries, strict=True)
                                     if status])

    def _reply(self, request: int, parts: Iterable[bytes]) -> int:
        """Not 0 if nobody gets the answer."""
        answer = b"".join(parts)
        return int(self._libfuse.fuse_reply_buf(request, answer, len(answer)))

    # ------------------------------------------------------------------ open files

    def _create(self, request: int, directory: int, name: bytes, mode: int, info: Any) -> None:
        opened = info.contents
        status = self._operations.create(directory, name, mode, opened)
        if self._answer_found(request, status, OPENED.pack(opened.fh, opened.direct_io | opened.keep_cache << 1, 0)):
            self._operations.release(opened.fh)

    def _open(self, request: int, inode: int, info: Any) -> None:
        self._operations.open(inode, info.contents)
        if self._libfuse.fuse_reply_open(request, info):
            self._operations.release(info.contents.fh)

    def _read(self, request: int, _: int, size: int, offset: int, info: Any) -> None:
        here = self._here.thread
        count = self._operations.read(info.contents.fh, here.memory(size), offset)
        here.read_bytes += count
        self._libfuse.fuse_reply_buf(request, here.address, count)

    def _write(self, request: int, _: int, data: int, size: int, offset: int, info: Any) -> None:
        count = self._operations.write(info.contents.fh, _bytes_at(data, size, READ_ONLY), offset)
        self._here.thread.written_bytes += count
        self._libfuse.fuse_reply_write(request, count)

    # ------------------------------------------------------------------ answers

    def _answer_done(self, request: int, _: None) -> None:
        self._libfuse.fuse_reply_err(request, 0)

    def _answer_found(self, request: int, status: Status, opened: bytes = b"") -> int:
        """Not 0 if nobody gets the answer: the program was interrupted."""
        inode, packed, seconds = status
        self._here.thread.found = inode
        failed = self._reply(request, (packed[:INODE_BYTES], _times(seconds), packed, opened))
        if failed:
            self._operations.forget([(inode, 1)])
        return failed

    def _answer_attributes(self, request: int, status: Status) -> None:
        whole_seconds = int(status.seconds)
        self._reply(request, (ATTRIBUTE_TIME.pack(whole_seconds, int((status.seconds - whole_seconds) * NS), 0),
                              status.packed))

    def _value(self, request: int, value: bytes, size: int) -> None:
        """Of an extended attribute, or with `size` 0 only how long it is."""
        if not size:
            self._libfuse.fuse_reply_xattr(request, len(value))
        elif len(value) > size:
            raise OSError(errno.ERANGE, "the value is longer")
        else:
            self._libfuse.fuse_reply_buf(request, value, len(value))


def _answered(operation: str, answer: str) -> Callable[..., None]:
    """A method for requests whose arguments are those of the operation, but for what they point to."""
    own = getattr(Requests, f"_answer_{answer}", None)
    passed = [(place, POINTED.get(name)) for place, name in enumerate(PASSED[operation]) if name[0] != "-"]
    passes_all = passed == [(place, None) for place in range(len(PASSED[operation]))]

    def method(self: Requests, request: int, *arguments: Any) -> None:
        result = getattr(self._operations, operation)(*(arguments if passes_all else [
            arguments[place] if pointed is None else pointed(arguments[place]) for place, pointed in passed]))
        if own is not None:
            own(self, request, result)
        else:
            getattr(self._libfuse, f"fuse_reply_{answer}")(request, result)

    return method


for _operation, _answer in ANSWERS.items():
    if not hasattr(Requests, f"_{_operation}"):
        setattr(Requests, f"_{_operation}", _answered(_operation, _answer))


def _fitting(listing: Listing, offset: int, size: int, more_bytes: int = 0) -> list[tuple[int, bytes, int, int]]:
    """Entries from the one with number `offset` on that `size` bytes have room for, with `more_bytes` for each: the
    number of the next one, name, inode, and kind as FUSE has it."""
    least_bytes = more_bytes + LEAST_DIRENT_BYTES
    end = offset + size // least_bytes
    names = listing.names[offset:end]
    ends = list(accumulate([least_bytes + (len(name) - 1 & -ALIGNMENT) for name in names]))
    del names[bisect_right(ends, size):]
    end = offset + len(names)
    return list(zip(range(offset + 1, end + 1), names, listing.inodes[offset:end],
                    listing.kinds[offset:end].translate(KINDS), strict=True))


@cache
def _dirent(name_bytes: int) -> Callable[..., bytes]:
    """Packs a fuse_dirent: inode, number of the next one, length of the name, kind, name."""
    return struct.Struct(f"{DIRENT.format}{name_bytes}s{-name_bytes % ALIGNMENT}x").pack


@cache
def _direntplus(name_bytes: int) -> Callable[..., bytes]:
    """The same behind a fuse_entry_out: inode, times, STATUS."""
    return struct.Struct(f"=Q{TIMES.size}s{STATUS.size}s{DIRENT.format[1:]}{name_bytes}s{-name_bytes % ALIGNMENT}x"
                         ).pack


def _times(seconds: float) -> bytes:
    """How long the kernel may keep a name and its attributes."""
    whole_seconds = int(seconds)
    rest_ns = int((seconds - whole_seconds) * NS)
    return TIMES.pack(0, whole_seconds, whole_seconds, rest_ns if seconds > ONE_CALL_SECONDS else 0, rest_ns)
