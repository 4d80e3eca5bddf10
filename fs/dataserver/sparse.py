"""Copies that keep holes."""

import errno
import os


def copy_sparse(source: int, destination: int, end: int) -> None:
    """Copy the bytes before offset `end` that are not in holes to the same offsets. Raises OSError."""
    offset = 0
    while offset < end:
        try:
            offset = os.lseek(source, offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return  # holes up to the end of the file
            raise
        stop = min(os.lseek(source, offset, os.SEEK_HOLE), end)
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
