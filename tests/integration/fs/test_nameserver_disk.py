"""A nameserver whose disk is full."""

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from speedwell.fs.client.names.metadata import MetadataClient
from speedwell.fs.errors import NoSpace, SpeedwellError
from tests.local_cluster import SCRIPTS, Daemon
from tests.waiting import wait_until


@pytest.mark.root
def test_a_full_disk_is_no_space_and_what_was_answered_before_stays(tmp_path: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(tmp_path)], check=True)
    log = Path(os.devnull)
    daemon = Daemon("nameserver", [str(SCRIPTS / "speedwell-nameserver"), "--new", "--directory",
                                   str(tmp_path / "nameserver")], log)
    try:
        daemon.start()
        made: list[str] = []
        with MetadataClient(daemon.address) as client:
            with pytest.raises(NoSpace, match="is full"):
                for number in range(100_000):
                    client.mkdir(f"/{number}-{'x' * 200}")
                    made.append(f"{number}-{'x' * 200}")
            with pytest.raises(NoSpace, match="is full"):
                client.mkdir("/still-no-space")
            assert len(made) > 100
            assert client.lookup(f"/{made[-1]}", fresh=True).inode
            subprocess.run(["mount", "-o", "remount,size=128m", str(tmp_path)], check=True)
            wait_until(lambda: _succeeds(lambda: client.mkdir("/works-again")), 15, "it does not recover")
            made.append("works-again")
        daemon.kill()
        daemon.start()
        with MetadataClient(daemon.address) as client:
            assert {entry.name.decode() for entry in client.list("/")} >= set(made)
        assert daemon.stop() == 0
    finally:
        daemon.stop(signal.SIGKILL)
        subprocess.run(["umount", str(tmp_path)], check=True)


def _succeeds(function: Any) -> bool:
    try:
        function()
    except SpeedwellError:
        return False
    return True
