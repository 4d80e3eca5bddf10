"""What the processes that tests start write into their logs."""

import os
import re
from pathlib import Path

TRACEBACK = b"Traceback (most recent call last)"
BLOCKS = re.compile(r"[0-9a-f]{2}")
"""Directories in which a dataserver keeps files."""


class Logs:
    """The logs below a directory, each read on from where it was read to."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._read: dict[str, int] = {}
        self._left: set[str] = set()

    def tracebacks(self) -> list[str]:
        """Each new traceback, with the name of its log before it."""
        for entry in os.scandir(self._directory):
            if entry.is_dir(follow_symlinks=False) and entry.path not in self._left:
                self._read = dict.fromkeys(_logs_below(entry.path), 0) | self._read
        return [f"{path}:\n{new[new.index(TRACEBACK):][:8000].decode(errors='replace')}"
                for path in self._read if TRACEBACK in (new := self._new(path))]

    def look_for_no_more(self) -> None:
        """What is there now gets no more logs; those that it has are read on."""
        self._left = {entry.path for entry in os.scandir(self._directory)}

    def _new(self, path: str) -> bytes:
        try:
            size = Path(path).stat().st_size
        except FileNotFoundError:
            return b""
        begin, self._read[path] = self._read[path], size
        if size == begin:
            return b""
        with Path(path).open("rb") as log:
            log.seek(begin if begin < size else 0)
            return log.read()


def _logs_below(directory: str) -> list[str]:
    """Without looking into mounts: their servers may be gone."""
    mounts = {line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()}
    logs = []
    for place, directories, files in os.walk(directory):
        directories[:] = [each for each in directories
                          if f"{place}/{each}" not in mounts and not BLOCKS.fullmatch(each)]
        logs += [f"{place}/{each}" for each in files
                 if each == "log" or each.endswith((".log", ".log.1")) or place.endswith("/logs")]
    return logs
