"""Contents that no file has, moved aside for some days before they go for good, each in its directory.

`ROOT/quarantine/<due>-<file id>` is what was `ROOT/<2 digits>/<file id>`, a small file with its suffix. `due` counts
the seconds for which this dataserver has run, which `ROOT/quarantine/age` remembers: a clock that jumps, and days in
which the machine is off, delete nothing.
"""

import contextlib
import logging
import re
import shutil
import threading
import time
from pathlib import Path

from speedwell.fs import durable
from speedwell.fs.dataserver.disk.disk_errors import PUBLIC, disk_error
from speedwell.fs.dataserver.disk.store import FileStore
from speedwell.fs.dataserver.disk.stored_file import load
from speedwell.fs.dataserver.disk.version_file import SMALL_SUFFIX
from speedwell.fs.errors import SpeedwellError
from speedwell.fs.proto.speedwell_pb2 import FileReport

log = logging.getLogger(__name__)

DEFAULT_KEEP_SECONDS = 7 * 86400.0
KEEP_AGE_SECONDS = 60.0
RESTORED_SECONDS = 3600.0
"""So long a content that was restored is not taken for an orphan: somebody makes a file of it."""

_NAME = re.compile(r"(\d{12})-([0-9a-f-]{36})")


class Quarantine:
    """Thread-safe. Raises StorageFailed if the directory cannot be used."""

    def __init__(self, store: FileStore, keep_seconds: float = DEFAULT_KEEP_SECONDS) -> None:
        self._store = store
        self._keep_seconds = keep_seconds
        self._began = self._kept = time.monotonic()
        self._restored: dict[str, float] = {}
        self._lock = threading.Lock()
        self._paths: dict[str, str] = {}
        self._age_before = 0
        found: list[Path] = []
        for directory in self._directories():
            try:
                directory.mkdir(exist_ok=True)
                self._age_before = max(self._age_before, _read_age(directory / "age"))
                found += [path for path in directory.iterdir() if _NAME.match(path.name)]
            except OSError as error:
                raise disk_error(error, f"cannot use {directory}") from None
        for path in sorted(found, key=lambda path: path.name):
            file_id = path.name[13:49]
            self._remove(file_id)   # on another disk, which had failed when it was put aside once more
            self._paths[file_id] = str(path)

    def __bool__(self) -> bool:
        return bool(self._paths)

    def put(self, file_id: str) -> None:
        """Move a content aside. Raises NoSuchFile, StorageFailed."""
        with self._lock:
            self._remove(file_id)
            self._paths[file_id] = self._store.move_out(
                file_id, f"quarantine/{int(self._age + self._keep_seconds):012d}-{file_id}")
            self._keep_age()

    def restore(self, file_id: str) -> bool:
        """Put a content back where it was; whether it was here. One that was made anew meanwhile is not replaced.
        Raises StorageFailed."""
        with self._lock:
            path = self._paths.get(file_id)
            if path is None or self._store.has(file_id):
                return False
            self._store.move_in(file_id, path)
            del self._paths[file_id]
            self._restored[file_id] = time.monotonic()
        log.info("%s is back from quarantine", file_id)
        return True

    def is_spared(self, file_id: str) -> bool:
        """Whether it was restored lately."""
        return time.monotonic() - self._restored.get(file_id, -RESTORED_SECONDS) < RESTORED_SECONDS

    def reports(self, after: str, limit: int) -> list[FileReport]:
        """What is here, in the order of the ids."""
        found: list[FileReport] = []
        for file_id, path in sorted(self._paths.items()):
            if file_id > after and len(found) < limit:
                left = max(0.0, _due(path) - self._age)
                try:
                    file = load(file_id, path.removesuffix(SMALL_SUFFIX))
                    found.append(FileReport(file_id=file_id, inode=file.inode, size=file.length, path=file.path,
                                            seconds_left=left))
                except SpeedwellError as error:
                    found.append(FileReport(file_id=file_id, damage=str(error), seconds_left=left))
        return found

    def expire(self) -> None:
        """Delete what has been here for its time."""
        with self._lock:
            for file_id, path in list(self._paths.items()):
                if _due(path) <= self._age:
                    log.info("%s is deleted: its time in quarantine is over", file_id)
                    self._remove(file_id)
            if self._paths and time.monotonic() - self._kept > KEEP_AGE_SECONDS:
                self._keep_age()

    def empty(self) -> None:
        """Delete all that is here now."""
        with self._lock:
            for file_id in list(self._paths):
                self._remove(file_id)

    # ------------------------------------------------------------------ private

    @property
    def _age(self) -> float:
        return self._age_before + time.monotonic() - self._began

    def _remove(self, file_id: str) -> None:
        path = self._paths.pop(file_id, None)
        if path is not None:
            with contextlib.suppress(OSError):
                Path(path).unlink()
            shutil.rmtree(path, ignore_errors=True)

    def _keep_age(self) -> None:
        self._kept = time.monotonic()
        for directory in self._directories():
            try:
                durable.replace(directory / "age", b"%d\n" % self._age, PUBLIC)
            except OSError as error:
                log.warning("%s: its contents are kept for longer", disk_error(error, str(directory)))

    def _directories(self) -> list[Path]:
        return [directory / "quarantine" for directory in self._store.directories]


def _due(path: str) -> int:
    return int(Path(path).name[:12])


def _read_age(path: Path) -> int:
    """Damaged or missing: as if everything had just come."""
    try:
        return int(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return 0
