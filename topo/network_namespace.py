"""Entering the network of an emulated host, without what it takes to emulate one."""

import ctypes
import os
from pathlib import Path

_CLONE_NEWNET = 0x40000000


def enter(pid: int) -> None:
    """Move the calling thread, and whatever it starts, into the network namespace of a process. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)    # os.setns came with Python 3.12
    with Path(f"/proc/{pid}/ns/net").open("rb") as handle:
        if libc.setns(handle.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
