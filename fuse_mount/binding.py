"""The FUSE library: which one this machine has, and how its calls reach the operations.

mfusepy on libfuse 3 is preferred. Where the machine has only libfuse 2, mfusepy runs on that; where only the
older fusepy is installed (module `fuse`, libfuse 2), the same operations run on it.
"""

import ctypes
import ctypes.util
import importlib
import os
import queue
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

from fuse_mount.errors import MountError
from fuse_mount.held_locks import MAX_WAITERS
from fuse_mount.libfuse_session import session_class

MAX_TRANSFER_BYTES = 1024 * 1024
# Requests are served in parallel so that one slow file does not hold up the others. Each thread holds a
# buffer of MAX_TRANSFER_BYTES, which bounds their number.
MAX_IDLE_THREADS = 24
MAX_THREADS = MAX_IDLE_THREADS + MAX_WAITERS  # who waits for a lock keeps nobody else waiting
BACKGROUND_REQUESTS = 32
# fusepy decodes names strictly; this way any name survives.
_BYTE_FOR_BYTE = "latin-1"
# What libfuse's main returns when its loop ended otherwise than by an unmount.
STOPPED_BY_SIGNAL = 8
DROP_SECONDS = 0.05
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
    """A function for use in a request that makes the kernel ask again about a path; libfuse 2 has none.

    The kernel first writes back the path's changed pages, and those writes may wait for this very request: libfuse
    holds the names of a rename or an unlink meanwhile. So another thread asks the kernel, and the request goes on
    after DROP_SECONDS at the latest.
    """
    if libfuse_version(library) < (3, 2):
        return None
    libfuse = library._libfuse
    invalidate = libfuse.fuse_invalidate_path
    invalidate.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    context = libfuse.fuse_get_context
    asked: queue.SimpleQueue[tuple[Any, bytes, threading.Event]] = queue.SimpleQueue()

    def ask() -> None:
        while True:
            fuse, path, done = asked.get()
            invalidate(fuse, path)  # a path that the kernel does not know is fine too
            done.set()

    start = threading.Lock()

    def drop(path: bytes) -> None:
        if start.acquire(blocking=False):   # once, and only now: a thread made before a fork would be lost
            threading.Thread(target=ask, name="kernel-cache", daemon=True).start()
        done = threading.Event()
        asked.put((context().contents.fuse, path, done))
        done.wait(DROP_SECONDS)

    return drop


def interruption_check(library: ModuleType) -> Callable[[], bool]:
    """A function for use in a request that tells whether the program that waits for it got a signal."""
    interrupted = library._libfuse.fuse_interrupted
    return lambda: bool(interrupted())


def mount_options(library: ModuleType, *, source: str, allow_other: bool,
                  kernel_cache_seconds: float) -> dict[str, Any]:
    """Options for libfuse. `source` is what the first column of `df` shows; `kernel_cache_seconds` is how long
    the kernel keeps names and attributes."""
    options: dict[str, Any] = {
        "foreground": True,  # becoming a daemon is done before, where errors can still be told
        "raw_fi": True, "fsname": source.replace(",", "|"),   # a comma would begin another option
        "subtype": "speedwell", "default_permissions": True,
        "allow_other": allow_other,
        "attr_timeout": kernel_cache_seconds, "entry_timeout": kernel_cache_seconds, "negative_timeout": 0,
        "use_ino": True,
    }
    major, minor = libfuse_version(library)
    if major == 2:
        options |= {"big_writes": True, "max_read": 131072, "max_write": 131072}
    elif minor >= 12:
        options |= {"max_threads": MAX_THREADS, "max_idle_threads": MAX_IDLE_THREADS}
    return options


def serve(library: ModuleType, operations: Any, mountpoint: str, options: dict[str, Any]) -> None:
    """Mount and serve until unmounted or told to stop.

    Raises RuntimeError with libfuse's status if the mount fails, or the serving (STOPPED_BY_SIGNAL).
    """
    if library.__name__ == "mfusepy":
        session_class(library, _keep_thread_state, _tune)(operations, mountpoint, **options)
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


def _tune(connection: Any) -> None:
    """Settings of the connection to the kernel, within what it offers."""
    connection.max_readahead = MAX_TRANSFER_BYTES
    connection.max_background = BACKGROUND_REQUESTS
    # The pages of a content never change, and a new content is noticed at open: no need for the kernel to
    # ask for the attributes before every read.
    connection.want &= ~CAP_AUTO_INVAL_DATA
    # It would list attributes that the timeouts of 0 make useless.
    connection.want &= ~CAP_READDIRPLUS
