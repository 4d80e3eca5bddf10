"""Files on a dataserver's disk (Mayflower, section 3.3.2).

`ROOT/<first 2 hex digits of the file id>/<file id>/` holds `meta` and the chunks `1`, `2`, ... `meta` begins
with the committed length as 20 digits, overwritten in place by one write when an append commits; then a line of
JSON that says what the file is. Bytes of a chunk beyond the committed length are leftovers of an append that
did not commit: nobody reads them, the next append overwrites them.
"""

import contextlib
import errno
import fcntl
import json
import logging
import os
import re
import shutil
import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from fs.errors import InvalidArgument, NoSpace, NoSuchFile, StorageFailed
from fs.proto.speedwell_pb2 import FileLength

log = logging.getLogger(__name__)

MAX_OFFSET = 1 << 62
MAX_CHUNKS_PER_APPEND = 65536
KEPT_FILES = 4096
"""Files whose state stays in memory while nobody uses them."""

_FILE_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_LENGTH_DIGITS = 20
_OUT_OF_SPACE = (errno.ENOSPC, errno.EDQUOT)
_TOMBSTONES = 65536


def check_file_id(file_id: str) -> None:
    """Raises InvalidArgument unless `file_id` is a lower-case UUID: it becomes a directory's name."""
    if not _FILE_ID.fullmatch(file_id):
        raise InvalidArgument(f"file_id: {file_id[:60]!r} is not a lower-case UUID")


@dataclass
class StoredFile:
    """One file on this server. `length` is the committed length in bytes; `turn` is held by its appender."""

    file_id: str
    directory: str
    inode: int
    path: bytes
    chunk_size: int
    length: int = 0
    users: int = 0
    turn: threading.Lock = field(default_factory=threading.Lock)

    def segments(self, offset: int, length: int) -> Iterator[tuple[int, int, int]]:
        """(descriptor, offset in it, bytes) for each chunk that the range touches, in order.

        The descriptor is open until the next step. Raises StorageFailed if a chunk is missing or short.
        """
        while length > 0:
            number, start = divmod(offset, self.chunk_size)
            count = min(length, self.chunk_size - start)
            descriptor = self._open_chunk(number)
            try:
                if os.fstat(descriptor).st_size < start + count:
                    raise StorageFailed(f"chunk {number + 1} of {self.file_id} is shorter than the file's length")
                yield descriptor, start, count
            finally:
                os.close(descriptor)
            offset += count
            length -= count

    def chunk(self, number: int) -> str:
        """The path of chunk `number`, counted from 0 (its name counts from 1, as in the paper)."""
        return f"{self.directory}/{number + 1}"

    def _open_chunk(self, number: int) -> int:
        try:
            return os.open(self.chunk(number), os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise StorageFailed(f"chunk {number + 1} of {self.file_id}: {error.strerror}") from None


class FileStore:
    """All files of one dataserver. Thread-safe; one process per directory.

    Raises StorageFailed if the directory cannot be used or belongs to another dataserver.
    """

    def __init__(self, directory: Path, dataserver_id: str) -> None:
        self.directory = directory
        self._root = str(directory)  # plain strings: Path objects would be a third of a small append's time
        self._files: OrderedDict[str, StoredFile] = OrderedDict()
        self._grown: dict[str, FileLength] = {}
        self._deleted: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.Lock()
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._owner = os.open(directory / "dataserver", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StorageFailed(f"cannot use the directory {directory}: {error.strerror}") from None
        self._claim(dataserver_id)

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
    def opened_for_append(self, file_id: str, inode: int, path: bytes,
                          chunk_size: int) -> Iterator[StoredFile]:
        """Like `opened`, but an unknown file is made, and gone again if nothing is ever committed to it.

        Raises NoSuchFile for a file that was deleted, NoSpace, InvalidArgument (`chunk_size` differs).
        """
        check_file_id(file_id)
        with self._lock:
            if file_id in self._deleted:
                raise NoSuchFile(f"the file {file_id} was deleted")
            file = self._files.get(file_id) or self._load(file_id)
            if file is None:
                file = self._make(StoredFile(file_id, self._place(file_id), inode, path, chunk_size))
            if file.chunk_size != chunk_size:
                raise InvalidArgument(f"chunk_size: {chunk_size}, but {file_id} has {file.chunk_size}")
            self._hold(file)
        try:
            yield file
        finally:
            self._release(file)

    def delete(self, file_id: str) -> None:
        """Remove a file; a read that goes on may finish the chunk it is in. Unknown files are fine."""
        check_file_id(file_id)
        with self._lock:
            self._deleted[file_id] = None
            while len(self._deleted) > _TOMBSTONES:
                self._deleted.popitem(last=False)
            self._files.pop(file_id, None)
            self._grown.pop(file_id, None)
        shutil.rmtree(self._place(file_id), ignore_errors=True)

    def ids(self) -> Iterator[str]:
        """The ids of all files on disk, in no order."""
        for prefix in sorted(self.directory.glob("[0-9a-f][0-9a-f]")):
            with contextlib.suppress(FileNotFoundError):
                yield from (entry.name for entry in prefix.iterdir() if _FILE_ID.fullmatch(entry.name))

    def capacity(self) -> tuple[int, int]:
        """(size of the disk, bytes that can still be written). Raises StorageFailed."""
        try:
            disk = os.statvfs(self.directory)
        except OSError as error:
            raise StorageFailed(f"{self.directory}: {error.strerror}") from None
        return disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize

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
            return [self._grown.pop(file_id) for file_id in ids]

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
        owner = os.pread(self._owner, 256, 0).decode("utf-8", "replace").strip()
        if owner and owner != dataserver_id:
            raise StorageFailed(f"{self.directory} belongs to the dataserver {owner!r}, not {dataserver_id!r}")
        if not owner:
            try:
                os.pwrite(self._owner, f"{dataserver_id}\n".encode(), 0)
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
            if file.users or file.length:
                return
            if self._files.get(file.file_id) is file:
                del self._files[file.file_id]
                shutil.rmtree(file.directory, ignore_errors=True)

    def _load(self, file_id: str) -> StoredFile | None:
        directory = self._place(file_id)
        try:
            descriptor = os.open(f"{directory}/meta", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageFailed(f"meta of {file_id}: {error.strerror}") from None
        with os.fdopen(descriptor, encoding="ascii", errors="replace") as meta:
            text = meta.read()
        if not text:
            return None  # a crash while the file was made
        try:
            length, rest = int(text[:_LENGTH_DIGITS]), json.loads(text[_LENGTH_DIGITS:])
            return StoredFile(file_id, directory, int(rest["inode"]), os.fsencode(rest["path"]),
                              int(rest["chunk_size"]), length)
        except (ValueError, KeyError, TypeError) as error:
            raise StorageFailed(f"meta of {file_id} is damaged: {error}") from None

    def _make(self, file: StoredFile) -> StoredFile:
        description = json.dumps({"file_id": file.file_id, "inode": file.inode, "path": os.fsdecode(file.path),
                                  "chunk_size": file.chunk_size})
        try:
            _make_directory(file.directory)
            _write_new(f"{file.directory}/meta", f"{0:0{_LENGTH_DIGITS}d}\n{description}\n".encode("ascii"))
        except OSError as error:
            shutil.rmtree(file.directory, ignore_errors=True)
            raise disk_error(error, f"cannot make {file.file_id}") from None
        return file


def disk_error(error: OSError, what: str) -> NoSpace | StorageFailed:
    """The filesystem's error for an error of the local disk."""
    if error.errno in _OUT_OF_SPACE:
        return NoSpace("the dataserver's disk is full")
    return StorageFailed(f"{what}: {error.strerror}")


def _make_directory(directory: str) -> None:
    try:
        os.mkdir(directory)  # noqa: PTH102
    except FileExistsError:
        return
    except FileNotFoundError:
        os.makedirs(directory, exist_ok=True)  # noqa: PTH103


def _write_new(path: str, content: bytes) -> None:
    """Write a file with one system call: a crash leaves it empty or whole."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        if os.write(descriptor, content) < len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        os.close(descriptor)


def _sync_directory(directory: str) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class AppendWriter:
    """Bytes of one append behind a file's committed length; the caller has the file's turn.

    Ends with `commit`, which makes them part of the file, or `abort`, which leaves no trace.
    """

    def __init__(self, file: StoredFile, sync: bool = False) -> None:
        self.file = file
        self.offset = file.length
        self.end = file.length
        self._sync = sync
        self._descriptor = -1
        self._chunk = -1
        self._touched: list[int] = []

    def write(self, data: memoryview) -> None:
        """Add bytes. Raises NoSpace or StorageFailed; only `abort` is useful then."""
        try:
            while data:
                chunk, start = divmod(self.end, self.file.chunk_size)
                if chunk != self._chunk:
                    self._next_chunk(chunk)
                written = os.pwrite(self._descriptor, data[:self.file.chunk_size - start], start)
                self.end += written
                data = data[written:]
        except OSError as error:
            raise disk_error(error, f"cannot write to {self.file.file_id}") from None

    def segments(self) -> Iterator[tuple[int, int, int]]:
        """Where the bytes of this append are, as `StoredFile.segments`."""
        return self.file.segments(self.offset, self.end - self.offset)

    def commit(self) -> None:
        """Make the bytes visible. Raises StorageFailed, and they are not."""
        try:
            if self._sync and self._descriptor >= 0:
                os.fsync(self._descriptor)
            self._close()
            descriptor = os.open(f"{self.file.directory}/meta", os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.pwrite(descriptor, f"{self.end:0{_LENGTH_DIGITS}d}".encode(), 0)
                if self._sync:
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)
            if self._sync:
                _sync_directory(self.file.directory)
        except OSError as error:
            raise disk_error(error, f"cannot commit to {self.file.file_id}") from None
        self.file.length = self.end

    def abort(self) -> None:
        """Drop the bytes and give their space back. Never raises."""
        self._close()
        for chunk in reversed(self._touched):
            kept = max(0, self.offset - chunk * self.file.chunk_size)
            with contextlib.suppress(OSError):
                if kept:
                    os.truncate(self.file.chunk(chunk), kept)
                else:
                    os.unlink(self.file.chunk(chunk))  # noqa: PTH108
        self._touched.clear()
        self.end = self.offset

    def _next_chunk(self, chunk: int) -> None:
        if self._sync and self._descriptor >= 0:
            os.fsync(self._descriptor)
        self._close()
        self._descriptor = os.open(self.file.chunk(chunk), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._chunk = chunk
        self._touched.append(chunk)

    def _close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = self._chunk = -1
