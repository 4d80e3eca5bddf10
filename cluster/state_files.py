"""Files that say what runs here: replaced whole (`fs.durable`), changed by one command at a time."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from speedwell.cluster.errors import AlreadyRunning

STATE_MODE = 0o666
"""Of such a file, less the umask: everybody may see what runs."""


@contextmanager
def exclusive(path: Path, purpose: str) -> Iterator[None]:
    """Hold the lock file `path` for the time of the `with` block, saying what for.

    The kernel drops the lock when the holder dies, however it dies. Raises AlreadyRunning naming the holder.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 4096, 0).decode(errors="replace").strip() or "another command"
            raise AlreadyRunning(f"{holder} is already at work (lock {path}); "
                                 "wait for it or stop it first") from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{purpose} (pid {os.getpid()})\n".encode(), 0)
        yield
        os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)
