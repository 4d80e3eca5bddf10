"""The FUSE library: which one this machine has, and how its calls reach the operations.

mfusepy on libfuse 3 is preferred. Where the machine has only libfuse 2, mfusepy runs on that; where only the
older fusepy is installed (module `fuse`, libfuse 2), the same operations run on it.
"""

import ctypes
import ctypes.util
import importlib
import os
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

from fuse_mount.errors import MountError

MAX_TRANSFER_BYTES = 1024 * 1024
# Requests are served in parallel so that one slow file does not hold up the others. Each thread holds a
# buffer of MAX_TRANSFER_BYTES, which bounds their number.
MAX_THREADS = 24
BACKGROUND_REQUESTS = 32
# fusepy decodes names strictly; this way any name survives.
_BYTE_FOR_BYTE = "latin-1"
# What libfuse's main returns when its loop ended otherwise than by an unmount.
STOPPED_BY_SIGNAL = 8
# libfuse's capability bits (fuse_common.h).
CAP_AUTO_INVAL_DATA = 1 << 12
CAP_READDIRPLUS = 1 << 13

_thread = threading.local()


def load_library() -> ModuleType:
    """The best FUSE binding of this machine. Raises MountError with what to install."""
    if "FUSE_LIBRARY_PATH" not in os.environ and ctypes.util.find_library("fuse3"):
        os.environ.setdefault("FUSE_LIBRARY_NAME", "fuse3")  # mfusepy takes libfuse 2 first
    reasons = []
    for name in ("mfusepy", "fuse"):
        try:
            library = importlib.import_module(name)
        except (ImportError, OSError, AttributeError) as error:
            reasons.append(f"{name}: {error}")
            continue
        if hasattr(library, "FUSE") and hasattr(library, "fuse_get_context"):
            return library
        reasons.append(f"{name}: not the fusepy library")
    raise MountError("no FUSE library can be loaded; install the Debian package fuse3 and the Python package "
                     f"mfusepy ({'; '.join(reasons)})")


def libfuse_version(library: ModuleType) -> tuple[int, int]:
    """(major, minor) of the libfuse that `library` drives; fusepy knows libfuse 2 only."""
    return getattr(library, "fuse_version_major", 2), getattr(library, "fuse_version_minor", 9)


def attribute_dropper(library: ModuleType) -> Callable[[bytes], None] | None:
    """A function for use in a request that makes the kernel ask again about a path; libfuse 2 has none."""
    if libfuse_version(library) < (3, 2):
        return None
    libfuse = library._libfuse
    invalidate = libfuse.fuse_invalidate_path
    invalidate.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    context = libfuse.fuse_get_context

    def drop(path: bytes) -> None:
        invalidate(context().contents.fuse, path)  # a path that the kernel does not know is fine too

    return drop


def mount_options(library: ModuleType, *, source: str, allow_other: bool,
                  kernel_cache_seconds: float) -> dict[str, Any]:
    """Options for libfuse. `source` is what the first column of `df` shows; `kernel_cache_seconds` is how long
    the kernel keeps names and attributes."""
    options: dict[str, Any] = {
        "foreground": True,  # becoming a daemon is done before, where errors can still be told
        "raw_fi": True, "fsname": source, "subtype": "speedwell", "default_permissions": True,
        "allow_other": allow_other,
        "attr_timeout": kernel_cache_seconds, "entry_timeout": kernel_cache_seconds, "negative_timeout": 0,
        # An open file that is removed lives on in its handle, not under a hidden name.
        "hard_remove": True, "use_ino": True,
    }
    major, minor = libfuse_version(library)
    if major == 2:
        options |= {"big_writes": True, "max_read": 131072, "max_write": 131072}
    elif minor >= 12:
        options |= {"max_threads": MAX_THREADS, "max_idle_threads": MAX_THREADS}
    return options


def serve(library: ModuleType, operations: Any, mountpoint: str, options: dict[str, Any]) -> None:
    """Mount and serve until unmounted or told to stop.

    Raises RuntimeError with libfuse's status if the mount fails, or the serving (STOPPED_BY_SIGNAL).
    """
    if library.__name__ == "mfusepy":
        _session_class(library)(operations, mountpoint, **options)
    else:
        library.FUSE(_Callable(operations), os.fsencode(mountpoint).decode(_BYTE_FOR_BYTE),
                     encoding=_BYTE_FOR_BYTE, **options)


class _Callable:
    """Operations as fusepy calls them: `operations(name, *arguments)`, with paths as text."""

    def __init__(self, operations: Any) -> None:
        self._operations = operations

    def __getattr__(self, name: str) -> Any:
        return getattr(self._operations, name)

    def __call__(self, name: str, *arguments: Any) -> Any:
        answer = getattr(self._operations, name)(*(
            argument.encode(_BYTE_FOR_BYTE) if isinstance(argument, str) else argument for argument in arguments))
        if name != "readdir":
            return answer
        return [(os.fsencode(entry).decode(_BYTE_FOR_BYTE), *rest) for entry, *rest in answer]


def _keep_thread_state() -> None:
    """Python makes a thread state for every call from one of libfuse's threads and drops it afterwards, with its
    memory; held once more, it lives as long as the thread. Their number is bounded by MAX_THREADS."""
    if not getattr(_thread, "kept", False):
        _thread.kept = True
        ctypes.pythonapi.PyGILState_Ensure()


def _session_class(library: ModuleType) -> type:
    """mfusepy's FUSE class with what it does not hand on: flags of rename, the handle of chmod and its like;
    paths as the bytes they are, and file content without copies through Python objects."""
    byte_array = ctypes.c_ubyte
    addressof: Callable[[Any], int] = ctypes.addressof

    class Session(library.FUSE):  # type: ignore[name-defined,misc]
        def _wrapper(self, *arguments: Any, **options: Any) -> Any:
            _keep_thread_state()
            return super()._wrapper(*arguments, **options)

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

        def fgetattr(self, path: bytes | None, buf: Any, fip: Any) -> Any:
            library.set_st_attrs(buf.contents, self.operations.getattr(path, fip.contents if fip else None), True)
            return 0

        def _init(self, conn: Any, config: Any) -> None:
            if conn:
                _tune(conn.contents)
            self.operations.init("/")

    return Session


def _tune(connection: Any) -> None:
    """Settings of the connection to the kernel, within what it offers."""
    connection.max_readahead = MAX_TRANSFER_BYTES
    connection.max_background = BACKGROUND_REQUESTS
    # The pages of a content never change, and a new content is noticed at open: no need for the kernel to
    # ask for the attributes before every read.
    connection.want &= ~CAP_AUTO_INVAL_DATA
    # It would list attributes that the timeouts of 0 make useless.
    connection.want &= ~CAP_READDIRPLUS
