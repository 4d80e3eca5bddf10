"""Empty files and directories, made while there is nothing else to do, so that a small write does not wait for them.

To make a file, a disk's filesystem looks for a free inode: tens of microseconds, but up to a millisecond or more
where many files were deleted lately. To rename one that is there costs as much as to write a few bytes.
"""

import contextlib
import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from itertools import count

log = logging.getLogger(__name__)

FILES = 512
DIRECTORIES = 64
AT_ONCE = 16
"""So many are made before the next look whether there is something else to do."""

FIRST_PAUSE_SECONDS = 0.5
PAUSE_SECONDS = 0.05
FULL_PAUSE_SECONDS = 1.0
LOWEST_PRIORITY = 19


class Spares:
    """Spare files and directories below one directory, which is on the same filesystem as where they are used.

    Thread-safe. `start` begins to make them, in a thread of its own; without it there are none.
    """

    def __init__(self, directory: str, uses: Callable[[], int]) -> None:
        """`uses` counts what is more urgent: none are made while it grows. What a dead process left
        in `directory` is taken over."""
        self._directory = directory
        self._uses = uses
        self._files: deque[str] = deque()
        self._directories: deque[str] = deque()
        self._names = count()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="spares", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Make no more."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def put_file(self, path: str) -> bool:
        """Have an empty file at `path`, in place of one that may be there; False if no spare can be had."""
        return self._put(self._files, path)

    def put_directory(self, path: str) -> bool:
        """Have an empty directory at `path`, where nothing is; False if no spare can be had."""
        return self._put(self._directories, path)

    @staticmethod
    def _put(spares: deque[str], path: str) -> bool:
        try:
            spare = spares.popleft()
        except IndexError:
            return False
        try:
            os.rename(spare, path)  # noqa: PTH104
        except OSError:     # whoever makes one then finds out what is wrong
            spares.append(spare)
            return False
        return True

    # ------------------------------------------------------------------ making them

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOWEST_PRIORITY)
        pause, before = FIRST_PAUSE_SECONDS, self._uses()
        taken_over = False
        while not self._stopped.wait(pause):
            pause, uses = PAUSE_SECONDS, self._uses()
            if uses != before:
                before = uses
                continue
            try:
                if not taken_over:
                    self._take_over()
                    taken_over = True
                if not all(self._make_one() for _ in range(AT_ONCE)):
                    pause = FULL_PAUSE_SECONDS
            except OSError as error:    # no space, no inodes, a disk that went away: others will say so
                log.debug("no spare files: %s", error)
                pause = FULL_PAUSE_SECONDS

    def _make_one(self) -> bool:
        """Make what is missing first; False if nothing is. Raises OSError."""
        if len(self._files) < FILES:
            path = self._new_name()
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))
            self._files.append(path)
        elif len(self._directories) < DIRECTORIES:
            path = self._new_name()
            os.mkdir(path)  # noqa: PTH102
            self._directories.append(path)
        else:
            return False
        return True

    def _new_name(self) -> str:
        return f"{self._directory}/{next(self._names)}"

    def _take_over(self) -> None:
        """Anything but an empty file or directory is left alone: a spare is never written to before it has left."""
        os.makedirs(self._directory, exist_ok=True)  # noqa: PTH103
        highest = -1
        with os.scandir(self._directory) as entries:
            for entry in entries:
                highest = max(highest, int(entry.name) if entry.name.isdigit() else -1)
                state = entry.stat(follow_symlinks=False)
                if entry.is_file(follow_symlinks=False) and state.st_size == 0 and state.st_nlink == 1:
                    self._files.append(entry.path)
                elif entry.is_dir(follow_symlinks=False):
                    with contextlib.suppress(OSError):
                        os.rmdir(entry.path)  # noqa: PTH106
        self._names = count(highest + 1)
