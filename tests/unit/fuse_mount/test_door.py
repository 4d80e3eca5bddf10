"""What the kernel is told of an error, and what the mount's log says of one that does not say enough."""

import errno
import logging

import pytest

from speedwell.fs.errors import NoSuchFile, QuotaExceeded
from speedwell.fuse_mount import door


def test_edquot_is_logged_with_the_directory_and_not_for_each_try(
        caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "_quota_told_at", float("-inf"))
    refused = QuotaExceeded("the quota on /home/ann allows 10.0 GiB, this would be 1 B too much")
    with caplog.at_level(logging.WARNING):
        assert {door.errno_of("create", refused) for _ in range(100)} == {errno.EDQUOT}
    assert [record.message for record in caplog.records] == [f"EDQUOT: {refused}"]


def test_what_nobody_foresaw_is_eio_with_its_trace_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    assert door.errno_of("read", KeyError("x")) == errno.EIO
    assert caplog.records[0].exc_info is not None


def test_an_inode_that_is_gone_has_the_kernel_look_its_name_up_again() -> None:
    assert door.errno_of("open", NoSuchFile("inode 7 does not exist (any more)")) == errno.ESTALE
    assert door.errno_of("lookup", NoSuchFile("/a does not exist")) == errno.ENOENT
