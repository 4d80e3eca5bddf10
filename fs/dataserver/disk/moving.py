"""A file whose disk is full moves to another disk of its server, to grow there.

Its sums move with it, so what is copied wrongly is found as any other damage. All of it is on the new disk before it
is taken there: whenever the machine stops, one place has all of it.
"""

import contextlib
import os
import shutil

from speedwell.fs.dataserver.disk.data_directory import Directory
from speedwell.fs.dataserver.disk.disk_errors import sync_directory
from speedwell.fs.dataserver.disk.sparse import copy_sparse
from speedwell.fs.dataserver.disk.stored_file import StoredFile
from speedwell.fs.dataserver.disk.version_file import SMALL_SUFFIX

MOVED_BYTES = 256 << 20
"""A longer file stays: its appends wait meanwhile, and a primary waits for its followers for 10 s."""


def used_bytes(file: StoredFile) -> int:
    """What a file takes on its disk. Raises OSError."""
    paths = [file.record] if file.small else [each.path for each in os.scandir(file.directory)]
    return sum(os.stat(path).st_blocks * 512 for path in paths)  # noqa: PTH116


def copy_to(directory: Directory, file: StoredFile) -> str:
    """Copy a file to another directory and force it to the disk there; returns its new place. The caller has the
    file's turn. Raises OSError, and nothing is left."""
    place = directory.place(file.file_id)
    made_in = f"{directory.root}/making/{file.file_id}"
    try:
        os.makedirs(os.path.dirname(place), exist_ok=True)  # noqa: PTH103, PTH120
        if file.small:
            _copy(file.record, made_in + SMALL_SUFFIX)
            os.rename(made_in + SMALL_SUFFIX, place + SMALL_SUFFIX)  # noqa: PTH104
        else:
            os.mkdir(made_in)  # noqa: PTH102
            for name in os.listdir(file.directory):  # noqa: PTH208
                _copy(f"{file.directory}/{name}", f"{made_in}/{name}")
            sync_directory(made_in)
            os.rename(made_in, place)  # noqa: PTH104
        for above in (os.path.dirname(place), directory.root):  # noqa: PTH120
            sync_directory(above)
    except OSError:
        shutil.rmtree(made_in, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.unlink(made_in + SMALL_SUFFIX)  # noqa: PTH108
        directory.erase(file.file_id)
        raise
    return place


def _copy(source: str, target: str) -> None:
    origin = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        copy = os.open(target, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            size_bytes = os.fstat(origin).st_size
            copy_sparse(origin, copy, size_bytes)
            os.ftruncate(copy, size_bytes)
            os.fsync(copy)
        finally:
            os.close(copy)
    finally:
        os.close(origin)
