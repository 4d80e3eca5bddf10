"""The door between libfuse and the mount: the only place where errors of the filesystem become an errno."""

import errno
import functools
import logging
import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from fs.errors import SpeedwellError

log = logging.getLogger(__name__)

QUOTA_TOLD_SECONDS = 10.0
_quota_told_at = float("-inf")

Path = str | bytes
"""Paths arrive as bytes, or as text from a library that decodes them."""
Door = TypeVar("Door", bound=Callable[..., Any])


class FileInfo(Protocol):
    """The fields of libfuse's `struct fuse_file_info` that the mount uses."""

    flags: int
    fh: int
    direct_io: int
    keep_cache: int
    noflush: int  # libfuse 3.11 and later
    lock_owner: int


def answers_errno(door: Door) -> Door:
    """Turn every error into the OSError that the FUSE library answers the kernel with, and the hidden name that
    libfuse gave to an open file without a name into the path that names its inode. If that is gone too the kernel is
    told ESTALE: a program's `stat` or `open` that began before the name went to another file finds that then."""
    guarded = answers_errno_to_names(door)

    @functools.wraps(door)
    def translating(operations: Any, path: Path | None, *arguments: Any) -> Any:
        if path is None or not operations.hidden.knows(path):
            return guarded(operations, path, *arguments)
        try:
            return guarded(operations, operations.hidden.path_of(path), *arguments)
        except OSError as error:
            if error.errno == errno.ENOENT:
                raise OSError(errno.ESTALE, str(error)) from error
            raise

    return translating  # type: ignore[return-value]


def _tell_of_quota(message: str) -> None:
    """A program is told EDQUOT and no directory. One that goes on trying does not fill the log."""
    global _quota_told_at
    if time.monotonic() - _quota_told_at >= QUOTA_TOLD_SECONDS:
        _quota_told_at = time.monotonic()
        log.warning("EDQUOT: %s", message)


def answers_errno_to_names(door: Door) -> Door:
    """Like `answers_errno` for an operation on names, which tells the hidden ones itself."""

    @functools.wraps(door)
    def guarded(*arguments: Any) -> Any:
        try:
            return door(*arguments)
        except OSError:
            raise
        except SpeedwellError as error:
            if error.errno == errno.EIO:
                log.error("%s: %s", door.__name__, error)
            elif error.errno == errno.EDQUOT:
                _tell_of_quota(str(error))
            raise OSError(error.errno, str(error)) from error
        except Exception as error:
            log.exception("%s failed in a way nobody foresaw", door.__name__)
            raise OSError(errno.EIO, str(error)) from error

    return guarded  # type: ignore[return-value]
