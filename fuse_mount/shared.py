"""What the operations on names and those on open files share."""

import itertools
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from speedwell.fs import paths
from speedwell.fs.client import Client
from speedwell.fs.client.change.open_file import Handle, OpenFile
from speedwell.fs.client.names.attribute_cache import NEVER, Moment
from speedwell.fs.client.names.look_ahead import LookAhead
from speedwell.fs.client.names.session import Session
from speedwell.fs.errors import LocksLost, NoSuchAttribute, NoSuchFile, ReadFailed, SpeedwellError
from speedwell.fs.file_status import CAPABILITIES, SET_ID_BITS, pack
from speedwell.fs.proto.speedwell_pb2 import Attributes
from speedwell.fuse_mount.binding import MAX_WAITERS
from speedwell.fuse_mount.door import ROOT_INODE
from speedwell.fuse_mount.libfuse import Session as Kernel
from speedwell.fuse_mount.listers import Listers
from speedwell.fuse_mount.nodes import Nodes
from speedwell.fuse_mount.open_files import OpenFiles

# The kernel keeps attributes just long enough not to ask for the same ones several times within one system call, and
# no names, once there are locks, as who gets one is to see what was done under it to other files too.
ONE_CALL_SECONDS = 0.01
ROOT_SECONDS = 0.1  # those of the root, of which others ask whether the mount is alive
RETRY_SECONDS = 5.0
RENEWAL_SECONDS = 20.0


class Status(NamedTuple):
    """What the kernel is told of an inode, with what is not published yet, and for how long it may keep it."""

    inode: int
    packed: bytes
    """`speedwell.fs.file_status.STATUS`"""
    seconds: float


@dataclass
class Listing:
    """What an open directory has, as far as it was listed, in columns: `.`, `..` and its entries. Of those from
    `first` on, `statuses` are as of `moment` (`AttributeCache.changed_since`), and may be told until its end; that of
    the inode `left_out` is not (`Listers`)."""

    names: list[bytes]
    inodes: list[int]
    kinds: bytearray
    statuses: bytes = b""
    first: int = 0
    moment: Moment = NEVER
    has_more: bool = True
    left_out: int = 0


@dataclass
class ToldStale:
    """When a program's open was answered ESTALE, what the kernel was told when it looked the name up again, and how
    often before that there was nothing."""

    at_seconds: float
    found: Attributes | None = None
    misses: int = 0

    @property
    def is_over(self) -> bool:
        """The kernel looks it up at once."""
        return time.monotonic() >= self.at_seconds + RETRY_SECONDS


class SharedState:
    """One mounted filesystem, from the directory with the inode `root` on. Changes that are not published yet lie in
    `staging_directory` (None: the system's for temporary files)."""

    def __init__(self, client: Client, kernel: Kernel, on_mounted: Callable[[], None] = lambda: None,
                 staging_directory: str | None = None, root: int = ROOT_INODE) -> None:
        self._client = client
        self._root = root
        self._metadata = client.metadata
        self._known = client.metadata.cache
        self._kernel = kernel
        self._on_mounted = on_mounted
        self._files = OpenFiles(client, staging_directory)
        self._nodes = Nodes(self._known.seconds)
        self._session = Session(client.metadata.requests.ask)
        self._held: set[int] = set()
        self._told_stale: dict[int, ToldStale] = {}
        self._locks_used = False
        self._listings: dict[int, Listing] = {}
        self._look_ahead = LookAhead()
        self._listers = Listers()
        self._ahead: tuple[int, dict[bytes, int], Listing] = 0, {}, Listing([], [], bytearray())
        """What is likely to be looked up next: a directory, places of names in its listing, the listing."""
        self._listing_numbers = itertools.count(1)
        self._lock_waiters = threading.BoundedSemaphore(MAX_WAITERS)

    def _status(self, attributes: Attributes, path: bytes) -> Status:
        """What the kernel is told about what `path` leads to."""
        seconds = self._known.seconds_left(path)
        size, mtime_ns, ctime_ns = attributes.size, attributes.mtime_ns, attributes.ctime_ns
        hole_bytes = attributes.hole_bytes
        file = self._files.by_inode(attributes.inode) if self._files else None
        if file is not None and file.attributes.file_id == attributes.file_id:
            if size > file.attributes.size and not file.dirty:
                file.refresh(attributes)  # what the kernel is told, handles that are open have to read
            size = file.size if file.resized else max(size, file.size)
            hole_bytes = file.hole_bytes
        self._nodes.get(attributes.inode).told = size, mtime_ns, ctime_ns
        if file is not None and file.dirty:  # a write changes the times at once, not when it is published
            mtime_ns, ctime_ns = max(mtime_ns, file.changed_ns), max(ctime_ns, file.changed_ns)
        if attributes.inode == self._root:
            seconds = min(seconds, ROOT_SECONDS)
        if self._locks_used:
            seconds = min(seconds, ONE_CALL_SECONDS)
        return Status(attributes.inode, pack(attributes.inode, attributes, size, hole_bytes, mtime_ns, ctime_ns),
                      seconds)

    def _forget_pages(self, inode: int) -> None:
        """The kernel's pages may be of anything now."""
        self._nodes.get(inode).pages = None

    # ------------------------------------------------------------------ open files that lost their names

    def _if_open(self, path: bytes) -> OpenFile | None:
        """The open file that `path` names, if any."""
        if not self._files:
            return None
        with suppress(SpeedwellError):     # the operation that asks will say what is wrong
            return self._files.by_inode(self._client.lookup(path).inode)
        return None

    def _hold(self, removed: Attributes) -> None:
        """A file lost a name by a request with this mount's session: with the last one the nameserver keeps the inode
        until `_let_go`. It need not be the one that is open here: another mount may have put it there meanwhile."""
        self._kernel.drop_attributes(removed.inode)
        if removed.link_count == 0:
            self._held.add(removed.inode)
            file = self._files.by_inode(removed.inode)
            if file is not None:
                file.unlinked = True
            self._let_go(removed.inode)

    def _let_go(self, inode: int) -> None:
        """Unless it is open here."""
        if inode in self._held and self._files.by_inode(inode) is None:
            with suppress(KeyError):    # another thread does it
                self._held.remove(inode)
                self._session.release([inode])

    # ------------------------------------------------------------------ set-id bits

    def _note_mode(self, attributes: Attributes) -> None:
        """Remember who has set-id bits to lose, and who may have capabilities."""
        node = self._nodes.get(attributes.inode)
        node.may_be_capable |= attributes.has_extended_attributes
        node.sets_id = bool(attributes.mode & SET_ID_BITS)

    def _written(self, inode: int) -> None:
        """A program writes to a file: the capabilities go, and unless it is root's the set-id bits, as on any
        filesystem."""
        node = self._nodes.get(inode)
        if node.may_be_capable:
            self._drop_capabilities(inode)
        if not node.sets_id or self._kernel.caller().uid == 0:
            return
        path = paths.of_inode(inode)
        attributes = self._client.lookup(path)
        mode, is_member = attributes.mode, self._kernel.is_in_group(attributes.gid)
        cleared = mode & ~0o4000 & ~(0o2000 if mode & 0o010 or not is_member else 0)
        if cleared != mode:
            self._client.set_attributes(path, mode=cleared)
            self._kernel.drop_attributes(inode)
        node.sets_id = False

    def _drop_capabilities(self, inode: int) -> None:
        self._nodes.get(inode).may_be_capable = False
        with suppress(NoSuchAttribute, NoSuchFile):
            self._metadata.posix.remove_extended_attribute(paths.of_inode(inode), CAPABILITIES)

    # ------------------------------------------------------------------ between mounts

    def _flush(self, handle: Handle, *, whole_file: bool = False) -> None:
        """Publish what was written through the handle, or with `whole_file` through any."""
        self._require_locks(handle)
        if handle.wrote or (whole_file and handle.file.dirty):
            handle.raise_failure()
            before = handle.file.attributes
            handle.file.flush()
            after = handle.file.attributes
            if after is not before and after.file_id != before.file_id:
                self._nodes.published(after.inode, before.file_id, after.file_id)
            self._after_flush(handle.file)
            if handle.wrote_under_mode and after.mode & SET_ID_BITS:   # which another mount has set
                handle.wrote_under_mode = False
                self._note_mode(after)
                self._written(after.inode)

    def _require_locks(self, handle: Handle) -> None:
        """A program that had a lock must not go on when others may have it: its handle fails from then on. Raises
        LocksLost."""
        if handle.lock_generation is None:
            return
        handle.raise_failure()
        try:
            self._session.require(handle.lock_generation)
        except LocksLost as error:
            handle.file.give_up(error)
            handle.failure = error
            raise

    def _after_flush(self, file: OpenFile) -> None:
        """Have the kernel ask again: a commit sets the times anew, and what it knows may be older than what was
        published."""
        if file.merged:
            file.merged = False
            self._forget_pages(file.inode)
            self._kernel.drop_pages(file.inode)
        else:
            self._kernel.drop_attributes(file.inode)

    def _take_newest(self, handle: Handle) -> None:
        """Have all programs that have the file open here see what was published before on any mount."""
        file = handle.file
        self._known.clear()
        self._kernel.drop_attributes(file.inode)
        with file.renewal:
            try:
                if file.renew():
                    self._forget_pages(file.inode)
            except NoSuchFile:
                return  # another mount has removed it: nobody can change it any more
            if not self._has_pages_of(file.inode, file.attributes.file_id):
                raise ReadFailed(f"the kernel has kept old pages of inode {file.inode} for {RENEWAL_SECONDS:g} s")

    def _has_pages_of(self, inode: int, file_id: str) -> bool:
        """Have the kernel keep no pages but of that content. Only who has the file's `renewal` may believe it: until
        the old ones are dropped, others would read them."""
        if self._nodes.reads(inode, file_id) or self._kernel.drop_pages(inode, RENEWAL_SECONDS):
            return True
        self._forget_pages(inode)
        return False
