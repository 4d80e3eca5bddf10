"""What the mount's log says of an errno that does not say enough."""

import errno
import logging

import pytest

from fs.errors import QuotaExceeded
from fuse_mount import door


def test_edquot_is_logged_with_the_directory_and_not_for_each_try(
        caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "_quota_told_at", float("-inf"))

    @door.answers_errno_to_names
    def create() -> None:
        raise QuotaExceeded("the quota on /home/ann allows 10.0 GiB, this would be 1 B too much")

    with caplog.at_level(logging.WARNING):
        for _ in range(100):
            with pytest.raises(OSError) as caught:
                create()
            assert caught.value.errno == errno.EDQUOT
    assert [record.message for record in caplog.records] == [
        "EDQUOT: the quota on /home/ann allows 10.0 GiB, this would be 1 B too much"]
