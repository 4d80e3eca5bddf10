"""Which rename of the kernel's a call from libfuse belongs to.

libfuse renames an open file that loses its name to a hidden one: before it calls `unlink`, but also before the
`rename` that gives its name to another file, and it does not say which. Between those two calls the name would lead
nowhere for other mounts. So what libfuse calls for the kernel's FUSE_RENAME is called through a function here, which
notes the new name for the calls that follow in the same thread.
"""

import ctypes
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

log = logging.getLogger(__name__)

RENAME_INDEX = 12
FUNCTIONS = 16
"""In libfuse's `struct fuse_lowlevel_ops`: `rename` is number 12, and all before number 16 (`write`) are there."""

SEARCHED_WORDS = 40
_RENAME = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_char_p, ctypes.c_uint64, ctypes.c_char_p,
                           ctypes.c_uint)


class _OfThread(threading.local):
    new_name: bytes | None = None
    hidden: bytes | None = None


class RenameRequests:
    """`followed` tells whether anything is known here. Of the calling thread `here` has in `new_name` the name that
    the rename under way gives, None if there is none, and in `hidden` the path to which libfuse has put the open file
    that had the name before."""

    def __init__(self) -> None:
        self.followed = False
        self.here = _OfThread()


def follow(library: ModuleType, requests: RenameRequests, enter_thread: Callable[[], None]) -> Any:
    """Have `requests` filled; to be called in libfuse's `init`. The result has to be kept as long as the mount lives;
    None if this libfuse is built in another way."""
    libfuse = library._libfuse
    get_session = libfuse.fuse_get_session
    get_session.argtypes, get_session.restype = [ctypes.c_void_p], ctypes.c_void_p
    session = get_session(libfuse.fuse_get_context().contents.fuse)
    words = (ctypes.c_size_t * (SEARCHED_WORDS + FUNCTIONS + 1)).from_address(session)
    first = table_at(list(words), _code_of(get_session))
    if first is None:
        log.warning("an open file that another one replaces will be missing for a moment on other mounts: the tables "
                    "of this libfuse are not where they are looked for")
        return None
    original = _RENAME(words[first + RENAME_INDEX])

    def rename(request: int, directory: int, name: bytes, new_directory: int, new_name: bytes, flags: int) -> None:
        enter_thread()
        requests.here.new_name = new_name
        try:
            original(request, directory, name, new_directory, new_name, flags)
        finally:
            requests.here.new_name = requests.here.hidden = None

    kept = _RENAME(rename)
    requests.followed = True
    words[first + RENAME_INDEX] = ctypes.cast(kept, ctypes.c_void_p).value or 0
    return kept


def table_at(words: list[int], code: range) -> int | None:
    """Where in `words` the table of functions begins: it is the only place where as many words in a row lead into the
    library's own `code`, and the next one is empty."""
    for first in range(len(words) - FUNCTIONS):
        if not words[first + FUNCTIONS] and all(word in code for word in words[first:first + FUNCTIONS]):
            return first
    return None


def _code_of(function: Any) -> range:
    """The part of this process's memory that is executable and holds `function`."""
    address = ctypes.cast(function, ctypes.c_void_p).value or 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        place, rights = line.split(maxsplit=2)[:2]
        first, last = (int(number, 16) for number in place.split("-"))
        if first <= address < last and "x" in rights:
            return range(first, last)
    return range(0)
