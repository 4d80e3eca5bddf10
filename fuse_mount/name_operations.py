"""Operations on names and attributes.

The public methods are what libfuse calls, each a thin door to a private worker. `info` is libfuse's
`fuse_file_info`.
"""

import errno
import os
import stat
import time
from collections.abc import Iterator
from typing import Any

from fs.errors import SpeedwellError
from fs.proto.speedwell_pb2 import DIRECTORY, Attributes
from fuse_mount.door import Path, answers_errno
from fuse_mount.open_files import FileInfo, OpenFile
from fuse_mount.shared import SharedState

PREFERRED_IO_BYTES = 128 * 1024  # what programs such as cp and cat take as their block
FRAGMENT_BYTES = 4096
NAME_MAX_BYTES = 255
# In place of nanoseconds in a timespec (utimensat(2)).
UTIME_NOW = (1 << 30) - 1
UTIME_OMIT = (1 << 30) - 2
RENAME_NOREPLACE = 1


class NameOperations(SharedState):
    """Everything that needs no open file."""

    @answers_errno
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

    @answers_errno
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
            size = file.size if file.resized else max(size, file.size)
        self._told.tell(attributes.inode, size, attributes.mtime_ns)
        return _stat_fields(attributes, size, 0 if file is not None and file.unlinked else None)

    @answers_errno
    def chmod(self, path: Path | None, mode: int, info: FileInfo | None = None) -> int:
        self._client.set_attributes(self._name(path, info), mode=stat.S_IMODE(mode))
        return 0

    @answers_errno
    def chown(self, path: Path | None, uid: int, gid: int, info: FileInfo | None = None) -> int:
        self._client.set_attributes(self._name(path, info), uid=None if uid == -1 else uid,
                                    gid=None if gid == -1 else gid)
        return 0

    @answers_errno
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

    @answers_errno
    def readdir(self, path: Path, info: FileInfo | int | None = None) -> Iterator[tuple[str, Any, int]]:
        return self._readdir(path)

    def _readdir(self, path: Path) -> Iterator[tuple[str, Any, int]]:
        entries = self._client.list(path)
        directory = {"st_mode": stat.S_IFDIR}
        listing: list[tuple[str, Any, int]] = [(".", directory, 0), ("..", directory, 0)]
        listing += [(os.fsdecode(entry.name), {"st_mode": _type_bits(entry.attributes),
                                               "st_ino": entry.attributes.inode}, 0) for entry in entries]
        return iter(listing)

    @answers_errno
    def mkdir(self, path: Path, mode: int) -> int:
        uid, gid, _ = self._caller()
        self._client.mkdir(path, stat.S_IMODE(mode), uid, gid)
        return 0

    @answers_errno
    def rmdir(self, path: Path) -> int:
        self._client.rmdir(path)
        return 0

    @answers_errno
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

    @answers_errno
    def unlink(self, path: Path) -> int:
        return self._unlink(os.fsencode(path))

    def _unlink(self, path: bytes) -> int:
        removed = self._if_open(path)
        self._client.remove(path)
        self._pages.forget(path)
        if removed is not None:
            removed.unlinked = True
        return 0

    @answers_errno
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
