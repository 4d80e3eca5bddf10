"""Operations on names and attributes.

The public methods are what libfuse calls, each a thin door to a private worker. `info` is libfuse's
`fuse_file_info`.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from fs import paths
from fs.errors import NoSuchFile, NotADirectory, SpeedwellError
from fs.proto import speedwell_pb2 as pb
from fs.proto.speedwell_pb2 import Attributes
from fuse_mount.door import FileInfo, Path, answers_errno, answers_errno_to_names
from fuse_mount.open_file import OpenFile
from fuse_mount.shared import SharedState

PREFERRED_IO_BYTES = 128 * 1024  # what programs such as cp and cat take as their block
FRAGMENT_BYTES = 4096
NAME_MAX_BYTES = 255
# In place of nanoseconds in a timespec (utimensat(2)).
UTIME_NOW = (1 << 30) - 1
UTIME_OMIT = (1 << 30) - 2
# 64 bits of nanoseconds: 1677 to 2262. What is beyond becomes the first or the last, as on other filesystems.
MAX_TIME_NS = 2**63 - 1
RENAME_NOREPLACE = 1
RENAME_EXCHANGE = 2
UNKNOWN_INODE = 0xFFFFFFFF  # what libfuse itself says where it does not know one
FREE_INODES = 1 << 40  # there is no limit; programs such as df and rsync want to see that there are some

SPECIAL_KINDS: dict[int, int] = {
    stat.S_IFIFO: pb.FIFO, stat.S_IFSOCK: pb.SOCKET, stat.S_IFCHR: pb.CHARACTER_DEVICE,
    stat.S_IFBLK: pb.BLOCK_DEVICE,
}
TYPE_BITS: dict[int, int] = {
    pb.REGULAR: stat.S_IFREG, pb.DIRECTORY: stat.S_IFDIR, pb.SYMBOLIC_LINK: stat.S_IFLNK,
    **{kind: bits for bits, kind in SPECIAL_KINDS.items()},
}


class NameOperations(SharedState):
    """Everything that needs no open file."""

    @answers_errno
    def statfs(self, path: Path) -> dict[str, int]:
        return self._statfs()

    def _statfs(self) -> dict[str, int]:
        statistics = self._client.statistics()
        copies = max(1, statistics.replication)
        capacity, available = statistics.capacity_bytes // copies, statistics.available_bytes // copies
        files, free_files = statistics.files + statistics.directories + FREE_INODES, FREE_INODES
        for quota in self._client.metadata.quotas("/"):
            if quota.HasField("max_bytes"):
                capacity = min(capacity, quota.max_bytes)
                available = min(available, max(0, quota.max_bytes - quota.used_bytes))
            if quota.HasField("max_files"):
                files, free_files = quota.max_files, max(0, quota.max_files - quota.used_files)
        return {
            "f_bsize": PREFERRED_IO_BYTES, "f_frsize": FRAGMENT_BYTES, "f_namemax": NAME_MAX_BYTES,
            "f_blocks": capacity // FRAGMENT_BYTES,
            "f_bfree": available // FRAGMENT_BYTES, "f_bavail": available // FRAGMENT_BYTES,
            "f_files": files, "f_ffree": free_files, "f_favail": free_files,
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
            attributes = self._of_open(file, self._name(path, info))
        size = attributes.size
        if file is not None and file.attributes.file_id == attributes.file_id:
            if size > file.attributes.size and not file.dirty:
                file.refresh(attributes)  # what the kernel is told, handles that are open have to read
            size = file.size if file.resized else max(size, file.size)
        self._told.tell(attributes.inode, size, attributes.mtime_ns)
        fields = _stat_fields(attributes, size)
        if file is not None and file.dirty:  # a write changes the times at once, not when it is published
            fields["st_mtime"] = max(fields["st_mtime"], file.changed_ns)
            fields["st_ctime"] = max(fields["st_ctime"], file.changed_ns)
        if path is not None and attributes.type != pb.DIRECTORY:
            hidden = self.hidden.known_as(attributes.inode) if paths.is_inode(os.fsencode(path)) else None
            if hidden is not None:
                fields["st_nlink"] += 1  # libfuse takes the hidden name off
                self._links.told(attributes.inode, hidden)
            elif attributes.link_count > 1:
                self._links.told(attributes.inode, os.fsencode(path))
        return fields

    def _of_open(self, file: OpenFile, path: Path) -> Attributes:
        """Of an open file, which another mount may have removed, or whose name it may have given to another file."""
        for name in (path, paths.of_inode(file.attributes.inode)):
            with suppress(NoSuchFile, NotADirectory):
                found = self._client.lookup(name)
                if found.inode == file.attributes.inode:
                    return found
        gone = Attributes()
        gone.CopyFrom(file.attributes)
        gone.link_count = 0
        return gone

    @answers_errno
    def chmod(self, path: Path | None, mode: int, info: FileInfo | None = None) -> int:
        attributes = self._client.set_attributes(self._name(path, info), mode=stat.S_IMODE(mode))
        self._note_mode(attributes.inode, attributes.mode)
        self._links.changed(attributes.inode)
        return 0

    @answers_errno
    def chown(self, path: Path | None, uid: int, gid: int, info: FileInfo | None = None) -> int:
        attributes = self._client.set_attributes(self._name(path, info), uid=None if uid == -1 else uid,
                                                 gid=None if gid == -1 else gid)
        self._links.changed(attributes.inode)
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
        atime_ns, mtime_ns = (None if value in (UTIME_OMIT, UTIME_NOW) else max(-MAX_TIME_NS, min(value, MAX_TIME_NS))
                              for value in times)
        if times != (UTIME_OMIT, UTIME_OMIT):
            attributes = self._metadata.set_attributes(
                path, atime_ns=atime_ns, mtime_ns=mtime_ns, atime_now=times[0] == UTIME_NOW,
                mtime_now=times[1] == UTIME_NOW)
            self._links.changed(attributes.inode)
        return 0

    # ------------------------------------------------------------------ names

    @answers_errno
    def readdir(self, path: Path, info: FileInfo | int | None = None) -> Iterator[tuple[str, Any, int]]:
        return ((os.fsdecode(name), {"st_mode": type_bits, "st_ino": inode}, 0)
                for name, type_bits, inode in self._readdir(path))

    @answers_errno
    def read_directory(self, path: Path) -> list[tuple[bytes, int, int]]:
        """Name, type bits and inode number of each entry."""
        return self._readdir(path)

    def _readdir(self, path: Path) -> list[tuple[bytes, int, int]]:
        listing = [(b".", stat.S_IFDIR, UNKNOWN_INODE), (b"..", stat.S_IFDIR, UNKNOWN_INODE)]
        for entry in self._client.list(path):
            attributes = entry.attributes
            listing.append((entry.name, TYPE_BITS[attributes.type], attributes.inode))
        return listing

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
        uid, gid, _ = self._caller()
        kind = stat.S_IFMT(mode)
        if kind in (0, stat.S_IFREG):
            self._client.create(path, stat.S_IMODE(mode), uid, gid, True)
        elif kind in SPECIAL_KINDS:
            self._metadata.make_special(path, SPECIAL_KINDS[kind], stat.S_IMODE(mode), uid, gid, device)
        else:
            raise OSError(errno.EINVAL, "not a kind of file that mknod(2) makes")
        return 0

    @answers_errno
    def symlink(self, path: Path, target: Path) -> int:
        uid, gid, _ = self._caller()
        self._metadata.make_symbolic_link(path, os.fsencode(target), uid, gid)
        return 0

    @answers_errno
    def readlink(self, path: Path) -> bytes:
        attributes = self._client.lookup(path)
        if attributes.type != pb.SYMBOLIC_LINK:
            raise OSError(errno.EINVAL, "not a symbolic link")
        return attributes.target

    @answers_errno
    def link(self, path: Path, existing: Path) -> int:
        return self._link(os.fsencode(path), self.hidden.path_of(existing))

    def _link(self, path: bytes, existing: bytes) -> int:
        attributes = self._metadata.link(existing, path)
        self._pages.forget(path)
        self._links.told(attributes.inode, existing)
        self._links.changed(attributes.inode)
        return 0

    @answers_errno_to_names
    def unlink(self, path: Path) -> int:
        return self._unlink(os.fsencode(path))

    def _unlink(self, path: bytes) -> int:
        inode = self.hidden.drop(path)
        if inode is None:
            self._remove(path, self._if_open(path) is not None)
        else:
            self._let_go(inode)
        return 0

    def _remove(self, path: bytes, is_open: bool, hidden: bytes | None = None) -> None:
        """Take a name away. What is open here and loses its last one lives on, for libfuse under `hidden`."""
        removed = self._metadata.remove(path, self._session.number if is_open else 0)
        self._pages.forget(path)
        self._links.changed(removed.inode)
        if is_open:
            self._drop_attributes(path)  # the kernel counts the links down from what it was told some time ago
            if hidden is not None:
                self.hidden.hide(hidden, removed.inode)
            self._hold(removed)

    def _hold(self, removed: Attributes) -> None:
        """A file lost a name by a request with this mount's session: with the last one the nameserver keeps the inode
        until `_let_go`. It need not be the one that is open here: another mount may have put it there meanwhile."""
        if removed.link_count == 0:
            self._nameless.add(removed.inode)
            file = self._files.by_inode(removed.inode)
            if file is not None:
                file.unlinked = True
            self._let_go(removed.inode)

    def _let_go(self, inode: int) -> None:
        """Unless it is open here, or libfuse may still ask about it under a hidden name."""
        if self._files.by_inode(inode) is None and self.hidden.known_as(inode) is None:
            self._nameless.closed(inode)

    @answers_errno_to_names
    def rename(self, source: Path, destination: Path, flags: int = 0) -> int:
        return self._rename(os.fsencode(source), os.fsencode(destination), flags)

    def _rename(self, source: bytes, destination: bytes, flags: int) -> int:
        if flags not in (0, RENAME_NOREPLACE, RENAME_EXCHANGE):
            raise OSError(errno.EINVAL, "only RENAME_NOREPLACE or RENAME_EXCHANGE is supported")
        if not flags and self._is_hiding(source, destination):
            return self._hide(source, destination)
        hidden, self.rename_requests.here.hidden = self.rename_requests.here.hidden, None
        replaced = self._if_open(destination) if source != destination and flags != RENAME_EXCHANGE else None
        holds = replaced is not None or hidden is not None
        gone = None
        try:
            gone = self._metadata.rename(source, destination, no_replace=flags == RENAME_NOREPLACE,
                                         exchange=flags == RENAME_EXCHANGE,
                                         session=self._session.number if holds else 0)
        finally:
            if hidden is not None:  # also if the rename fails: libfuse has its name for the file, and keeps it
                known = replaced.attributes.inode if replaced else self._files.opened_as(destination)
                self.hidden.hide(hidden, gone.inode if gone is not None else known or 0)
        self._pages.forget(source, destination)
        if gone is not None:
            self._links.changed(gone.inode)
            if hidden is not None:
                self._drop_attributes(hidden)
            if holds:
                self._hold(gone)
        return 0

    def _is_hiding(self, source: bytes, destination: bytes) -> bool:
        """Whether this is libfuse's way to take an open file away, not a program's rename."""
        return (self.hidden.is_hiding(source, destination)
                and paths.name(destination) != self.rename_requests.here.new_name
                and (self.rename_requests.followed or self._if_open(source) is not None))

    def _hide(self, path: bytes, hidden: bytes) -> int:
        """What has the name loses it: now, or to the file that libfuse renames next, and that is one step then."""
        if self.rename_requests.here.new_name is not None:
            self.rename_requests.here.hidden = hidden
            return 0
        self._remove(path, True, hidden)
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


def _stat_fields(attributes: Attributes, size_bytes: int) -> dict[str, int]:
    return {
        "st_mode": attributes.mode | TYPE_BITS[attributes.type],
        "st_ino": attributes.inode,
        "st_nlink": attributes.link_count,
        "st_uid": attributes.uid,
        "st_gid": attributes.gid,
        "st_rdev": attributes.device,
        "st_size": size_bytes,
        "st_blocks": (size_bytes + 511) // 512,
        "st_blksize": PREFERRED_IO_BYTES,
        "st_atime": attributes.atime_ns,
        "st_mtime": attributes.mtime_ns,
        "st_ctime": attributes.ctime_ns,
    }
