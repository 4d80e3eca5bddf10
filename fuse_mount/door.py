"""The door between libfuse and the mount: the only place where errors of the filesystem become an errno."""

import errno
import logging
import time
from typing import NamedTuple

from speedwell.fs.errors import SpeedwellError

log = logging.getLogger(__name__)

ROOT_INODE = 1
QUOTA_TOLD_SECONDS = 10.0
_quota_told_at = float("-inf")

# Of these the kernel looks the name up again and repeats them, if the inode is not there (any more).
NAME_AN_INODE = frozenset(("getattr", "setattr", "readlink", "open", "opendir", "readdir", "readdirplus", "getxattr",
                           "setxattr", "listxattr", "removexattr", "statfs"))

MAKE_A_HANDLE = ("create", "open")
USE_A_HANDLE = ("read", "write", "flush", "fsync", "release", "fallocate", "lseek")

_REQUESTS = """
    lookup inode name: found; forget inode lookups; getattr inode -info: attributes;
    setattr inode status fields info: attributes; readlink inode: readlink; mknod inode name mode device: found;
    mkdir inode name mode: found; unlink inode name: done; rmdir inode name: done; symlink target inode name: found;
    rename inode name to to_name flags: done; link inode to to_name: found; open inode info;
    read inode size offset info; write inode data size offset info; flush -inode info: done;
    release -inode handle: done; fsync -inode -kind handle: done; opendir inode info;
    readdir inode size offset info; releasedir -inode handle: done; fsyncdir -inode -kind -info: done; statfs inode;
    setxattr inode name data size flags; getxattr inode name size; listxattr inode size;
    removexattr inode name: done; access; create inode name mode info: found; getlk -inode info lock: lock;
    setlk -inode info lock waits: done; bmap; ioctl; poll; write_buf; retrieve_reply; forget_multi inodes forgotten;
    flock -inode info kind: done; fallocate -inode mode offset length handle: done;
    readdirplus inode size offset info; copy_file_range; lseek -inode offset whence handle: lseek
"""
_FIELDS = [(words.split(), answer.strip()) for words, _, answer in (
    request.partition(":") for request in _REQUESTS.split(";"))]
PASSED = {operation: names for (operation, *names), _ in _FIELDS}
"""The fields of `struct fuse_lowlevel_ops` (fuse_lowlevel.h) from `lookup` on, and their arguments after the request:
none of those that are not served, and with a minus those that the operation does without."""
REQUESTS = {operation: [name.removeprefix("-") for name in names] for operation, names in PASSED.items()}
ANSWERS = {operation: answer for (operation, *_), answer in _FIELDS if answer}
FINDS = tuple(operation for operation, answer in ANSWERS.items() if answer == "found")


class Caller(NamedTuple):
    """A program; `process` tells its threads apart."""

    uid: int
    gid: int
    process: int
    umask: int  # 0 if the kernel has applied it


def errno_of(operation: str, error: BaseException) -> int:
    """What the kernel is told about an error of `operation`; the log gets what an errno cannot say."""
    number = error.errno if isinstance(error, (OSError, SpeedwellError)) else None
    if not number:
        log.error("%s failed in a way nobody foresaw", operation, exc_info=error)
        return errno.EIO
    if isinstance(error, SpeedwellError) and number == errno.EIO:
        log.error("%s: %s", operation, error, extra={"request": error.request_id})
    elif number == errno.EDQUOT:
        _tell_of_quota(str(error))
    elif number == errno.ENOENT and operation in NAME_AN_INODE:
        return errno.ESTALE
    return number


def _tell_of_quota(message: str) -> None:
    """A program is told EDQUOT and no directory. One that goes on trying does not fill the log."""
    global _quota_told_at
    if time.monotonic() - _quota_told_at >= QUOTA_TOLD_SECONDS:
        _quota_told_at = time.monotonic()
        log.warning("EDQUOT: %s", message)
