"""Operations on names and attributes."""

import errno
import stat
from collections.abc import Iterable, Sequence
from typing import Any

from fs import paths
from fs.client.metadata import LIST_PAGE
from fs.errors import NoSuchFile, SpeedwellError
from fs.proto import speedwell_pb2 as pb
from fs.proto.speedwell_pb2 import Attributes, DirectoryEntry
from fuse_mount.shared import SET_ID_BITS, Listing, Status
from fuse_mount.sharing import Sharing

PREFERRED_IO_BYTES = 128 * 1024  # what programs such as cp and cat take as their block
FRAGMENT_BYTES = 4096
MOST_AT_ONCE = 4096 # entries of a directory that one answer looks at
FIRST_PAGE = 256    # what the kernel asks for first, with attributes, is about that much
FETCHED_AHEAD = 2   # as many as do not come from the nameserver: `.` and `..`
NAME_MAX_BYTES = 255
# 64 bits of nanoseconds: 1677 to 2262. What is beyond becomes the first or the last, as on other filesystems.
MAX_TIME_NS = 2**63 - 1
RENAME_NOREPLACE = 1
RENAME_EXCHANGE = 2
FREE_INODES = 1 << 40  # there is no limit; programs such as df and rsync want to see that there are some

SPECIAL_KINDS: dict[int, int] = {
    stat.S_IFIFO: pb.FIFO, stat.S_IFSOCK: pb.SOCKET, stat.S_IFCHR: pb.CHARACTER_DEVICE,
    stat.S_IFBLK: pb.BLOCK_DEVICE,
}
TYPE_BITS: dict[int, int] = {
    pb.REGULAR: stat.S_IFREG, pb.DIRECTORY: stat.S_IFDIR, pb.SYMBOLIC_LINK: stat.S_IFLNK,
    **{kind: bits for bits, kind in SPECIAL_KINDS.items()},
}


class NameOperations(Sharing):
    """Everything that needs no open file. A file is named by its inode, or by the inode of its directory and its name
    there."""

    def statfs(self) -> dict[str, int]:
        statistics = self._client.statistics()
        copies = max(1, statistics.replication)
        capacity, available = statistics.capacity_bytes // copies, statistics.available_bytes // copies
        files, free_files = statistics.files + statistics.directories + FREE_INODES, FREE_INODES
        for quota in self._client.metadata.quotas(paths.of_inode(self._root)):
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

    # ------------------------------------------------------------------ inodes that the kernel has

    def lookup(self, directory: int, name: bytes) -> Status:
        path = _place(directory, name)
        try:
            return self._found(path, self._client.lookup(path))
        except SpeedwellError:
            if self._told_stale:
                self._told_stale.pop(self._kernel.caller().process, None)
            raise

    def _found(self, path: bytes, attributes: Attributes) -> Status:
        self._nodes.found(attributes.inode, path)
        return self._status(attributes, path)

    def forget(self, forgotten: Iterable[tuple[int, int]]) -> None:
        """Inodes, each with the number of look-ups that the kernel gives back."""
        self._nodes.forget(forgotten)

    # ------------------------------------------------------------------ attributes

    def getattr(self, inode: int) -> Status:
        path = paths.of_inode(inode)
        try:
            attributes = self._client.lookup(path)
        except NoSuchFile:
            file = self._files.by_inode(inode)
            known = self._nodes.get(inode).removed if file is None else file.attributes
            if known is None:
                raise
            attributes = Attributes()   # an open directory, or another mount has removed an open file
            attributes.CopyFrom(known)
            attributes.link_count = 0
        return self._status(attributes, path)

    def set_attributes(self, inode: int, changes: dict[str, Any]) -> Status:
        """`changes` are what `MetadataClient.set_attributes` takes."""
        path = paths.of_inode(inode)
        times = [key for key in ("atime_ns", "mtime_ns") if key in changes]
        sets_id = changes.get("mode", 0) & SET_ID_BITS
        if times or sets_id or "atime_now" in changes or "mtime_now" in changes:
            # A commit sets the time of the write, and set-id bits go: what is buffered has to be committed before.
            file = self._files.by_inode(inode)
            if file is not None:
                file.flush()
                for handle in list(file.handles) if sets_id else ():
                    handle.wrote_under_mode = False
        for key in times:
            changes[key] = max(-MAX_TIME_NS, min(changes[key], MAX_TIME_NS))
        attributes = self._metadata.set_attributes(path, **changes)
        self._note_mode(attributes)
        return self._status(attributes, path)

    # ------------------------------------------------------------------ directories

    def opendir(self, inode: int) -> int:
        number = next(self._listing_numbers)
        self._listings[number] = Listing()
        return number

    def entries(self, inode: int, number: int, offset: int, *, names_only: bool = False) -> list[DirectoryEntry]:
        """The entries of an open directory from the one on with number `offset`; the first two are `.` and `..`."""
        if not offset:
            own = Attributes(inode=inode, type=pb.DIRECTORY)
            self._listings[number] = Listing([DirectoryEntry(name=name, attributes=own) for name in (b".", b"..")])
        listing = self._listings[number]
        if offset + FETCHED_AHEAD >= len(listing.entries) and listing.has_more:
            last = listing.entries[-1].name if len(listing.entries) > FETCHED_AHEAD else b""
            if names_only and listing.names_only is None:
                listing.names_only = self._metadata.names_do()
            reply = self._metadata.list_page(paths.of_inode(inode), last, LIST_PAGE if last else FIRST_PAGE,
                                             names_only=names_only and bool(listing.names_only))
            listing.entries.extend(reply.entries)
            listing.has_more = reply.more
        return listing.entries[offset:offset + MOST_AT_ONCE]

    def looked_up(self, directory: int, names: Sequence[bytes]) -> list[Status | None]:
        """Like `lookup` of each of the entries that were just listed, where that is to be had without asking."""
        path = paths.of_inode(directory)
        known = self._metadata.known_entries(path, names)
        self._nodes.found_all((attributes[0].inode, paths.join(path, name))
                              for name, attributes in zip(names, known, strict=True) if attributes is not None)
        return [None if each is None else self._status_for(*each) for each in known]

    def releasedir(self, number: int) -> None:
        self._listings.pop(number, None)

    def fsyncdir(self) -> None:
        self._metadata.sync()

    # ------------------------------------------------------------------ making

    def mkdir(self, directory: int, name: bytes, mode: int) -> Status:
        path = _place(directory, name)
        uid, gid, _, umask = self._kernel.caller()
        return self._found(path, self._client.mkdir(path, stat.S_IMODE(mode), uid, gid, umask))

    def mknod(self, directory: int, name: bytes, mode: int, device: int) -> Status:
        path = _place(directory, name)
        uid, gid, _, umask = self._kernel.caller()
        kind = stat.S_IFMT(mode)
        if kind in (0, stat.S_IFREG):
            return self._found(path, self._client.create(path, stat.S_IMODE(mode), uid, gid, True, umask=umask))
        if kind in SPECIAL_KINDS:
            return self._found(path, self._metadata.make_special(path, SPECIAL_KINDS[kind], stat.S_IMODE(mode), uid,
                                                                 gid, device, umask))
        raise OSError(errno.EINVAL, "not a kind of file that mknod(2) makes")

    def symlink(self, target: bytes, directory: int, name: bytes) -> Status:
        path = _place(directory, name)
        return self._found(path, self._metadata.make_symbolic_link(path, target, *self._kernel.caller()[:2]))

    def readlink(self, inode: int) -> bytes:
        attributes = self._client.lookup(paths.of_inode(inode))
        if attributes.type != pb.SYMBOLIC_LINK:
            raise OSError(errno.EINVAL, "not a symbolic link")
        return attributes.target

    def link(self, inode: int, directory: int, name: bytes) -> Status:
        path = _place(directory, name)
        return self._found(path, self._metadata.link(paths.of_inode(inode), path))

    # ------------------------------------------------------------------ removing and renaming

    def rmdir(self, directory: int, name: bytes) -> None:
        removed = self._metadata.rmdir(_place(directory, name))
        self._nodes.get(removed.inode).removed = removed

    def unlink(self, directory: int, name: bytes) -> None:
        path = _place(directory, name)
        is_open = self._if_open(path) is not None
        removed = self._metadata.remove(path, self._session.number if is_open else 0)
        if is_open:
            self._hold(removed)

    def rename(self, directory: int, name: bytes, new_directory: int, new_name: bytes, flags: int) -> None:
        if flags not in (0, RENAME_NOREPLACE, RENAME_EXCHANGE):
            raise OSError(errno.EINVAL, "only RENAME_NOREPLACE or RENAME_EXCHANGE is supported")
        source, destination = _place(directory, name), _place(new_directory, new_name)
        holds = source != destination and flags != RENAME_EXCHANGE and self._if_open(destination) is not None
        moved = self._metadata.known(source)
        replaced = self._metadata.rename(source, destination, no_replace=flags == RENAME_NOREPLACE,
                                         exchange=flags == RENAME_EXCHANGE,
                                         session=self._session.number if holds else 0)
        if moved is not None and flags != RENAME_EXCHANGE:
            self._nodes.get(moved.inode).place = destination
        if replaced is not None and holds:
            self._hold(replaced)
        elif replaced is not None and replaced.type == pb.DIRECTORY:
            self._nodes.get(replaced.inode).removed = replaced


def _place(directory: int, name: bytes) -> bytes:
    return paths.join(paths.of_inode(directory), name)
