"""Writing to the dataserver's disk."""

import errno
import os
from pathlib import Path

from speedwell.fs.errors import NoSpace, StorageFailed

PUBLIC = 0o644
"""The mode of files that are no secret."""

_OUT_OF_SPACE = (errno.ENOSPC, errno.EDQUOT)


def disk_error(error: OSError, what: str) -> NoSpace | StorageFailed:
    """The filesystem's error for an error of the local disk."""
    if error.errno in _OUT_OF_SPACE:
        return NoSpace("the dataserver's disk is full")
    return StorageFailed(f"{what}: {error.strerror}")


def write_file(path: str, content: bytes, sync: bool = False) -> None:
    """Write a whole file with one system call: a crash leaves it empty or whole. Raises OSError."""
    descriptor = begin_file(path, content)
    try:
        if sync:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def begin_file(path: str, content: bytes) -> int:
    """Like `write_file`; returns the descriptor, for writing more. Raises OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, PUBLIC)
    try:
        put(descriptor, content, 0)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def write_at(path: str, offset: int, data: bytes, *, sync: bool) -> None:
    """Write into a file with one system call; make it if there is none. Raises OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_CREAT, PUBLIC)
    try:
        put(descriptor, data, offset)
        if sync:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def put(descriptor: int, data: bytes, offset: int) -> None:
    """Write with one system call, all or nothing. Raises OSError."""
    if os.pwrite(descriptor, data, offset) < len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def sync_directory(directory: str) -> None:
    """Force the names in a directory to the disk. Raises OSError."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def boot_id() -> bytes:
    """Another one each time the machine starts; empty if the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()
    except OSError:
        return b""
