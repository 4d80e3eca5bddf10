"""Commands on the machine that emulates a fabric, outside of all its hosts, work as on a host."""

import contextlib
import os
import signal

import pytest
import requests

from cluster import mounts
from cluster.errors import NotRunning
from cluster.fabric import read_settings
from cluster.processes import start_ticks
from cluster.supervisor import down, up, up_again
from tests.integration.cluster.speedwell import Speedwell
from tests.machine_state import left_on_machine
from tests.waiting import wait_until
from topo.fabric import three_tier

pytestmark = [pytest.mark.root, pytest.mark.timeout(180)]

SMALL = three_tier(pods=2, racks_per_pod=1, hosts_per_rack=2, aggregations_per_pod=1, cores=1, host_bps=80e6)
DATA = bytes(range(256)) * 8192


@pytest.fixture
def cluster(tmp_path):
    before = left_on_machine()
    try:
        yield up(read_settings(fabric=SMALL, directory=tmp_path / "cluster", machine=True, fsync="always",
                               min_replicas=1))
    finally:
        with contextlib.suppress(NotRunning):
            down()
        assert left_on_machine() == before


def test_files_are_put_read_checked_and_mounted_from_the_machine_itself(cluster, tmp_path):
    speedwell, place = Speedwell(tmp_path / "state"), tmp_path / "mnt"
    here = ("--nameserver", cluster["nameserver"], "--controller", cluster["controller"])
    speedwell.ok("put", "-", "/file", *here, stdin=DATA)
    assert speedwell.ok("cat", "/file", *here, binary=True) == DATA
    metrics = requests.get(f"{cluster['controller']}/metrics", timeout=5).text
    decisions = [line for line in metrics.splitlines() if line.startswith("speedwell_reads_total")]
    assert sum(float(line.rsplit(" ", 1)[1]) for line in decisions) >= 1
    assert speedwell.ok("fsck", *here).strip().endswith("clean")
    speedwell.ok("mount", place, *here)
    try:
        assert (place / "file").read_bytes() == DATA
        (place / "made here").write_bytes(b"on the mount")
        assert speedwell.ok("cat", "/made here", *here, binary=True) == b"on the mount"
    finally:
        speedwell.ok("umount", place)
    assert mounts.mounted(place) is None
    inside = speedwell.ok("enter", "p1r0h0", "speedwell", "cat", "/made here", *here, binary=True)
    assert inside == b"on the mount"


def test_up_again_brings_back_a_fabric_whose_supervisor_was_killed_with_its_files_and_settings(cluster, tmp_path):
    speedwell = Speedwell(tmp_path / "state")
    here = ("--nameserver", cluster["nameserver"], "--controller", cluster["controller"])
    speedwell.ok("put", "-", "/file", *here, stdin=DATA)
    assert up_again() == ({**cluster}, False)
    os.kill(cluster["supervisor"]["pid"], signal.SIGKILL)
    wait_until(lambda: start_ticks(cluster["supervisor"]["pid"]) is None, 10, "supervisor survives SIGKILL")
    description, started = up_again()
    assert started and description["nameserver"] == cluster["nameserver"]
    assert speedwell.ok("cat", "/file", *here, binary=True) == DATA
    state = speedwell.ok("status", "--nameserver", cluster["nameserver"])
    assert "at least 1 for a change, fsync policy always" in state
