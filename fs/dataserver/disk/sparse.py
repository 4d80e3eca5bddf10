"""Files with holes: where their bytes are, and copies that keep the holes."""

import errno
import os
import threading
from collections.abc import Iterator

ZEROS_BYTES = 1 << 20

_zeros = -1
_zeros_lock = threading.Lock()


def zeros() -> int:
    """A descriptor of ZEROS_BYTES zeros that take no space, never closed."""
    global _zeros
    with _zeros_lock:
        if _zeros < 0:
            descriptor = os.memfd_create("zeros", os.MFD_CLOEXEC)
            os.truncate(descriptor, ZEROS_BYTES)
            _zeros = descriptor
        return _zeros


def data_in(descriptor: int, offset: int, end: int) -> Iterator[tuple[int, int]]:
    """What is not in holes between two offsets of a file: where each piece begins and ends. Raises OSError."""
    while offset < end:
        try:
            offset = os.lseek(descriptor, offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return  # holes up to the end of the file
            raise
        if offset < end:
            stop = min(os.lseek(descriptor, offset, os.SEEK_HOLE), end)
            yield offset, stop
            offset = stop


def copy_sparse(source: int, destination: int, end: int) -> None:
    """Copy the bytes before offset `end` that are not in holes to the same offsets. Raises OSError."""
    for offset, stop in data_in(source, 0, end):
        while offset < stop:
            copied = _copy(source, destination, offset, stop - offset)
            if not copied:
                return
            offset += copied


def _copy(source: int, destination: int, offset: int, count: int) -> int:
    try:
        return os.copy_file_range(source, destination, count, offset, offset)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
    return os.pwrite(destination, os.pread(source, min(count, 1 << 20), offset), offset)
