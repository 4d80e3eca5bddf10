"""What a mount has the kernel drop from its cache."""

import threading
from types import SimpleNamespace

from speedwell.fuse_mount import binding
from speedwell.fuse_mount.libfuse import Session

STUCK, FREE = 2, 3


def test_pages_that_a_read_holds_keep_no_other_file_waiting() -> None:
    session, is_read = Session(binding.load_library(), binding.tune), threading.Event()
    session._session = 1
    session._libfuse = SimpleNamespace(
        fuse_lowlevel_notify_inval_inode=lambda _, inode, *__: inode == STUCK and is_read.wait(60))
    try:
        assert not session.drop_pages(STUCK, 0.01)
        assert session.drop_pages(FREE, 60)
    finally:
        is_read.set()
    assert session.drop_pages(STUCK, 60)
