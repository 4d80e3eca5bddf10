"""The FUSE library of this machine: libfuse 3, with the structures that mfusepy has for its versions."""

import ctypes.util
import importlib
import logging
import os
from types import ModuleType
from typing import Any

from speedwell.fuse_mount.errors import MountError

log = logging.getLogger(__name__)

MAX_TRANSFER_BYTES = 1024 * 1024
MAX_WAITERS = 96
"""Programs that wait for a lock; each occupies a thread of libfuse until it has it."""
# Requests are served in parallel so that one slow file does not hold up the others. Each thread holds a
# buffer of MAX_TRANSFER_BYTES, which bounds their number. Who waits for a lock keeps nobody else waiting.
MAX_THREADS = 24 + MAX_WAITERS
BACKGROUND_REQUESTS = 32
# libfuse's capability bits (fuse_common.h).
CAP_POSIX_LOCKS = 1 << 1
CAP_DONT_MASK = 1 << 6
CAP_FLOCK_LOCKS = 1 << 10
CAP_AUTO_INVAL_DATA = 1 << 12
CAP_READDIRPLUS = 1 << 13
CAP_ASYNC_DIO = 1 << 15
CAP_POSIX_ACL = 1 << 19
CAP_HANDLE_KILLPRIV_V2 = 1 << 21


def load_library() -> ModuleType:
    """mfusepy on libfuse 3. Raises MountError with what to install."""
    if "FUSE_LIBRARY_PATH" not in os.environ and ctypes.util.find_library("fuse3"):
        os.environ.setdefault("FUSE_LIBRARY_NAME", "fuse3")  # mfusepy takes libfuse 2 first
    try:
        library = importlib.import_module("mfusepy")
    except (ImportError, OSError, AttributeError) as error:
        reason = str(error)
    else:
        if library.fuse_version_major >= 3:
            return library
        reason = f"there is only libfuse {library.fuse_version_major}.{library.fuse_version_minor}"
    raise MountError("no FUSE library can be loaded; install the Debian package fuse3 and the Python package "
                     f"mfusepy ({reason})")


def mount_options(*, source: str, allow_other: bool, kernel_options: tuple[str, ...] = ()) -> str:
    """Options for libfuse. `source` is what the first column of `df` shows."""
    fsname = source.replace("\\", r"\\").replace(",", r"\,")
    return ",".join((f"fsname={fsname}", "subtype=speedwell", "default_permissions", *["allow_other"] * allow_other,
                     *kernel_options))


def tune(connection: Any, *, acls: bool = False) -> None:
    """Settings of the connection to the kernel, within what it offers; with `acls` it checks access control lists.
    Raises MountError if that is too little."""
    lacking = [name for capability, name in ((CAP_POSIX_LOCKS, "fcntl"), (CAP_FLOCK_LOCKS, "flock"))
               if not connection.capable & capability]
    if lacking:
        raise MountError(f"the kernel is too old: its FUSE {connection.proto_major}.{connection.proto_minor} keeps "
                         f"locks of {' and '.join(lacking)} to itself, and they are to hold between mounts; "
                         "Linux 3.1 is the first that hands them on")
    if not connection.capable & CAP_READDIRPLUS:
        log.warning("the kernel's FUSE %d.%d lists names without attributes: `ls -l` asks for each file",
                    connection.proto_major, connection.proto_minor)
    connection.max_readahead = MAX_TRANSFER_BYTES
    connection.max_background = BACKGROUND_REQUESTS
    # The pages of a content never change, and a new content is noticed at open: no need for the kernel to
    # ask for the attributes before every read.
    connection.want &= ~CAP_AUTO_INVAL_DATA
    # The kernel drops pages that were read while a direct write was under way only if it waits for that write.
    connection.want &= ~CAP_ASYNC_DIO
    connection.want |= connection.capable & CAP_HANDLE_KILLPRIV_V2
    if acls and connection.capable & CAP_POSIX_ACL:     # without a mask of the kernel's: a default list replaces it
        connection.want |= CAP_POSIX_ACL | CAP_DONT_MASK
