#!/usr/bin/env python3
"""pass_through.py DIRECTORY MOUNTPOINT: a mount in Python that hands every call on to a local directory.

The least that a filesystem in Python costs: no network, no second process, no promise beyond the disk's own.
Serves until it is unmounted.
"""

import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("FUSE_LIBRARY_NAME", "fuse3")  # mfusepy takes libfuse 2 first

import mfusepy

FIELDS = ("st_atime_ns", "st_mtime_ns", "st_ctime_ns", "st_gid", "st_mode", "st_nlink", "st_size", "st_uid", "st_ino",
          "st_blocks", "st_blksize", "st_rdev")


class PassThrough(mfusepy.Operations):  # type: ignore[misc]
    """The calls that fsbench and a dataserver make."""

    use_ns = True

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def _at(self, path: str) -> str:
        return self._directory + path

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        found = os.lstat(self._at(path)) if fh is None else os.fstat(fh)
        return {name.removesuffix("_ns"): getattr(found, name) for name in FIELDS}

    def readdir(self, path: str, fh: int) -> list[str]:
        return [".", "..", *os.listdir(self._at(path))]  # noqa: PTH208

    def mkdir(self, path: str, mode: int) -> int:
        os.mkdir(self._at(path), mode)  # noqa: PTH102
        return 0

    def rmdir(self, path: str) -> int:
        os.rmdir(self._at(path))  # noqa: PTH106
        return 0

    def unlink(self, path: str) -> int:
        os.unlink(self._at(path))  # noqa: PTH108
        return 0

    def rename(self, old: str, new: str) -> int:
        os.replace(self._at(old), self._at(new))  # noqa: PTH105
        return 0

    def link(self, target: str, source: str) -> int:
        os.link(self._at(source), self._at(target))
        return 0

    def chmod(self, path: str, mode: int) -> int:
        os.chmod(self._at(path), mode)  # noqa: PTH101
        return 0

    def statfs(self, path: str) -> dict[str, int]:
        found = os.statvfs(self._at(path))
        return {name: getattr(found, name) for name in dir(found) if name.startswith("f_") and name != "f_fsid"}

    def create(self, path: str, mode: int, fi: Any = None) -> int:
        return os.open(self._at(path), os.O_RDWR | os.O_CREAT | os.O_TRUNC, mode)

    def open(self, path: str, flags: int) -> int:
        return os.open(self._at(path), flags & ~os.O_APPEND)

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        return os.pread(fh, size, offset)

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        return os.pwrite(fh, data, offset)

    def truncate(self, path: str, length: int, fh: int | None = None) -> int:
        os.truncate(self._at(path) if fh is None else fh, length)
        return 0

    def fsync(self, path: str, datasync: int, fh: int) -> int:
        os.fsync(fh)
        return 0

    def release(self, path: str, fh: int) -> int:
        os.close(fh)
        return 0


if __name__ == "__main__":
    source, mountpoint = (str(Path(argument).resolve()) for argument in sys.argv[1:])
    mfusepy.FUSE(PassThrough(source), mountpoint, foreground=True)
