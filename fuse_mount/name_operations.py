"""Operations on names and attributes, extended ones (xattr(7)) too."""

import errno
import stat
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from speedwell.fs import paths, units
from speedwell.fs.client.names.attribute_cache import NEVER
from speedwell.fs.errors import NoSuchAttribute, NoSuchFile, SpeedwellError
from speedwell.fs.file_status import (
    CAPABILITIES,
    MODE_AND_LINKS,
    PREFERRED_IO_BYTES,
    SET_ID_BITS,
    SPECIAL_KINDS,
    STATUS,
)
from speedwell.fs.proto import speedwell_pb2 as pb
from speedwell.fs.proto.speedwell_pb2 import Attributes
from speedwell.fuse_mount.listers import LEAST_ENTRIES
from speedwell.fuse_mount.shared import ONE_CALL_SECONDS, Listing, SharedState, Status, ToldStale

FRAGMENT_BYTES = 4096
NAME_MAX_BYTES = 255
OWN_ENTRIES = 2     # `.` and `..`
LINKS_OF_LEAF = 2   # its name and its `.`
# 64 bits of nanoseconds: 1677 to 2262. What is beyond becomes the first or the last, as on other filesystems.
MAX_TIME_NS = 2**63 - 1
RENAME_NOREPLACE = 1
RENAME_EXCHANGE = 2
MAX_TOLD_STALE = 1024
FREE_INODES = 1 << 40  # there is no limit; programs such as df and rsync want to see that there are some

XATTR_CREATE = 1
XATTR_REPLACE = 2
# The kernel has checked who may use which before it asks (trusted. is for root, user. follows the permissions).
PREFIXES = (b"user.", b"trusted.", b"security.")
ACLS = (b"system.posix_acl_access", b"system.posix_acl_default")
QUOTA = b"speedwell.quota"
# Labels of a security module that would have to be the same on every machine; `ls -l` asks for one per file,
# unless it is told that there are none.
NOT_SUPPORTED = (b"security.selinux",)


class NameOperations(SharedState):
    """Everything that needs no open file. A file is named by its inode, or by the inode of its directory and its name
    there."""

    def statfs(self) -> dict[str, int]:
        statistics = self._client.statistics()
        copies = max(1, statistics.replication)
        capacity, available = statistics.capacity_bytes // copies, statistics.available_bytes // copies
        files, free_files = statistics.files + statistics.directories + FREE_INODES, FREE_INODES
        for quota in self._metadata.quotas(paths.of_inode(self._root)):
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
        status = self._look_up(directory, name)
        if self._listers and not stat.S_ISDIR(MODE_AND_LINKS.unpack(status.packed)[0]):
            self._listers.looked_up(self._kernel.caller().process)
        return status

    def _look_up(self, directory: int, name: bytes) -> Status:
        path, told = paths.below(directory, name), self._told()
        if told is None:
            known = self._known.get(path)
            found = self._found(path, known) if known is not None else self._found_ahead(directory, name, path)
            if found is not None:
                self._look_ahead.hits += 1
                return found
        try:
            attributes = self._client.lookup(path, fresh=True)
        except SpeedwellError:
            if told is not None:
                told.found, told.misses = None, told.misses + 1
            raise
        status = self._found(path, attributes)
        if told is None:
            self._go_ahead(directory, name)
            return status
        if told.misses <= 1:    # of a name the kernel asks twice; then the program was told that there is nothing
            told.found = attributes
        return status._replace(seconds=ONE_CALL_SECONDS)    # a later call is to look it up again

    def _go_ahead(self, directory: int, name: bytes) -> None:
        """List what comes after a name that was looked up, if the program looks at one name after the other."""
        page = self._look_ahead.missed(paths.of_inode(directory), name) if self._known.seconds else 0
        if page:
            listing = _listing(directory)
            with suppress(SpeedwellError):  # what was asked for is known already
                self._list_on(directory, listing, name, statuses=True, page=page)
                self._ahead = directory, {name: place for place, name in enumerate(listing.names)}, listing

    def _found_ahead(self, directory: int, name: bytes, path: bytes) -> Status | None:
        listed, places, listing = self._ahead
        place = places.get(name, 0) if directory == listed else 0
        if place < listing.first or not place:
            return None
        inode, seconds = listing.inodes[place], listing.moment.until - time.monotonic()
        if seconds <= 0 or self._known.changed_since(listing.moment, (path, inode)) or (
                self._files and self._files.by_inode(inode) is not None):
            return None     # beside it others may have come and gone
        at = (place - listing.first) * STATUS.size
        status = listing.statuses[at:at + STATUS.size]
        self._nodes.found(inode, path, status)
        return Status(inode, status, min(seconds, ONE_CALL_SECONDS) if self._locks_used else seconds)

    def _told(self) -> ToldStale | None:
        told = self._told_stale.get(self._kernel.caller().process) if self._told_stale else None
        return None if told is None or told.is_over else told

    def _found_again(self, inode: int) -> Attributes | None:
        """What the program found under that number when it was told to look again."""
        told = self._told()
        return None if told is None or told.found is None or told.found.inode != inode else told.found

    def _stale(self, why: str) -> OSError:
        """Of which the kernel looks the name up again."""
        if len(self._told_stale) >= MAX_TOLD_STALE:
            self._told_stale.clear()
        self._told_stale[self._kernel.caller().process] = ToldStale(time.monotonic())
        return OSError(errno.ESTALE, why)

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
            known = known or self._found_again(inode)   # which is about to be opened
            if known is None:
                raise self._stale("it is removed") from None
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
        if attributes.has_extended_attributes and ("uid" in changes or "gid" in changes):
            self._drop_capabilities(inode)
        self._note_mode(attributes)
        return self._status(attributes, path)

    # ------------------------------------------------------------------ extended attributes; names have their prefix

    def getxattr(self, inode: int, name: bytes) -> bytes:
        path = paths.of_inode(inode)
        if name == QUOTA:
            return self._quota(path)
        self._require_supported(name)
        if not self._client.lookup(path).has_extended_attributes:
            raise NoSuchAttribute("the file has no attributes")
        value = self._metadata.posix.list_extended_attributes(path).get(name)
        if value is None:
            raise NoSuchAttribute("the file has other attributes")
        return value

    def _quota(self, path: bytes) -> bytes:
        """A line for each quota that holds here, the innermost first: EDQUOT alone does not name the directory."""
        lines = []
        for quota in self._metadata.quotas(path):
            room = [f"{units.size(quota.used_bytes)} of {units.size(quota.max_bytes)}"] * quota.HasField("max_bytes")
            room += [f"{quota.used_files} of {quota.max_files} files and directories"] * quota.HasField("max_files")
            lines.append(quota.path + f": {', '.join(room)}".encode())
        if not lines:
            raise NoSuchAttribute("no quota holds here")
        return b"\n".join(lines)

    def listxattr(self, inode: int) -> bytes:
        """The names, each with a NUL behind it."""
        path = paths.of_inode(inode)
        if not self._client.lookup(path).has_extended_attributes:
            return b""
        is_root = self._kernel.caller()[0] == 0
        return b"".join(name + b"\0" for name in self._metadata.posix.list_extended_attributes(path)
                        if is_root or not name.startswith(b"trusted."))

    def setxattr(self, inode: int, name: bytes, value: bytes, flags: int) -> None:
        self._require_supported(name)
        path = paths.of_inode(inode)
        clear_setgid = name in ACLS and not self._kernel.is_in_group(self._client.lookup(path).gid)
        self._metadata.posix.set_extended_attribute(
            path, name, value, create=bool(flags & XATTR_CREATE), replace=bool(flags & XATTR_REPLACE),
            clear_setgid=clear_setgid)
        if name == CAPABILITIES:
            self._nodes.get(inode).may_be_capable = True

    def removexattr(self, inode: int, name: bytes) -> None:
        self._require_supported(name)
        self._metadata.posix.remove_extended_attribute(paths.of_inode(inode), name)

    def _require_supported(self, name: bytes) -> None:
        if name in NOT_SUPPORTED or (not name.startswith(PREFIXES) and not (self._kernel.acls and name in ACLS)):
            raise OSError(errno.EOPNOTSUPP, "no attributes of this kind")
        if name in PREFIXES:
            raise OSError(errno.EINVAL, "the attribute has no name after its prefix")

    # ------------------------------------------------------------------ directories

    def opendir(self, inode: int) -> int:
        number = next(self._listing_numbers)
        self._listings[number] = _listing(inode)
        return number

    def entries(self, inode: int, number: int, offset: int, room: int, *, statuses: bool = False) -> Listing:
        """An open directory, listed beyond the entry with the number `offset`, if it has more, for an answer that has
        `room` for so many. Who asks for no `statuses` of the first ones gets names alone from then on."""
        if not offset:
            self._listings[number] = _listing(inode)
        listing, begin = self._listings[number], max(offset, OWN_ENTRIES)
        if statuses and begin < len(listing.names) and not self._holds(inode, listing, begin):
            for column in (listing.names, listing.inodes, listing.kinds):
                del column[begin:]
            listing.has_more = True
        listed, page = len(listing.names), room if statuses and not offset else 0
        if listing.has_more and (begin >= listed or (not statuses and listed - begin < room)):
            wants = statuses and not (page and self._wants_names_alone(inode))
            self._list_on(inode, listing, b"" if listed == OWN_ENTRIES else listing.names[-1], statuses=wants,
                          page=page)
            if wants and page and len(listing.names) >= LEAST_ENTRIES:
                self._leave_one_out(inode, listing)
        return listing

    def _wants_names_alone(self, inode: int) -> bool:
        """Of a directory without others in it, which every program that walks a tree looks up."""
        if not self._listers.wants_names_alone(self._kernel.caller().process, time.monotonic()):
            return False
        links = self._nodes.links(inode)
        if not links:
            known = self._known.get(paths.of_inode(inode))
            links = 0 if known is None else known.link_count
        return links == LINKS_OF_LEAF

    def _leave_one_out(self, directory: int, listing: Listing) -> None:
        """The first file, if the kernel has to ask for it: who walks a tree comes to it before the next directory."""
        program, now, place = self._kernel.caller().process, time.monotonic(), OWN_ENTRIES
        if (listing.statuses and now < listing.moment.until and listing.kinds[place] != pb.DIRECTORY
                and listing.inodes[place] not in self._nodes and self._listers.is_new(program, now)):
            listing.left_out = listing.inodes[place]
            self._listers.left_out(program, now)
            self._ahead = directory, {listing.names[place]: place}, listing

    def _list_on(self, directory: int, listing: Listing, after: bytes, *, statuses: bool, page: int) -> None:
        reply, moment = self._metadata.list_columns(paths.of_inode(directory), after, statuses=statuses, limit=page)
        listing.first, listing.statuses = len(listing.names), reply.statuses
        listing.moment = moment if reply.statuses else NEVER    # none of a directory that may be read, not searched
        listing.names.extend(reply.names)
        listing.inodes.extend(reply.inodes)
        listing.kinds.extend(reply.kinds)
        listing.has_more = reply.more

    def _holds(self, directory: int, listing: Listing, begin: int) -> bool:
        """Whether what is known about the entries from `begin` on may be told."""
        return listing.first <= begin and time.monotonic() < listing.moment.until and not self._known.changed_since(
            listing.moment, [directory])

    def looked_up(self, directory: int, listing: Listing, begin: int, end: int) -> tuple[list[bytes], float]:
        """Like `lookup` of each of some entries: their STATUS, empty where that is not known, and for how many
        seconds the kernel may keep it."""
        own, seconds = max(0, min(end, OWN_ENTRIES) - begin), listing.moment.until - time.monotonic()
        begin += own
        inodes = listing.inodes[begin:end]
        if not self._holds(directory, listing, begin):
            return [b""] * (own + len(inodes)), 0.0
        unknown = self._known.changed_since(listing.moment, inodes)
        if self._files:
            unknown.update(inode for inode in inodes if self._files.by_inode(inode) is not None)
        if listing.left_out:
            unknown.add(listing.left_out)
        places = range((begin - listing.first) * STATUS.size, (end - listing.first) * STATUS.size, STATUS.size)
        statuses = [listing.statuses[at:at + STATUS.size] for at in places]
        found = list(zip(inodes, listing.names[begin:end], statuses, strict=True))
        if unknown:
            found = [each for each in found if each[0] not in unknown]
            statuses = [b"" if inode in unknown else status for inode, status in zip(inodes, statuses, strict=True)]
        self._nodes.found_all(paths.below(directory, b""), found)
        return [b""] * own + statuses, min(seconds, ONE_CALL_SECONDS) if self._locks_used else seconds

    def releasedir(self, number: int) -> None:
        self._listings.pop(number, None)

    def fsyncdir(self) -> None:
        self._metadata.sync()

    # ------------------------------------------------------------------ making

    def mkdir(self, directory: int, name: bytes, mode: int) -> Status:
        path = paths.below(directory, name)
        uid, gid, _, umask = self._kernel.caller()
        return self._found(path, self._client.mkdir(path, stat.S_IMODE(mode), uid, gid, umask))

    def mknod(self, directory: int, name: bytes, mode: int, device: int) -> Status:
        path = paths.below(directory, name)
        uid, gid, _, umask = self._kernel.caller()
        kind = stat.S_IFMT(mode)
        if kind in (0, stat.S_IFREG):
            return self._found(path, self._client.create(path, stat.S_IMODE(mode), uid, gid, True, umask=umask))
        if kind in SPECIAL_KINDS:
            return self._found(path, self._metadata.posix.make_special(
                path, SPECIAL_KINDS[kind], stat.S_IMODE(mode), uid, gid, device, umask))
        raise OSError(errno.EINVAL, "not a kind of file that mknod(2) makes")

    def symlink(self, target: bytes, directory: int, name: bytes) -> Status:
        path = paths.below(directory, name)
        return self._found(path, self._metadata.posix.make_symbolic_link(path, target, *self._kernel.caller()[:2]))

    def readlink(self, inode: int) -> bytes:
        attributes = self._client.lookup(paths.of_inode(inode))
        if attributes.type != pb.SYMBOLIC_LINK:
            raise OSError(errno.EINVAL, "not a symbolic link")
        return attributes.target

    def link(self, inode: int, directory: int, name: bytes) -> Status:
        path = paths.below(directory, name)
        return self._found(path, self._metadata.posix.link(paths.of_inode(inode), path))

    # ------------------------------------------------------------------ removing and renaming

    def rmdir(self, directory: int, name: bytes) -> None:
        removed = self._metadata.rmdir(paths.below(directory, name), self._kernel.caller().uid)
        self._nodes.get(removed.inode).removed = removed

    def unlink(self, directory: int, name: bytes) -> None:
        path = paths.below(directory, name)
        is_open = self._if_open(path) is not None
        removed = self._metadata.remove(path, self._session.number if is_open else 0, self._kernel.caller().uid)
        if is_open:
            self._hold(removed)

    def rename(self, directory: int, name: bytes, new_directory: int, new_name: bytes, flags: int) -> None:
        if flags not in (0, RENAME_NOREPLACE, RENAME_EXCHANGE):
            raise OSError(errno.EINVAL, "only RENAME_NOREPLACE or RENAME_EXCHANGE is supported")
        source, destination = paths.below(directory, name), paths.below(new_directory, new_name)
        holds = source != destination and flags != RENAME_EXCHANGE and self._if_open(destination) is not None
        moved = self._known.get(source)
        replaced = self._metadata.rename(source, destination, no_replace=flags == RENAME_NOREPLACE,
                                         exchange=flags == RENAME_EXCHANGE,
                                         session=self._session.number if holds else 0,
                                         uid=self._kernel.caller().uid)
        if moved is not None and flags != RENAME_EXCHANGE:
            node = self._nodes.get(moved.inode)
            node.place, node.doubtful_until = destination, 0.0      # the kernel has moved its own
        if replaced is not None and holds:
            self._hold(replaced)
        elif replaced is not None and replaced.type == pb.DIRECTORY:
            self._nodes.get(replaced.inode).removed = replaced


def _listing(directory: int) -> Listing:
    return Listing([b".", b".."], [directory] * OWN_ENTRIES, bytearray([pb.DIRECTORY] * OWN_ENTRIES))
