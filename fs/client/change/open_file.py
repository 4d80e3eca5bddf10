"""A file that is open for changes anywhere in it, and what each open(2) of it returned.

All handles of one inode share an `OpenFile`, and with it one appender and one staging file: their writes keep one
order, and every handle sees what the others have written.
"""

import errno
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field

from speedwell.fs import paths, tracing
from speedwell.fs.client import Appender, Client, Reader
from speedwell.fs.client.change.staging import Source, Staging, seek
from speedwell.fs.errors import LocksLost, NoSuchFile, ReadFailed, SpeedwellError, StaleFile
from speedwell.fs.limits import require_possible_length
from speedwell.fs.proto.speedwell_pb2 import Attributes

CONFIRM_SECONDS = 2.0
"""After so long without a change here the nameserver is asked for the newest version before a write."""


class OpenFile:
    """One inode that is open on this mount. Its methods may be called from any thread.

    What is written behind the end of the file is appended, everything else is staged: `staging` has it until it
    is published as a new version.
    """

    def __init__(self, client: Client, attributes: Attributes, staging_directory: str | None = None) -> None:
        self.attributes = attributes
        self.inode = attributes.inode
        self.handles: set[Handle] = set()
        self.unlinked = False
        self.dirty = False  # something was written since the last successful flush
        self.changed_ns = 0  # when it was written last, by this machine's clock
        self.merged = False  # the content got changes of other mounts that the kernel has not seen
        self.lock = threading.RLock()
        self.renewal = threading.Lock()     # while the kernel drops pages that are older than `attributes`
        self.size = attributes.size  # in bytes, what is not published yet included
        self._client = client
        self._staging_directory = staging_directory
        self._appender: Appender | None = None
        self._staging: Staging | None = None
        self._spare: Staging | None = None  # empty, for the next change
        self._known_at = time.monotonic()
        self._gone = False  # removed from the namespace: what is staged stays here

    @property
    def path(self) -> bytes:
        """What the client calls it."""
        return paths.of_inode(self.inode)

    @property
    def resized(self) -> bool:
        """Whether `size` is what counts, even if the published length is more."""
        return self._staging is not None

    @property
    def hole_bytes(self) -> int:
        """How many of `size` take no space, about: what is being published just now keeps nobody waiting."""
        if not self.lock.acquire(blocking=False):
            return self.attributes.hole_bytes
        try:
            if self._staging is None:
                return self.attributes.hole_bytes
            used = self.attributes.size - self.attributes.hole_bytes + self._staging.staged_bytes
            return max(0, self.size - used)
        finally:
            self.lock.release()

    def refresh(self, attributes: Attributes) -> None:
        """Take over attributes that were just fetched: appends and versions of other mounts."""
        with self.lock:
            if attributes.file_id != self.attributes.file_id:
                if self.dirty or self._staging is not None:
                    return  # what is written here is published on top of it
                self._drop_appender()
            elif attributes.size < self.attributes.size or self._staging is not None:
                return  # fetched before our last commit
            elif self._appender is not None and not self.dirty and attributes.size != self.size:
                self._drop_appender()
            self._take(attributes)

    def renew(self) -> bool:
        """Publish what was written here, then have all handles read the newest version; returns whether it has
        anything of other mounts. Raises the errors of `flush`, and NoSuchFile."""
        with self.lock:
            self.flush()
            known, merged, self.merged = self.attributes, self.merged, False
            self.refresh(self._client.lookup_inode(self.inode))
            for handle in list(self.handles):
                if handle.version not in (None, self.attributes.file_id):
                    handle.leave_version()
            return merged or (known.file_id, known.size) != (self.attributes.file_id, self.attributes.size)

    def replace(self, attributes: Attributes) -> None:
        """Give up what was written here: the file got a new, empty content."""
        with self.lock:
            self.discard()
            self._take(attributes)

    # ------------------------------------------------------------------ changing

    def write(self, offset: int, data: memoryview | bytes, append: bool) -> int:
        """Write at `offset`, or behind the end of the file if `append`.

        Raises FileTooLarge, the errors of `Appender.write`, those of a flush, and OSError of the staging file.
        """
        with self.lock:
            if self._appender is None and self._staging is None and \
                    time.monotonic() - self._known_at > CONFIRM_SECONDS:
                self._look_again()
            if append:
                offset = self.size
            require_possible_length(offset + len(data))
            if offset == self.size and self._staging is None and not self.unlinked:
                return self._append(data)
            try:
                written = self._stage().write(offset, data)
            except OSError as error:
                if error.errno != errno.ENOSPC or self._gone:
                    raise
                self._publish()
                written = self._stage().write(offset, data)
            return self._staged(written)

    def resize(self, size: int) -> None:
        """Cut the file or extend it with zeros. Raises like `write`."""
        require_possible_length(size)
        with self.lock:
            if size != self.size:
                self._stage().resize(size)
                self._staged(0)

    def zero(self, begin: int, end: int) -> None:
        """Make a range zeros, as far as the file goes. Raises like `write`."""
        with self.lock:
            if begin < min(end, self.size):
                self._stage().zero(begin, end)
                self._staged(0)

    def flush(self) -> None:
        """Make everything written here visible to everybody. Raises the errors of `Client.change` and of
        `Appender.flush`."""
        if not self.dirty:
            return
        with self.lock:
            if self._staging is not None:
                self._publish()
            else:
                self._flush_appends()

    def discard(self) -> None:
        """Give up what was written and is not published, with all that is held for it."""
        with self.lock:
            self._drop_appender()
            self._drop_staging()
            self.dirty = False

    def give_up(self, error: SpeedwellError) -> None:
        """Publish nothing of what was written here: its handles fail with `error` until they are closed."""
        with self.lock:
            for handle in self.handles:
                if handle.wrote:
                    handle.failure = error
            self.discard()
            self.size = self.attributes.size

    # ------------------------------------------------------------------ reading

    def read_into(self, handle: "Handle", offset: int, view: memoryview) -> int:
        """Fill `view` from `offset` and return how many bytes there are. Raises the errors of `Reader.readinto`."""
        if self.dirty and self._staging is None:
            self.flush()
        if self._staging is not None:
            with self.lock:
                if self._staging is not None and handle.reads(self.attributes.file_id):
                    return self._read_staged(self._staging, handle, offset, view)
        try:
            return self._reader(handle).readinto(offset, view)
        except StaleFile:
            # The version is older than the grace period: go on with the newest.
            self.flush()
            self.refresh(self._client.lookup_inode(self.inode))
            handle.leave_version()
            return self._reader(handle).readinto(offset, view)

    def seek(self, handle: "Handle", offset: int, whence: int) -> int:
        """As lseek(2) with SEEK_DATA or SEEK_HOLE. Raises OSError(ENXIO), the errors of `flush`."""
        with self.lock:
            if self._staging is None:
                self.flush()
            reader = self._reader(handle)
            staging = self._staging if handle.reads(self.attributes.file_id) else None
            if not 0 <= offset < (reader.size if staging is None else staging.size):
                raise OSError(errno.ENXIO, "beyond the end")
            data = reader.data(offset) if staging is None else staging.data(reader, offset)
            return seek(data, offset, whence)

    def _read_staged(self, staging: Staging, handle: "Handle", offset: int, view: memoryview) -> int:
        filled = 0
        for piece in staging.pieces(offset, offset + len(view)):
            part = view[piece.begin - offset:piece.end - offset]
            if piece.source is Source.STAGED:
                staging.read_into(piece.begin, part)
            elif piece.source is Source.ZEROS:
                part[:] = bytes(len(part))
            elif self._reader(handle).readinto(piece.begin, part) < len(part):
                raise ReadFailed(f"{paths.display(self.path)} ends before {piece.end}")
            filled += len(part)
        return filled

    def _reader(self, handle: "Handle") -> Reader:
        with self.lock:
            return handle.reader_of(self._client, self.attributes)

    # ------------------------------------------------------------------ private

    def _look_again(self) -> None:
        """Begin with the newest version of the file."""
        self._known_at = time.monotonic()
        with suppress(NoSuchFile):  # the flush will find it so
            self.refresh(self._client.lookup_inode(self.inode))

    def _append(self, data: memoryview | bytes) -> int:
        if self._appender is None:
            self._appender = self._client.open_append(self.path, self.attributes)
        # Counts as dirty even if the write fails: the bytes before it may be on their way.
        self.dirty = True
        self.changed_ns = time.time_ns()
        try:
            written = self._appender.write(data)
        except SpeedwellError as error:
            self._fail(error)
            raise
        self.size += written
        return written

    def _stage(self) -> Staging:
        if self._staging is not None and self._staging.is_full and not self._gone:
            self._publish()
        if self._staging is None:
            self._flush_appends()
            self._drop_appender()
            self._staging, self._spare = self._spare, None
            if self._staging is None:
                self._staging = Staging(self.attributes.size, self._staging_directory)
            else:
                self._staging.begin_again(self.attributes.size)
        return self._staging

    def _staged(self, written: int) -> int:
        assert self._staging is not None
        self.dirty = not self._gone
        self.changed_ns = time.time_ns()
        self.size = self._staging.size
        return written

    def _publish(self) -> None:
        """On failure everything stays staged: the next flush tries again."""
        if self._staging is None:
            return
        try:
            attributes, alone = self._client.change_from(self.path, self._staging.changes(), self.attributes)
        except LocksLost as error:
            self.give_up(error)
            raise
        except NoSuchFile:
            # The name is gone, and nobody else can open the file: its content lives on in who has it open.
            self._gone, self.dirty = True, False
            return
        before = self.attributes.file_id
        self._spare, self._staging = self._staging, None
        self._spare.begin_again(attributes.size)    # gives its space back
        self.dirty = False
        self._take(attributes)
        self.merged = self.merged or not alone
        for handle in self.handles:
            if handle.version == before:
                handle.leave_version()

    def _flush_appends(self) -> None:
        if not self.dirty or self._appender is None:
            return
        try:
            attributes = self._appender.flush()
        except SpeedwellError as error:
            removed = isinstance(error, NoSuchFile) or (self.unlinked and isinstance(error, StaleFile))
            if not removed:
                self._fail(error)
                raise
            # The name is gone, as if the removal had come after the write; who has the file open goes on with
            # what the dataservers have.
            attributes = Attributes()
            attributes.CopyFrom(self.attributes)
            attributes.size = self.size
            self._drop_appender()
        self.dirty = False
        self._take(attributes)

    def _fail(self, error: SpeedwellError) -> None:
        for handle in self.handles:
            if handle.wrote:
                handle.failure = error
        appender = self._appender
        self._drop_appender()
        self.dirty = False
        if appender is not None and appender.attributes.file_id == self.attributes.file_id:
            self._take(appender.attributes)     # what was acknowledged before the error stays
        self.size = self.attributes.size

    def _take(self, attributes: Attributes) -> None:
        self._known_at = time.monotonic()
        self.attributes = attributes
        if not self.dirty:
            self.size = attributes.size

    def _drop_appender(self) -> None:
        appender, self._appender = self._appender, None
        if appender is not None:
            with suppress(SpeedwellError):  # reported by the write or flush that failed, or of no interest any more
                appender.close()

    def _drop_staging(self) -> None:
        kept = self._staging, self._spare
        self._staging = self._spare = None
        for staging in kept:
            if staging is not None:
                staging.close()


@dataclass(slots=True, eq=False)
class Handle:
    """What one open(2) returned."""

    file: OpenFile
    writable: bool = False
    append: bool = False
    _reader: Reader | None = None
    executes: bool = False  # it is a running program
    synchronous: bool = False   # each write is to be on the disks before it returns
    made_file: bool = False     # the file was made by this open(2)
    wrote: bool = False     # ever
    wrote_under_mode: bool = False  # since this mount has set the file's mode
    lock_generation: int | None = None  # of the session when a lock was taken through it
    locks: set[tuple[int, bool]] = field(default_factory=set)
    """Taken through it: by which owners, and whether of the whole file, by flock(2)"""
    failure: SpeedwellError | None = None
    traceparent: str = field(default_factory=tracing.current)   # of the open(2)

    @property
    def version(self) -> str | None:
        """The file id of what it reads; None before that is known."""
        reader = self._reader
        return reader.attributes.file_id if reader is not None else None

    def may_be_placed_anew(self) -> bool:
        """Whether nobody on this mount but who made the file has it open, and nothing was written to it."""
        file = self.file
        return self.made_file and file.handles == {self} and not (file.size or file.dirty or file.unlinked)

    def reads(self, file_id: str) -> bool:
        """Whether the handle reads that version, not one that was the newest when it was opened."""
        return self.writable or self.version in (None, file_id)

    def reader_of(self, client: Client, newest: Attributes) -> Reader:
        """What reads its version, to the end of it that is known now. A handle that writes reads the newest one."""
        reader = self._reader
        if reader is None or (self.writable and reader.attributes.file_id != newest.file_id):
            self.leave_version()
            reader = self._reader = client.open_read(self.file.path, newest)
        if reader.size < newest.size and reader.attributes.file_id == newest.file_id:
            reader.grown_to(newest.size)
        return reader

    def leave_version(self) -> None:
        """Read the newest version from now on."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.rest()

    def close(self) -> None:
        """Give up what it reads by."""
        if self._reader is not None:
            self._reader.close()

    def raise_failure(self) -> None:
        """Repeat the error of an earlier write of this handle, until it is closed."""
        if self.failure is not None:
            raise OSError(self.failure.errno, str(self.failure))
