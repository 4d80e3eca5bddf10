"""The wall clocks of daemons and mounts jump by hours, forward and back, while programs work."""

import errno
import fcntl
import os
import random
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.integration.fuse_mount.campaign import Campaign
from tests.wall_clock import requires_compiler

pytestmark = [pytest.mark.root, pytest.mark.full, requires_compiler]

HOURS = 3600.0
DAY = 24 * HOURS
LOCKED_SECONDS = 2.0
"""How long a silent mount keeps its locks in this test."""


@pytest.mark.timeout(400)
def test_nothing_is_lost_deleted_early_or_unlocked_when_clocks_jump(tmp_path: Path) -> None:
    generator = random.Random(1)
    with ExitStack() as stack:
        campaign = Campaign(tmp_path, stack, deletion_grace_seconds=60, session_lease_seconds=LOCKED_SECONDS)
        here, there = (mount.path for mount in campaign.mounts)
        (here / "removed").write_bytes(b"open elsewhere")
        removed = campaign.cluster.client().lookup("/removed")
        reader = stack.enter_context((there / "removed").open("rb", buffering=0))
        (here / "removed").unlink()
        locked = stack.enter_context((here / "locked").open("wb"))
        fcntl.lockf(locked, fcntl.LOCK_EX)
        wants = stack.enter_context((there / "locked").open("r+b"))

        for names, jump_seconds in [(["nameserver"], DAY), (["d0"], -5 * HOURS), (["d1", "d2"], DAY),
                                    (["mount0"], DAY), (["mount1"], -DAY), (["nameserver"], -2 * DAY),
                                    ([*campaign.clocks], 365 * DAY), ([*campaign.clocks], -730 * DAY)]:
            for name in names:
                campaign.clocks[name].jump(jump_seconds)
            campaign.gets_on(f"a jump of {', '.join(names)} by {jump_seconds / HOURS:g} hours")
        campaign.fault("everything", generator)     # starts with the clocks as they are now
        campaign.gets_on("a restart two years back")

        end = time.monotonic() + LOCKED_SECONDS + 1.5
        while time.monotonic() < end:      # heartbeats come each second, what has expired is found with them
            assert all(campaign.cluster.stored(replica.dataserver_id, removed.file_id).exists()
                       for replica in removed.replicas)
            with pytest.raises(OSError) as refused:
                fcntl.lockf(wants, fcntl.LOCK_EX | fcntl.LOCK_NB)
            assert refused.value.errno in (errno.EAGAIN, errno.EACCES)
            time.sleep(0.1)
        assert os.pread(reader.fileno(), 100, 0) == b"open elsewhere"
        fcntl.lockf(locked, fcntl.LOCK_UN)
        fcntl.lockf(wants, fcntl.LOCK_EX | fcntl.LOCK_NB)
        campaign.judge()
