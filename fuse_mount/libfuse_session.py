"""libfuse's requests as calls of the operations."""

import ctypes
import errno
from collections.abc import Callable
from types import ModuleType
from typing import Any

from fuse_mount.rename_requests import follow


def session_class(library: ModuleType, enter_thread: Callable[[], None], tune: Callable[[Any], None]) -> type:
    """mfusepy's FUSE class with what it does not hand on: flags of rename, the handle of chmod and its like;
    paths as the bytes they are, and file content without copies through Python objects.

    `enter_thread` is called first in every request, `tune` with the connection to the kernel when it is made.
    """
    byte_array = ctypes.c_ubyte
    addressof: Callable[[Any], int] = ctypes.addressof

    class Session(library.FUSE):  # type: ignore[name-defined,misc]
        def _wrapper(self, operation: Callable[..., Any], *arguments: Any) -> Any:
            enter_thread()
            try:
                return operation(*arguments) or 0
            except OSError as error:
                if error.errno:     # the usual case, without what mfusepy makes ready for its log
                    return -error.errno
                return super()._wrapper(_raise, error)
            except BaseException as error:
                return super()._wrapper(_raise, error)

        def rename_fuse_3(self, old: bytes, new: bytes, flags: int) -> Any:
            return self.operations.rename(old, new, flags)

        def chmod_fuse_3(self, path: bytes | None, mode: int, fip: Any) -> Any:
            return self.operations.chmod(path, mode, fip.contents if fip else None)

        def chown_fuse_3(self, path: bytes | None, uid: int, gid: int, fip: Any) -> Any:
            uid, gid = (-1 if value == 0xFFFFFFFF else value for value in (uid, gid))
            return self.operations.chown(path, uid, gid, fip.contents if fip else None)

        def truncate_fuse_3(self, path: bytes | None, length: int, fip: Any) -> Any:
            return self.operations.truncate(path, length, fip.contents if fip else None)

        def utimens_fuse_3(self, path: bytes | None, buf: Any, fip: Any) -> Any:
            times = None
            if buf:
                both = buf.contents
                times = tuple(time.tv_sec * 10**9 + time.tv_nsec for time in (both.actime, both.modtime))
            return self.operations.utimens(path, times, fip.contents if fip else None)

        def mknod(self, path: bytes, mode: int, device: int) -> Any:
            return self.operations.mknod(path, mode, device)

        def mkdir(self, path: bytes, mode: int) -> Any:
            return self.operations.mkdir(path, mode)

        def rmdir(self, path: bytes) -> Any:
            return self.operations.rmdir(path)

        def symlink(self, target: bytes, path: bytes) -> Any:
            return self.operations.symlink(path, target)

        def link(self, existing: bytes, path: bytes) -> Any:
            return self.operations.link(path, existing)

        def readlink(self, path: bytes, buf: Any, size: int) -> Any:
            target = self.operations.readlink(path)[:size - 1]
            ctypes.memmove(buf, target + b"\0", len(target) + 1)
            return 0

        def readdir_fuse_3(self, path: bytes, buf: Any, filler: Any, offset: int, fip: Any, flags: int) -> Any:
            attributes = library.c_stat()
            for name, attributes.st_mode, attributes.st_ino in self.operations.read_directory(path):
                if filler(buf, name, attributes, 0, 0):
                    return -errno.ENOMEM
            return 0

        def unlink(self, path: bytes) -> Any:
            return self.operations.unlink(path)

        def create(self, path: bytes, mode: int, fip: Any) -> Any:
            return self.operations.create(path, mode, fip.contents)

        def open(self, path: bytes, fip: Any) -> Any:
            return self.operations.open(path, fip.contents)

        def read(self, path: bytes | None, buf: Any, size: int, offset: int, fip: Any) -> Any:
            memory = memoryview((byte_array * size).from_address(addressof(buf.contents))).cast("B")
            return self.operations.readinto(path, memory, offset, fip.contents)

        def write(self, path: bytes | None, buf: Any, size: int, offset: int, fip: Any) -> Any:
            memory = memoryview((byte_array * size).from_address(addressof(buf.contents))).cast("B")
            return self.operations.write(path, memory, offset, fip.contents)

        def flush(self, path: bytes | None, fip: Any) -> Any:
            return self.operations.flush(path, fip.contents)

        def release(self, path: bytes | None, fip: Any) -> Any:
            return self.operations.release(path, fip.contents)

        def fsync(self, path: bytes | None, datasync: int, fip: Any) -> Any:
            return self.operations.fsync(path, datasync, fip.contents)

        def fallocate(self, path: bytes | None, mode: int, offset: int, size: int, fip: Any) -> Any:
            return self.operations.fallocate(path, mode, offset, size, fip.contents)

        def lock(self, path: bytes | None, fip: Any, command: int, lock: Any) -> Any:
            return self.operations.lock(path, fip.contents, command, lock)

        def flock(self, path: bytes | None, fip: Any, operation: int) -> Any:
            return self.operations.flock(path, fip.contents, operation)

        def fgetattr(self, path: bytes | None, buf: Any, fip: Any) -> Any:
            fill_status(buf.contents, self.operations.getattr(path, fip.contents if fip else None))
            return 0

        def _init(self, conn: Any, config: Any) -> None:
            if conn:
                tune(conn.contents)
            if library.fuse_version_major >= 3:
                self.followed_renames = follow(library, self.operations.rename_requests, enter_thread)
            self.operations.init("/")

    return Session


def fill_status(status: Any, fields: dict[str, int]) -> None:
    """Put the fields of a `struct stat` in their places, times in nanoseconds. mfusepy's own way looks each field up
    twice, which takes as long as finding out what is to be told."""
    status.st_mode, status.st_ino, status.st_nlink = fields["st_mode"], fields["st_ino"], fields["st_nlink"]
    status.st_uid, status.st_gid, status.st_rdev = fields["st_uid"], fields["st_gid"], fields["st_rdev"]
    status.st_size, status.st_blocks, status.st_blksize = fields["st_size"], fields["st_blocks"], fields["st_blksize"]
    for time, name in ((status.st_atimespec, "st_atime"), (status.st_mtimespec, "st_mtime"),
                       (status.st_ctimespec, "st_ctime")):
        time.tv_sec, time.tv_nsec = divmod(fields[name], 10**9)


def _raise(error: BaseException) -> None:
    raise error
