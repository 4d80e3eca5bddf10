"""Files on a dataserver's disks (Mayflower, section 3.3.2).

In each of its directories `ROOT/<first 2 hex digits of the file id>/<file id>/` holds `meta` and the chunks `1`,
`2`, ... as `stored_file` says; a small file is `<file id>.small` in place of that directory. New versions are made in
`ROOT/making` and moved to their place when they are complete; what a dead process left there is removed at the
next start. All of a file lies in one directory. One whose disk fails is left out from then on: what lies there is
still read while nobody else has it, but reported as lost.
"""

import contextlib
import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path

from speedwell.fs.dataserver.disk.data_directories import Directories
from speedwell.fs.dataserver.disk.data_directory import FILE_ID, Directory
from speedwell.fs.dataserver.disk.disk_errors import begin_file, boot_id, disk_error, write_file
from speedwell.fs.dataserver.disk.durability import recover
from speedwell.fs.dataserver.disk.grown_lengths import GrownLengths
from speedwell.fs.dataserver.disk.moving import MOVED_BYTES, copy_to, used_bytes
from speedwell.fs.dataserver.disk.stored_file import StoredFile, load
from speedwell.fs.dataserver.disk.version_file import SMALL_BYTES, SMALL_DESCRIPTION_BYTES, SMALL_SUFFIX
from speedwell.fs.dataserver.replication.lease import boot_seconds
from speedwell.fs.errors import InvalidArgument, NoSpace, NoSuchFile, SpeedwellError, StorageFailed

log = logging.getLogger(__name__)

MAX_OFFSET = 1 << 62
MAX_CHUNKS_PER_APPEND = 65536
KEPT_FILES = 4096
"""Files whose state stays in memory while nobody uses them."""

GROWTH_BYTES = 256 << 10
"""What an append takes on the disk beside its bytes at most: sums, names, the directory of a file that was small."""

_TOMBSTONES = 65536
MOST_FORSAKEN = 1 << 18
"""After so many deletions since a disk has failed nothing is read there any more."""

WRITTEN_BACK_SECONDS = 300.0
"""After so long the kernel has everything on the disk by itself (30 s unless configured otherwise)."""


def check_file_id(file_id: str) -> None:
    """Raises InvalidArgument unless `file_id` is a lower-case UUID: it becomes a directory's name."""
    if not FILE_ID.fullmatch(file_id):
        raise InvalidArgument(f"file_id: {file_id[:60]!r} is not a lower-case UUID")


class FileStore:
    """All files of one dataserver. Thread-safe; one process per directory.

    Raises StorageFailed if no directory can be used or one belongs to another dataserver.
    """

    def __init__(self, directory: Path | Sequence[Path], dataserver_id: str, reserved_bytes: int | None = None, *,
                 rate_bytes: float = 0.0, accept_empty: bool = False) -> None:
        """`reserved_bytes` and `rate_bytes` of each disk are as `Directory` has them. With `accept_empty` a directory
        of this server that is empty now is a new disk, else it has failed."""
        self.directories = Directories([directory] if isinstance(directory, Path) else directory,
                                       reserved_bytes, rate_bytes)
        self.dataserver_id = dataserver_id
        self._files: OrderedDict[str, StoredFile] = OrderedDict()
        self.grown = GrownLengths()
        self._deleted: OrderedDict[str, float] = OrderedDict()
        self.remembers_since = boot_seconds()   # what was deleted before may be forgotten
        self._lock = threading.Lock()
        try:
            self.directories.claim(dataserver_id, accept_empty=accept_empty)
            for each in self.directories.sound:
                self._recover_from_power_failure(each)
            self.directories.require_one()
        except BaseException:
            self.close()
            raise
        self.directory = self.directories.sound[0].path

    def close(self) -> None:
        """Let another process use the directories. Safe to call again."""
        self.directories.close()

    def look_after_directories(self) -> bool:
        """Whether a directory that was used until now has failed."""
        if not self.directories.look():
            return False
        with self._lock:
            for file_id in [file_id for file_id, file in self._files.items() if not self.is_sound(file)]:
                del self._files[file_id]
        return True

    def is_sound(self, file: StoredFile) -> bool:
        """Whether it lies where it is safe."""
        return self.directories.holding(file.directory) is not None

    # ------------------------------------------------------------------ files

    @contextlib.contextmanager
    def opened(self, file_id: str) -> Iterator[StoredFile]:
        """The file, for the time of a `with`. Raises NoSuchFile, InvalidArgument, StorageFailed."""
        check_file_id(file_id)
        with self._lock:
            file = self._files.get(file_id) or self._load(file_id)
            if file is None or file_id in self._deleted:
                raise NoSuchFile(f"this dataserver has no file {file_id}")
            self._hold(file)
        try:
            yield file
        finally:
            self._release(file)

    @contextlib.contextmanager
    def opened_for_append(self, file_id: str, inode: int, path: bytes, chunk_size: int,
                          expected_bytes: int = 0) -> Iterator[StoredFile]:
        """Like `opened`, but an unknown file is made, and gone again if nothing is ever committed to it.

        `expected_bytes` are to be appended at once: that tells how to make it. Raises NoSuchFile for a file that
        was deleted, NoSpace, InvalidArgument (`chunk_size` differs).
        """
        check_file_id(file_id)
        with self._lock:
            if file_id in self._deleted:
                raise NoSuchFile(f"the file {file_id} was deleted")
            file = self._files.get(file_id) or self._load(file_id)
            if file is None:
                file = self._make(inode, path, chunk_size, file_id, expected_bytes)
            elif not self.is_sound(file):
                raise StorageFailed(f"{file_id} lies in a directory that has failed")
            if file.chunk_size != chunk_size:
                raise InvalidArgument(f"chunk_size: {chunk_size}, but {file_id} has {file.chunk_size}")
            self._hold(file)
        try:
            yield file
        finally:
            self._release(file)

    def make_room(self, file: StoredFile, size_bytes: int) -> None:
        """Move a file to another disk if its own has no room for so many bytes more and another one has. The caller
        has the file's turn. Raises StorageFailed."""
        if len(self.directories.sound) == 1:
            return
        here = self.directories.of(file.directory)
        needed_bytes = size_bytes + GROWTH_BYTES
        if here.free_bytes() >= needed_bytes:
            return
        try:
            taken_bytes = used_bytes(file)
            there = self.directories.roomier(here, taken_bytes + needed_bytes)
            if there is None or taken_bytes > MOVED_BYTES:
                return
            place = copy_to(there, file)
        except OSError as error:
            log.warning("%s", disk_error(error, f"cannot move {file.file_id} to another disk"))
            return
        with self._lock:
            file.directory, file.note_written = place, there.note_written
            if file.descriptor >= 0:
                os.close(file.descriptor)
                file.descriptor = -1
        there.note_written(taken_bytes)
        here.erase(file.file_id)
        log.info("%s moved from %s, whose disk is full, to %s", file.file_id, here.path, there.path)

    def inode_of(self, file_id: str) -> int | None:
        """Of the file that a content here belongs to; None for one that is not here. Raises StorageFailed."""
        with self._lock:
            file = self._files.get(file_id) or self._load(file_id)
            if file is None:
                return None
            self._files[file_id] = file
            return file.inode

    def new_version(self, file_id: str, base: StoredFile, inode: int, path: bytes, chunk_size: int) -> StoredFile:
        """A version that is to be made from `base`; `adopt` gives it its place. Raises InvalidArgument,
        NoSuchFile."""
        check_file_id(file_id)
        if file_id in self._deleted:
            raise NoSuchFile(f"the file {file_id} was deleted")
        if self.inode_of(file_id) is not None:
            raise InvalidArgument(f"file_id: {file_id} is a content that is here already")
        directory = self.directories.of(base.directory)
        return StoredFile(file_id, directory.place(file_id), inode, path, chunk_size, base.generation + 1,
                          note_written=directory.note_written)

    def adopt(self, file: StoredFile, made_in: str) -> None:
        """Give a complete version its place: from now on it is a file like others. Raises OSError."""
        with self._lock:
            try:
                os.rename(made_in, file.directory)  # noqa: PTH104
            except FileNotFoundError:
                _make_directory(os.path.dirname(file.directory))  # noqa: PTH120
                os.rename(made_in, file.directory)  # noqa: PTH104
            self._files[file.file_id] = file

    def delete(self, file_id: str) -> None:
        """Remove a file; a read that goes on may finish the chunk it is in. Unknown files are fine."""
        check_file_id(file_id)
        with self._lock:
            self._deleted[file_id] = boot_seconds()
            while len(self._deleted) > _TOMBSTONES:
                self.remembers_since = self._deleted.popitem(last=False)[1]
            self._forget(file_id)
            for directory in self.directories.all:
                if directory.failure and len(directory.forsaken) < MOST_FORSAKEN:
                    directory.forsaken.add(file_id)
        for directory in self.directories.all:
            if not directory.hangs:
                directory.erase(file_id)

    def begin_anew(self, file_id: str, inode: int) -> None:
        """Forget what is left of a content of the file `inode`, and that it was deleted: a new replica of it is being
        made. Raises InvalidArgument for one of another file: clients choose the ids of contents."""
        with contextlib.suppress(StorageFailed):    # damaged: whose it was is unknown
            if self.inode_of(file_id) not in (None, inode):
                raise InvalidArgument(f"file_id: {file_id} is a content of another file than inode {inode} here")
        self.delete(file_id)
        with self._lock:
            self._deleted.pop(file_id, None)

    def move_out(self, file_id: str, name: str) -> str:
        """Move a file to `name` in its directory, a small one with its suffix; returns the path. Raises NoSuchFile,
        StorageFailed."""
        check_file_id(file_id)
        with self._lock:
            self._forget(file_id)
            directory = next((each for each in self.directories.sound if each.has(file_id)), None)
            if directory is None:
                raise NoSuchFile(f"this dataserver has no file {file_id}")
            place = directory.place(file_id)
            suffix = "" if os.path.isdir(place) else SMALL_SUFFIX  # noqa: PTH112
            target = f"{directory.root}/{name}{suffix}"
            try:
                os.rename(place + suffix, target)  # noqa: PTH104
            except OSError as error:
                raise disk_error(error, f"cannot move {file_id}") from None
        return target

    def move_in(self, file_id: str, source: str) -> None:
        """The way back: `source` is what `move_out` returned. Raises StorageFailed."""
        place = self.directories.of(source).place(file_id) + (SMALL_SUFFIX if source.endswith(SMALL_SUFFIX) else "")
        with self._lock:
            try:
                if self.has(file_id):
                    raise StorageFailed(f"{file_id} is here already")
                os.makedirs(os.path.dirname(place), exist_ok=True)  # noqa: PTH103, PTH120
                os.rename(source, place)  # noqa: PTH104
            except OSError as error:
                raise disk_error(error, f"cannot move {file_id}") from None
            self._deleted.pop(file_id, None)

    def has(self, file_id: str) -> bool:
        """Whether there is anything of a file where it is safe."""
        return any(each.has(file_id) for each in self.directories.sound)

    def ids(self) -> Iterator[str]:
        """The ids of all files on disk, in no order."""
        for directory in self.directories.sound:
            yield from directory.ids()

    def ids_below(self, prefix: str) -> set[str]:
        """The ids on disk that begin with two hex digits. Raises OSError."""
        return set().union(*(directory.ids_below(prefix) for directory in self.directories.sound))

    # ------------------------------------------------------------------ private

    def _forget(self, file_id: str) -> None:
        self._files.pop(file_id, None)
        self.grown.forget(file_id)

    def _hold(self, file: StoredFile) -> None:
        file.users += 1
        self._files[file.file_id] = file
        self._files.move_to_end(file.file_id)
        while len(self._files) > KEPT_FILES:
            idle = next((other for other in self._files.values() if not other.users), None)
            if idle is None:
                return
            del self._files[idle.file_id]

    def _release(self, file: StoredFile) -> None:
        with self._lock:
            file.users -= 1
            if file.users:
                return
            if file.descriptor >= 0:
                os.close(file.descriptor)
                file.descriptor = -1
            if file.length or file.ordering.pinned:
                return
            if self._files.get(file.file_id) is file:
                del self._files[file.file_id]
                directory = self.directories.holding(file.directory)
                if directory is not None:
                    directory.erase(file.file_id)

    def _load(self, file_id: str) -> StoredFile | None:
        failed = [each for each in self.directories.all if each.failure and not each.hangs
                  and file_id not in each.forsaken and len(each.forsaken) < MOST_FORSAKEN]
        for directory in [*self.directories.sound, *failed]:
            try:
                file = load(file_id, directory.place(file_id))
            except NoSuchFile:
                continue
            except StorageFailed:
                if directory.failure:
                    continue
                raise
            file.note_written = directory.note_written
            return file
        return None

    def _make(self, inode: int, path: bytes, chunk_size: int, file_id: str, expected_bytes: int) -> StoredFile:
        directory = self.directories.for_new(expected_bytes)
        file = StoredFile(file_id, directory.place(file_id), inode, path, chunk_size,
                          note_written=directory.note_written)
        description = file.description()
        file.small = (expected_bytes <= SMALL_BYTES <= file.chunk_size
                      and len(description) <= SMALL_DESCRIPTION_BYTES)
        try:
            if not file.small:
                _make_directory(file.directory)
            try:
                descriptor = begin_file(file.record, description)
            except FileNotFoundError:
                _make_directory(os.path.dirname(file.directory))  # noqa: PTH120
                descriptor = begin_file(file.record, description)
        except OSError as error:
            directory.erase(file_id)
            raise disk_error(error, f"cannot make {file.file_id}") from None
        if file.small:
            file.descriptor = descriptor
        else:
            os.close(descriptor)
        file.ordering.begin_log()
        return file

    def _recover_from_power_failure(self, directory: Directory) -> None:
        """Cut what was being written when the machine stopped to what of it is whole."""
        path, boot = f"{directory.root}/boot", boot_id()
        try:
            with contextlib.suppress(FileNotFoundError):
                if Path(path).read_bytes() == boot:
                    return
                self._recover_all(directory)
            write_file(path, boot, sync=True)
        except OSError as error:
            problem = disk_error(error, f"cannot use the directory {directory.path}")
            if isinstance(problem, NoSpace):
                log.warning("%s: its disk is full", directory.path)
            else:
                directory.failure = problem.message

    def _recover_all(self, directory: Directory) -> None:
        changed_at = {}
        for file_id in directory.ids():
            for record in (directory.place(file_id) + SMALL_SUFFIX, f"{directory.place(file_id)}/meta"):
                with contextlib.suppress(FileNotFoundError):
                    changed_at[file_id] = os.stat(record).st_mtime  # noqa: PTH116
        newest = max(changed_at.values(), default=0.0)
        for file_id in [one for one, changed in changed_at.items() if changed > newest - WRITTEN_BACK_SECONDS]:
            try:
                with self.opened(file_id) as file:
                    if lost := recover(file):
                        log.warning("%s: its last %d bytes were not on the disk when the machine stopped", file_id,
                                    lost)
            except SpeedwellError as error:
                log.error("%s", error)


def _make_directory(directory: str) -> None:
    try:
        os.mkdir(directory)  # noqa: PTH102
    except FileExistsError:
        return
    except FileNotFoundError:
        os.makedirs(directory, exist_ok=True)  # noqa: PTH103
