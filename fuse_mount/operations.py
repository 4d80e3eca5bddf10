"""The filesystem as the kernel asks for it: FUSE operations over the client library; here those on open files.

`info` is libfuse's `fuse_file_info`, a `number` that of a handle.
"""

import errno
import logging
import os
import stat
import time
from contextlib import suppress
from typing import Any

from speedwell.fs import paths
from speedwell.fs.client import Changes
from speedwell.fs.client.change.open_file import Handle, OpenFile
from speedwell.fs.errors import AlreadyExists, IsADirectory, NoSuchFile, NotADirectory, ProgramRuns, SpeedwellError
from speedwell.fs.limits import LEAST_ADVISED_BYTES, require_possible_length
from speedwell.fs.proto.speedwell_pb2 import DIRECTORY, REGULAR, Attributes
from speedwell.fuse_mount.lock_operations import LockOperations
from speedwell.fuse_mount.shared import Status

log = logging.getLogger(__name__)

# linux/fs.h: the kernel tells that way of an open whose handle it keeps as long as a program runs from the file
FMODE_EXEC = 0x20
# linux/falloc.h
FALLOC_KEEP_SIZE = 1
FALLOC_PUNCH_HOLE = 2
FALLOC_ZERO_RANGE = 16

CREATE_ATTEMPTS = 16
OWNERS = stat.S_IRUSR | stat.S_IWUSR


class SpeedwellOperations(LockOperations):
    """One mounted filesystem; its methods return what libfuse's `struct fuse_lowlevel_ops` answers."""

    @property
    def open_files(self) -> int:
        """Descriptors that programs have."""
        return len(self._files)

    def init(self) -> None:
        self._on_mounted()

    def destroy(self) -> bool:
        """Whether everything that was written is saved."""
        failures = self._files.flush_all()
        for inode, error in failures:
            log.error("inode %d: not everything written was saved: %s", inode, error)
        self._session.end()
        return not failures

    # ------------------------------------------------------------------ opening

    def create(self, directory: int, name: bytes, mode: int, info: Any) -> Status:
        path = paths.below(directory, name)
        uid, gid, process, umask = self._kernel.caller()
        is_repeated = self._told_stale.pop(process, None) is not None
        for _ in range(CREATE_ATTEMPTS if is_repeated else 1):
            try:
                attributes = self._client.create(path, stat.S_IMODE(mode), uid, gid, True, umask=umask)
            except AlreadyExists:
                if info.flags & os.O_EXCL:
                    raise
                with suppress(NoSuchFile):
                    if is_repeated:
                        return self._open_overtaken(path, uid, info)
                continue
            status = self._found(path, attributes)
            self._nodes.reads(attributes.inode, attributes.file_id)     # of a new file the kernel has no pages
            self._opened(attributes, info)
            self._files.handle(info.fh).made_file = True
            return status
        self._known.clear()
        raise self._stale("the name is not free any more")

    def _open_overtaken(self, path: bytes, uid: int, info: Any) -> Status:
        """Another mount was quicker to make the file. Whether the caller may open it the kernel checks when it has
        looked the name up again, never for what a create answers. It does so once: if the name was gone and is there
        again, owners get their file."""
        found = self._client.lookup(path, fresh=True)
        if found.type != REGULAR or uid not in (0, found.uid) or found.mode & OWNERS != OWNERS:
            raise self._stale("the name is not free any more")
        emptied = self._truncate_to_zero(found.inode) if info.flags & os.O_TRUNC else found
        status = self._found(path, emptied)
        self._opened(emptied, info)
        return status

    def open(self, inode: int, info: Any) -> None:
        if info.flags & os.O_TRUNC:
            self._by_name(inode)
            if info.flags & os.O_ACCMODE == os.O_RDONLY and self._files.any_handle(
                    inode, lambda handle: handle.executes):
                # What is opened for writing the kernel checks before it asks here, what is only emptied afterwards.
                raise ProgramRuns(f"inode {inode} is a running program")
            self._opened(self._truncate_to_zero(inode), info)
        else:
            self._opened(self._newest(inode), info)

    def _newest(self, inode: int) -> Attributes:
        """What the nameserver says now. Staged changes of a version that another mount has replaced are
        published first: whoever opens the file is to see both."""
        attributes = self._by_name(inode)
        if attributes.type == DIRECTORY:
            raise IsADirectory(f"inode {inode} is a directory")
        file = self._files.by_inode(inode)
        if file is None or not file.dirty or file.attributes.file_id == attributes.file_id:
            return attributes
        file.flush()
        self._after_flush(file)
        return file.attributes

    def _by_name(self, inode: int) -> Attributes:
        """The kernel may believe for a while in a name that another mount has given to another file. Told that the
        inode is stale, it looks the name up again. What it finds then was there when the program asked, even if
        another mount has replaced that too. What it knows without a name is opened as it is."""
        node = self._nodes.get(inode)
        place, found = node.place, None
        with suppress(NoSuchFile, NotADirectory):
            found = self._client.lookup_inode(inode) if place is None else self._client.lookup(place, fresh=True)
        again = self._found_again(inode)
        if self._told_stale:
            self._told_stale.pop(self._kernel.caller().process, None)
        if found is not None and found.inode == inode and (
                again is not None or place is None or time.monotonic() >= node.doubtful_until):
            return found
        if again is not None:
            return again
        node.place = None
        raise self._stale("the name leads elsewhere")

    def _opened(self, attributes: Attributes, info: Any) -> None:
        append, mode = bool(info.flags & os.O_APPEND), info.flags & os.O_ACCMODE
        writes = mode != os.O_RDONLY or bool(info.flags & (os.O_TRUNC | os.O_CREAT))
        reader = None if writes else self._client.open_read(paths.of_inode(attributes.inode), attributes)
        info.fh = self._files.add(attributes, writable=writes, append=append and writes, reader=reader)
        handle = self._files.handle(info.fh)
        handle.executes = not writes and bool(info.flags & FMODE_EXEC)
        handle.synchronous = bool(info.flags & os.O_DSYNC)     # O_SYNC has that bit too
        if writes:
            self._note_mode(attributes)
        elif not self._locks_used:
            info.noflush = 1  # nothing was written that a close could report on, no lock to give up
        # For a strong reader the kernel's pages, and the size it knows, may be older than the last append. The bytes
        # of an append it would put into pages at the offset it believes in, which is wrong as soon as another mount
        # appends too. A file that is only written costs a copy less this way. All others need pages, without which
        # nothing can be mapped.
        if (append or (mode == os.O_WRONLY and not handle.file.size)) if writes else self._client.strong:
            info.direct_io = 1
        else:
            self._use_pages(handle.file, attributes, info)
        self._catch_up(attributes, handle)

    def _use_pages(self, file: OpenFile, attributes: Attributes, info: Any) -> None:
        with file.renewal:
            if self._nodes.get(file.inode).pages != attributes.file_id and \
                    self._files.any_handle(
                    file.inode, lambda handle: handle.version not in (None, attributes.file_id)):
                # Both handles would fill and read the same pages with different contents.
                info.direct_io = 1
                self._forget_pages(file.inode)
            elif self._locks_used and not info.flags & os.O_TRUNC:
                # The kernel would drop them when it has this answer, and others who get a lock meanwhile read them.
                info.keep_cache = self._has_pages_of(file.inode, attributes.file_id)
            else:
                info.keep_cache = self._nodes.reads(file.inode, attributes.file_id)

    def _catch_up(self, attributes: Attributes, handle: Handle) -> None:
        """Whoever opens a file sees what was written and closed before: also in the next fstat(2). What another
        request is told just now the kernel may not have yet, and does not take over if it has to ask again."""
        now = handle.file.size, attributes.mtime_ns, attributes.ctime_ns
        if self._nodes.get(attributes.inode).told != now or self._kernel.is_being_told():
            self._kernel.drop_attributes(attributes.inode)

    def traceparent(self, number: int) -> str:
        """Of the request that has made a handle."""
        return self._files.handle(number).traceparent

    # ------------------------------------------------------------------ content

    def read(self, number: int, buffer: memoryview, offset: int) -> int:
        """Fill `buffer`, and return how many bytes there are."""
        handle = self._files.handle(number)
        self._require_locks(handle)
        return handle.file.read_into(handle, offset, buffer)

    def lseek(self, offset: int, whence: int, number: int) -> int:
        handle = self._files.handle(number)
        self._require_locks(handle)
        if any(other.writable and not other.append for other in list(handle.file.handles)):
            self._kernel.drop_pages(handle.file.inode)  # it may have some that were written in mappings
        return handle.file.seek(handle, offset, whence)

    def write(self, number: int, data: memoryview, offset: int) -> int:
        handle = self._writing(number)
        written = handle.file.write(offset, data, handle.append)
        if handle.synchronous:
            self.fsync(number)
        return written

    def setattr(self, inode: int, number: int | None, size_bytes: int | None, changes: dict[str, Any]) -> Status:
        """`number` is that of the handle, if it is asked for through one."""
        if size_bytes is not None:
            if number is None:
                self._truncate(inode, size_bytes)
            else:
                self._truncate_open(self._writing(number), size_bytes)
        return self.set_attributes(inode, changes) if changes else self.getattr(inode)

    def _truncate_open(self, handle: Handle, size_bytes: int) -> None:
        file = handle.file
        if size_bytes == file.size:
            self._touch(file.inode)
        elif size_bytes == 0 and not file.unlinked:
            try:
                self._truncate_to_zero(file.inode)
            except NoSuchFile:  # another mount has removed it
                file.resize(size_bytes)
        else:
            file.resize(size_bytes)

    def _truncate(self, inode: int, size_bytes: int) -> None:
        attributes = self._newest(inode)
        self._note_mode(attributes)
        self._written(inode)
        file = self._files.by_inode(inode)
        if size_bytes == (file.size if file is not None else attributes.size):
            self._touch(inode)
        elif file is not None:
            file.resize(size_bytes)
            file.flush()
            self._after_flush(file)
        else:
            published = self._client.change(paths.of_inode(inode), Changes(size=size_bytes, keep=size_bytes),
                                            attributes)
            self._nodes.published(inode, attributes.file_id, published.file_id)

    def _touch(self, inode: int) -> None:
        """A file that is cut to the length it has counts as changed (POSIX, truncate)."""
        self._metadata.set_attributes(paths.of_inode(inode), mtime_now=True)

    def _truncate_to_zero(self, inode: int) -> Attributes:
        attributes = self._client.truncate(paths.of_inode(inode))
        self._note_mode(attributes)
        self._written(inode)
        file = self._files.by_inode(inode)
        if file is not None:
            file.replace(attributes)
        self._forget_pages(inode)
        return attributes

    def fallocate(self, mode: int, offset: int, length: int, number: int) -> None:
        """Space is not reserved: only what the call does to content and length. A file that was just made is placed
        anew, as one of that length."""
        if mode & ~(FALLOC_KEEP_SIZE | FALLOC_PUNCH_HOLE | FALLOC_ZERO_RANGE):
            raise OSError(errno.EOPNOTSUPP, "ranges can be punched or made zeros, not collapsed or inserted")
        require_possible_length(offset + length)
        handle = self._writing(number)
        file = handle.file
        if offset + length >= LEAST_ADVISED_BYTES and handle.may_be_placed_anew():
            file.replace(self._client.preallocate(file.path, offset + length))
            self._forget_pages(file.inode)
        if mode & (FALLOC_PUNCH_HOLE | FALLOC_ZERO_RANGE):
            file.zero(offset, offset + length)
        if not mode & FALLOC_KEEP_SIZE and offset + length > file.size:
            file.resize(offset + length)

    def _writing(self, number: int) -> Handle:
        handle = self._files.handle(number)
        if handle.failure is not None:
            handle.raise_failure()
        self._require_locks(handle)
        handle.wrote = handle.wrote_under_mode = True
        self._written(handle.file.inode)
        return handle

    def flush(self, info: Any) -> None:
        """A program closes a descriptor: with it go the locks of fcntl(2) that its owner has on the file."""
        handle = self._files.handle(info.fh)
        try:
            self._flush(handle)
        finally:
            self._drop_locks_of(handle.file.inode, info.lock_owner)

    def fsync(self, number: int) -> None:
        handle = self._files.handle(number)
        self._flush(handle, whole_file=True)
        self._client.sync(handle.file.attributes)

    def release(self, number: int) -> None:
        handle = self._files.handle(number)
        inode = handle.file.inode
        try:
            self._flush(handle)  # a program that died has not closed its files
        except SpeedwellError:
            self._forget_pages(inode)   # they have what is given up now
            self._kernel.drop_pages(inode)
            raise
        finally:
            self._unlock_all_of(handle)
            self._files.remove(number)
            self._let_go(inode)
