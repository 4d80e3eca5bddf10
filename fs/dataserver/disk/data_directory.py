"""One of a dataserver's directories: who owns it, what lies there, how full its disk is, and whether that is well.

`ROOT/dataserver` has the owner's name, `ROOT/directories` the other directories that the same server had when it last
began, if there were any: an empty one among them is a disk that is not mounted.
"""

import contextlib
import errno
import fcntl
import logging
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from pathlib import Path
from typing import TypeVar

from crc32c import crc32c

from speedwell.fs.dataserver.disk.disk_errors import boot_id, disk_error, write_file
from speedwell.fs.dataserver.disk.disk_rate import DiskRate
from speedwell.fs.dataserver.disk.version_file import SMALL_SUFFIX
from speedwell.fs.errors import NoSpace, StorageFailed
from speedwell.fs.private_directory import keep_private

log = logging.getLogger(__name__)

T = TypeVar("T")

FORMAT = 1
"""Of what lies in a directory (docs/reference/data-channel.md). A later one says so in the file `format`; this one
has none."""

HANG_SECONDS = 30.0
GRACE_SECONDS = 5.0
RESERVED_BYTES = 1 << 30
_NOT_OF_THE_DISK = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
FILE_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


class ForeignDirectory(StorageFailed):
    """It is another dataserver's, another process uses it, or it is no directory."""


class DiskHangs(StorageFailed):
    """A disk does not answer, not even with an error."""


class Directory:
    """Thread-safe; one process per directory. `failure` says why it is not used (any more), `hangs` whether nobody
    may even read there."""

    def __init__(self, path: Path, reserved_bytes: int | None = None, rate_bytes: float = 0.0) -> None:
        """`reserved_bytes` of the disk are kept for files that grow: a GiB, or a fiftieth of a small one; it writes
        `rate_bytes` a second, 0: nobody knows."""
        self.path = path
        self.root = str(path)   # plain strings: Path objects would be a third of a small append's time
        self.failure = ""
        self.hangs = False
        self.forsaken: set[str] = set()     # what was deleted since it failed: not to be read here
        self.left_bytes = 0     # that the disk could have written besides, a second
        self._reserved_bytes = reserved_bytes
        self._written_bytes = 0
        self._rate = DiskRate(rate_bytes, lambda: self._written_bytes)
        self._owner = -1

    def claim(self, dataserver_id: str) -> None:
        """Make it this server's. Raises ForeignDirectory, StorageFailed."""
        try:
            if self.path.exists() and not self.path.is_dir():
                raise ForeignDirectory(f"cannot use the directory {self.path}: it is none")
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._owner = os.open(self.path / "dataserver", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            self._own(dataserver_id)
            keep_private(self.path)
            shutil.rmtree(self.path / "making", ignore_errors=True)
            (self.path / "making").mkdir(exist_ok=True)
        except OSError as error:
            raise disk_error(error, f"cannot use the directory {self.path}") from None

    def close(self) -> None:
        """Let another process use it. Safe to call again."""
        owner, self._owner = self._owner, -1
        if owner >= 0:
            os.close(owner)

    @property
    def is_owned(self) -> bool:
        """Whether some dataserver has ever used it."""
        return os.path.lexists(self.path / "dataserver")

    def others(self) -> set[str]:
        """The directories that its server had when it last began."""
        try:
            return set(os.fsdecode((self.path / "directories").read_bytes()).splitlines())
        except OSError:
            return set()

    def remember(self, others: Sequence[str]) -> None:
        """Raises StorageFailed; NoSpace, then it may know none any more."""
        if self.others() == set(others):
            return
        try:
            write_file(f"{self.root}/directories", os.fsencode("".join(f"{other}\n" for other in others)))
        except OSError as error:
            raise disk_error(error, f"cannot use the directory {self.path}") from None

    # ------------------------------------------------------------------ what lies there

    def place(self, file_id: str) -> str:
        return f"{self.root}/{file_id[:2]}/{file_id}"

    def has(self, file_id: str) -> bool:
        place = self.place(file_id)
        return os.path.lexists(place) or os.path.lexists(place + SMALL_SUFFIX)

    def ids(self) -> Iterator[str]:
        """The ids of all files, in no order. What cannot be listed is left out: `look` tells what is wrong."""
        for number in range(256):
            with contextlib.suppress(OSError):
                yield from self.ids_below(f"{number:02x}")

    def ids_below(self, prefix: str) -> set[str]:
        """The ids that begin with two hex digits. Raises OSError."""
        try:
            names = os.listdir(f"{self.root}/{prefix}")  # noqa: PTH208
        except FileNotFoundError:
            return set()
        return {name for name in (name.removesuffix(SMALL_SUFFIX) for name in names) if FILE_ID.fullmatch(name)}

    def erase(self, file_id: str) -> None:
        place = self.place(file_id)
        with contextlib.suppress(OSError):
            os.unlink(place + SMALL_SUFFIX)  # noqa: PTH108
        shutil.rmtree(place, ignore_errors=True)

    # ------------------------------------------------------------------ its disk

    def capacity(self) -> tuple[int, int]:
        """(size of the disk, bytes that new files may take). Raises StorageFailed."""
        try:
            disk = os.statvfs(self.path)
        except OSError as error:
            raise StorageFailed(f"{self.path}: {error.strerror}") from None
        size_bytes = disk.f_blocks * disk.f_frsize
        reserved = min(RESERVED_BYTES, size_bytes // 50) if self._reserved_bytes is None else self._reserved_bytes
        return size_bytes, max(0, disk.f_bavail * disk.f_frsize - reserved)

    def free_bytes(self) -> int:
        """What files that are there may still take. Raises StorageFailed."""
        try:
            disk = os.statvfs(self.root)
        except OSError as error:
            raise StorageFailed(f"{self.path}: {error.strerror}") from None
        return disk.f_bavail * disk.f_frsize

    @property
    def disk(self) -> str:
        """The same text for all directories on one disk, on this boot of this machine. Raises StorageFailed."""
        try:
            return f"{boot_id().decode()}:{self.path.stat().st_dev}"
        except OSError as error:
            raise StorageFailed(f"{self.path}: {error.strerror}") from None

    def note_written(self, count_bytes: int) -> None:
        self._written_bytes += count_bytes

    def measure(self) -> None:
        """Learn `left_bytes` for the time since the last call."""
        self.left_bytes = self._rate.left_bytes()

    def answer(self, task: Callable[[], T]) -> T:
        """What `task` returns, or raises, in a thread that is left behind if the disk hangs. Raises DiskHangs."""
        answer: Future[T] = Future()

        def ask() -> None:
            try:
                answer.set_result(task())
            except BaseException as error:
                answer.set_exception(error)

        threading.Thread(target=ask, name="ask-disk", daemon=True).start()
        wait([answer], HANG_SECONDS)
        wait([answer], GRACE_SECONDS)   # a process that stood still could not hear the answer
        if not answer.done():
            self.hangs = True
            raise DiskHangs(f"{self.path} has not answered for {HANG_SECONDS:g} s")
        return answer.result()

    def probe(self) -> None:
        """Raises OSError."""
        os.statvfs(self.root)
        write_file(f"{self.root}/probe", b"1")

    def look(self) -> None:
        """Set `failure` if it is another directory now, cannot be read, or takes no byte though its disk is not
        full."""
        try:
            if self._owner >= 0 and not os.path.samestat(os.fstat(self._owner), os.stat(f"{self.root}/dataserver")):  # noqa: PTH116
                self.failure = "another directory is there: was its disk unmounted?"
                return
            self.probe()
        except OSError as error:
            if error.errno not in _NOT_OF_THE_DISK and not isinstance(disk_error(error, ""), NoSpace):
                self.failure = error.strerror or str(error)

    # ------------------------------------------------------------------ private

    def _own(self, dataserver_id: str) -> None:
        """Raises OSError, ForeignDirectory."""
        try:
            fcntl.flock(self._owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ForeignDirectory(f"another dataserver is running on {self.path}") from None
        written = os.pread(self._owner, 256, 0)
        owner, _, total = written.strip().rpartition(b" ")
        own = dataserver_id.encode()
        intact = total == b"%08x" % crc32c(owner)
        if intact and owner != own:
            raise ForeignDirectory(f"{self.path} belongs to the dataserver {owner.decode()!r}, not "
                                   f"{dataserver_id!r}")
        self._require_format()
        if not intact:
            if written:
                log.error("%s is damaged: taken for the dataserver %s", self.path / "dataserver", dataserver_id)
            os.truncate(self._owner, 0)
            os.pwrite(self._owner, own + b" %08x\n" % crc32c(own), 0)

    def _require_format(self) -> None:
        """Raises OSError, ForeignDirectory."""
        with contextlib.suppress(FileNotFoundError):
            written = (self.path / "format").read_text(errors="replace").strip()
            if written.isdigit() and int(written) != FORMAT:
                raise ForeignDirectory(f"{self.path} has format {written}, this dataserver reads {FORMAT}: start the "
                                       "version that wrote it (docs/upgrades.md)")
