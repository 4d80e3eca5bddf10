"""What a disk could write besides: its rate less what was written since the last heartbeat."""

from __future__ import annotations

from speedwell.fs.dataserver.disk.disk_rate import LEAST_PART, DiskRate


def test_what_was_written_since_the_last_call_is_taken_off_and_something_always_stays() -> None:
    now, written = [0.0], [10_000]
    disk = DiskRate(1000.0, lambda: written[0], lambda: now[0])
    assert disk.left_bytes() == 1000
    now[0], written[0] = 2.0, 10_600
    assert disk.left_bytes() == 700
    now[0], written[0] = 3.0, 99_999
    assert disk.left_bytes() == LEAST_PART * 1000
    now[0] = 4.0
    assert disk.left_bytes() == 1000
    assert disk.left_bytes() == 1000     # at the same moment


def test_a_rate_that_nobody_told_is_not_known() -> None:
    assert DiskRate(0.0, lambda: 0).left_bytes() == 0
