"""What the processes that tests start write into their logs."""

import os
import re
import stat
from pathlib import Path

TRACEBACK = b"Traceback (most recent call last)"
BLOCKS = re.compile(r"[0-9a-f]{2}")
"""Directories in which a dataserver keeps files."""

FABRIC = Path("/var/tmp/speedwell/fabric")
"""Where `speedwell up --fabric` keeps an installation that nobody named a directory for."""

NOTHING = (0, 0)


class Logs:
    """The logs below a directory, each read on from where it was read to."""

    def __init__(self, directory: Path, shared: Path | None = None) -> None:
        """With those below `shared`, which others wrote to before."""
        self._directory = directory
        self._shared = shared
        self._read: dict[str, tuple[int, int]] = {}     # the file's number, and bytes
        self._left: set[str] = set()
        for path in _logs_below(shared) if shared else ():
            self._new(path)

    def tracebacks(self) -> list[str]:
        """Each new traceback, with the name of its log before it."""
        for entry in os.scandir(self._directory):
            if entry.is_dir(follow_symlinks=False) and entry.path not in self._left:
                self._read = dict.fromkeys(_logs_below(entry.path), NOTHING) | self._read
        if self._shared:
            self._read = dict.fromkeys(_logs_below(self._shared), NOTHING) | self._read
        return [f"{path}:\n{new[new.index(TRACEBACK):][:8000].decode(errors='replace')}"
                for path in self._read if TRACEBACK in (new := self._new(path))]

    def look_for_no_more(self) -> None:
        """What is there now gets no more logs; those that it has are read on."""
        self._left = {entry.path for entry in os.scandir(self._directory)}

    def _new(self, path: str) -> bytes:
        try:
            status = Path(path).stat()
        except FileNotFoundError:
            return b""
        if not stat.S_ISREG(status.st_mode):    # a test may have it lead to /dev/full, which has no end
            return b""
        (number, begin), self._read[path] = self._read.get(path, NOTHING), (status.st_ino, status.st_size)
        if (status.st_ino, status.st_size) == (number, begin):
            return b""
        with Path(path).open("rb") as log:
            log.seek(begin if status.st_ino == number and begin < status.st_size else 0)
            return log.read()


def _logs_below(directory: str | Path) -> list[str]:
    """Without looking into mounts: their servers may be gone."""
    mounts = {line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()}
    logs = []
    for place, directories, files in os.walk(directory):
        directories[:] = [each for each in directories
                          if f"{place}/{each}" not in mounts and not BLOCKS.fullmatch(each)]
        logs += [f"{place}/{each}" for each in files
                 if each == "log" or each.endswith((".log", ".log.1")) or place.endswith("/logs")]
    return logs
