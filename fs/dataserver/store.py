"""Files on a dataserver's disk (Mayflower, section 3.3.2).

`ROOT/<first 2 hex digits of the file id>/<file id>/` holds `meta` and the chunks `1`, `2`, ... as
`stored_file` says; a small file is `<file id>.small` in place of that directory. New versions are made in
`ROOT/making` and moved to their place when they are complete; what a dead process left there is removed at the
next start.
"""

import contextlib
import fcntl
import logging
import os
import re
import shutil
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

from crc32c import crc32c

from fs.dataserver.disk import begin_file, boot_id, disk_error, write_file
from fs.dataserver.durability import recover
from fs.dataserver.lease import boot_seconds
from fs.dataserver.record import SMALL_BYTES, SMALL_DESCRIPTION_BYTES, SMALL_SUFFIX
from fs.dataserver.stored_file import StoredFile, load
from fs.errors import InvalidArgument, NoSuchFile, SpeedwellError, StorageFailed
from fs.private_directory import keep_private
from fs.proto.speedwell_pb2 import FileLength

log = logging.getLogger(__name__)

MAX_OFFSET = 1 << 62
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
MAX_CHUNKS_PER_APPEND = 65536
RESERVED_BYTES = 1 << 30
KEPT_FILES = 4096
"""Files whose state stays in memory while nobody uses them."""

_FILE_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_TOMBSTONES = 65536
WRITTEN_BACK_SECONDS = 300.0
"""After so long the kernel has everything on the disk by itself (30 s unless configured otherwise)."""
REPORTED_AGAIN_SECONDS = 60.0


def check_file_id(file_id: str) -> None:
    """Raises InvalidArgument unless `file_id` is a lower-case UUID: it becomes a directory's name."""
    if not _FILE_ID.fullmatch(file_id):
        raise InvalidArgument(f"file_id: {file_id[:60]!r} is not a lower-case UUID")


class FileStore:
    """All files of one dataserver. Thread-safe; one process per directory.

    Raises StorageFailed if the directory cannot be used or belongs to another dataserver.
    """

    def __init__(self, directory: Path, dataserver_id: str, reserved_bytes: int | None = None) -> None:
        """`reserved_bytes` of the disk are kept for files that grow: a GiB, or a fiftieth of a small one."""
        self.directory = directory
        self._reserved_bytes = reserved_bytes
        self._root = str(directory)  # plain strings: Path objects would be a third of a small append's time
        self._files: OrderedDict[str, StoredFile] = OrderedDict()
        self._grown: dict[str, FileLength] = {}
        self._reported: OrderedDict[str, tuple[float, FileLength]] = OrderedDict()
        self._deleted: OrderedDict[str, float] = OrderedDict()
        self.remembers_since = boot_seconds()   # what was deleted before may be forgotten
        self._lock = threading.Lock()
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._owner = os.open(directory / "dataserver", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StorageFailed(f"cannot use the directory {directory}: {error.strerror}") from None
        self._claim(dataserver_id)
        keep_private(directory)
        self._remove_half_made()
        self._recover_from_power_failure()

    def close(self) -> None:
        """Let another process use the directory. Safe to call again."""
        owner, self._owner = self._owner, -1
        if owner >= 0:
            os.close(owner)

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
                file = self._make(StoredFile(file_id, self._place(file_id), inode, path, chunk_size), expected_bytes)
            if file.chunk_size != chunk_size:
                raise InvalidArgument(f"chunk_size: {chunk_size}, but {file_id} has {file.chunk_size}")
            self._hold(file)
        try:
            yield file
        finally:
            self._release(file)

    def inode_of(self, file_id: str) -> int | None:
        """Of the file that a content here belongs to; None for one that is not here. Raises StorageFailed."""
        with self._lock:
            file = self._files.get(file_id) or self._load(file_id)
            if file is None:
                return None
            self._files[file_id] = file
            return file.inode

    def making(self, file_id: str) -> str:
        """Where a version is made before it has its place."""
        return f"{self._root}/making/{file_id}"

    def new_version(self, file_id: str, inode: int, path: bytes, chunk_size: int, generation: int) -> StoredFile:
        """A version that is to be made; `adopt` gives it its place. Raises InvalidArgument, NoSuchFile."""
        check_file_id(file_id)
        if file_id in self._deleted:
            raise NoSuchFile(f"the file {file_id} was deleted")
        if self.inode_of(file_id) is not None:
            raise InvalidArgument(f"file_id: {file_id} is a content that is here already")
        return StoredFile(file_id, self._place(file_id), inode, path, chunk_size, generation)

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
            self._files.pop(file_id, None)
            self._grown.pop(file_id, None)
            self._reported.pop(file_id, None)
        self._erase(file_id)

    def begin_anew(self, file_id: str, inode: int) -> None:
        """Forget what is left of a content of the file `inode`, and that it was deleted: a new replica of it is being
        made. Raises InvalidArgument for one of another file: clients choose the ids of contents."""
        with contextlib.suppress(StorageFailed):    # damaged: whose it was is unknown
            if self.inode_of(file_id) not in (None, inode):
                raise InvalidArgument(f"file_id: {file_id} is a content of another file than inode {inode} here")
        self.delete(file_id)
        with self._lock:
            self._deleted.pop(file_id, None)

    def move_out(self, file_id: str, target: str) -> str:
        """Move a file to `target`, a small one with its suffix; returns its name there. Raises NoSuchFile,
        StorageFailed."""
        check_file_id(file_id)
        place = self._place(file_id)
        with self._lock:
            self._files.pop(file_id, None)
            self._grown.pop(file_id, None)
            self._reported.pop(file_id, None)
            suffix = "" if os.path.isdir(place) else SMALL_SUFFIX  # noqa: PTH112
            try:
                os.rename(place + suffix, target + suffix)  # noqa: PTH104
            except FileNotFoundError:
                raise NoSuchFile(f"this dataserver has no file {file_id}") from None
            except OSError as error:
                raise disk_error(error, f"cannot move {file_id}") from None
        return os.path.basename(target) + suffix  # noqa: PTH119

    def move_in(self, file_id: str, source: str) -> None:
        """The way back: `source` is what `move_out` made. Raises StorageFailed."""
        place = self._place(file_id) + (SMALL_SUFFIX if source.endswith(SMALL_SUFFIX) else "")
        with self._lock:
            try:
                if os.path.exists(place):  # noqa: PTH110
                    raise StorageFailed(f"{file_id} is here already")
                os.makedirs(os.path.dirname(place), exist_ok=True)  # noqa: PTH103, PTH120
                os.rename(source, place)  # noqa: PTH104
            except OSError as error:
                raise disk_error(error, f"cannot move {file_id}") from None
            self._deleted.pop(file_id, None)

    def ids(self) -> Iterator[str]:
        """The ids of all files on disk, in no order."""
        for prefix in sorted(self.directory.glob("[0-9a-f][0-9a-f]")):
            with contextlib.suppress(FileNotFoundError):
                yield from self.ids_below(prefix.name)

    def ids_below(self, prefix: str) -> set[str]:
        """The ids on disk that begin with two hex digits. Raises FileNotFoundError if none ever did, OSError."""
        names = (name.removesuffix(SMALL_SUFFIX) for name in os.listdir(f"{self._root}/{prefix}"))  # noqa: PTH208
        return {name for name in names if _FILE_ID.fullmatch(name)}

    def capacity(self) -> tuple[int, int]:
        """(size of the disk, bytes that new files may take). Raises StorageFailed."""
        try:
            disk = os.statvfs(self.directory)
        except OSError as error:
            raise StorageFailed(f"{self.directory}: {error.strerror}") from None
        size_bytes = disk.f_blocks * disk.f_frsize
        reserved = min(RESERVED_BYTES, size_bytes // 50) if self._reserved_bytes is None else self._reserved_bytes
        return size_bytes, max(0, disk.f_bavail * disk.f_frsize - reserved)

    @property
    def disk(self) -> str:
        """The same text for all stores that share a disk, on this boot of this machine. Raises StorageFailed."""
        try:
            return f"{_BOOT_ID.read_text().strip()}:{self.directory.stat().st_dev}"
        except OSError as error:
            raise StorageFailed(f"{error.filename}: {error.strerror}") from None

    # ------------------------------------------------------------------ lengths to report

    def note_growth(self, file: StoredFile) -> None:
        """Have the file's length reported with the next heartbeat."""
        if file.length:
            with self._lock:
                self._grown[file.file_id] = FileLength(file_id=file.file_id, size=file.length, inode=file.inode)

    def take_grown(self, limit: int) -> list[FileLength]:
        """At most `limit` lengths to report; they are forgotten here."""
        with self._lock:
            ids = [file_id for file_id, _ in zip(self._grown, range(limit), strict=False)]
            taken = [self._grown.pop(file_id) for file_id in ids]
            now = time.monotonic()
            for length in taken:
                self._reported.pop(length.file_id, None)
                self._reported[length.file_id] = now, length
            while self._reported and next(iter(self._reported.values()))[0] < now - REPORTED_AGAIN_SECONDS:
                self._reported.popitem(last=False)
            return taken

    def report_again(self) -> None:
        """Have the lengths of the last minute reported once more: the nameserver may have lost them."""
        with self._lock:
            for _, length in self._reported.values():
                self._grown.setdefault(length.file_id, length)

    def put_back(self, lengths: list[FileLength]) -> None:
        """Lengths that could not be reported; newer ones win."""
        with self._lock:
            for length in lengths:
                self._grown.setdefault(length.file_id, length)

    # ------------------------------------------------------------------ private

    def _claim(self, dataserver_id: str) -> None:
        try:
            fcntl.flock(self._owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StorageFailed(f"another dataserver is running on {self.directory}") from None
        written = os.pread(self._owner, 256, 0)
        owner, _, total = written.strip().rpartition(b" ")
        own = dataserver_id.encode()
        intact = total == b"%08x" % crc32c(owner)
        if intact and owner != own:
            raise StorageFailed(f"{self.directory} belongs to the dataserver {owner.decode()!r}, not "
                                f"{dataserver_id!r}")
        if not intact:
            if written:
                log.error("%s is damaged: taken for the dataserver %s", self.directory / "dataserver", dataserver_id)
            try:
                os.truncate(self._owner, 0)
                os.pwrite(self._owner, own + b" %08x\n" % crc32c(own), 0)
            except OSError as error:
                raise StorageFailed(f"cannot write to {self.directory}: {error.strerror}") from None

    def _place(self, file_id: str) -> str:
        return f"{self._root}/{file_id[:2]}/{file_id}"

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
                self._erase(file.file_id)

    def _erase(self, file_id: str) -> None:
        place = self._place(file_id)
        with contextlib.suppress(OSError):
            os.unlink(place + SMALL_SUFFIX)  # noqa: PTH108
        shutil.rmtree(place, ignore_errors=True)

    def _load(self, file_id: str) -> StoredFile | None:
        try:
            return load(file_id, self._place(file_id))
        except NoSuchFile:
            return None

    def _make(self, file: StoredFile, expected_bytes: int) -> StoredFile:
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
            self._erase(file.file_id)
            raise disk_error(error, f"cannot make {file.file_id}") from None
        if file.small:
            file.descriptor = descriptor
        else:
            os.close(descriptor)
        file.ordering.begin_log()
        return file

    def _recover_from_power_failure(self) -> None:
        """Cut what was being written when the machine stopped to what of it is whole."""
        path, boot = f"{self._root}/boot", boot_id()
        try:
            with contextlib.suppress(FileNotFoundError):
                if Path(path).read_bytes() != boot:
                    self._recover_all()
            write_file(path, boot, sync=True)
        except OSError as error:
            raise disk_error(error, f"cannot use the directory {self.directory}") from None

    def _recover_all(self) -> None:
        changed_at = {}
        for file_id in self.ids():
            for record in (self._place(file_id) + SMALL_SUFFIX, f"{self._place(file_id)}/meta"):
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

    def _remove_half_made(self) -> None:
        making = self.directory / "making"
        shutil.rmtree(making, ignore_errors=True)
        try:
            making.mkdir(exist_ok=True)
        except OSError as error:
            raise disk_error(error, f"cannot write to {self.directory}") from None


def _make_directory(directory: str) -> None:
    try:
        os.mkdir(directory)  # noqa: PTH102
    except FileExistsError:
        return
    except FileNotFoundError:
        os.makedirs(directory, exist_ok=True)  # noqa: PTH103
