"""`speedwell up --metadata-servers 2`: two nameservers that both answer, below a mount."""

import os
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from speedwell.cluster import supervisor
from speedwell.cluster.controller_client import session
from speedwell.cluster.fabric_settings import read_settings
from speedwell.fs import slots
from speedwell.topo.fabric import three_tier
from tests.etcd import requires_etcd
from tests.integration.cluster.executable import Speedwell, kill
from tests.waiting import wait_until

pytestmark = [pytest.mark.root, requires_etcd]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Speedwell, Path, Path]]:
    """A running installation: the command, its directory, its mount point."""
    tmp_path = tmp_path_factory.mktemp("owners")
    speedwell, mountpoint = Speedwell(tmp_path / "state"), tmp_path / "m"
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        directory = Path(name) / "c"
        speedwell.ok("up", "--local", directory, "--metadata-servers", 2, "--mount", mountpoint)
        yield speedwell, directory, mountpoint
        speedwell.ok("down", "--local", directory, "--force")


def test_a_mount_works_within_and_across_owners_and_goes_on_when_one_is_killed(place):
    speedwell, directory, mountpoint = place
    directories = [mountpoint / f"d{number}" for number in range(8)]
    for each in directories:
        each.mkdir()
        (each / "f").write_text(each.name)
    assert len({slots.block_of(each.stat().st_ino) < slots.BLOCKS // 2 for each in directories}) == 2
    for old, new in zip(directories, [*directories[1:], directories[0]], strict=True):
        (old / "f").rename(new / "moved")
        os.link(new / "moved", old / "again")
    kill(directory, "nameserver-0")     # the supervisor starts it again
    for number, each in enumerate(directories):
        came_from = directories[number - 1].name
        with (each / "moved").open("a") as file:
            file.write("+")
        assert (each / "moved").read_text() == (directories[number - 1] / "again").read_text() == came_from + "+"
        assert (each / "moved").stat().st_nlink == 2
        assert sorted(path.name for path in each.iterdir()) == ["again", "moved"]
    with (directories[0] / "moved").open() as file:
        (directories[0] / "moved").unlink()
        assert file.read() == directories[-1].name + "+"
    for each in directories[1:]:
        (each / "moved").unlink()
    for each in directories:
        (each / "again").unlink()
        each.rmdir()
    assert list(mountpoint.iterdir()) == []
    assert "clean" in speedwell.ok("fsck")


def test_up_again_changes_nothing_and_the_whole_namespace_can_be_dumped(place):
    speedwell, directory, mountpoint = place
    speedwell.ok("up", "--local", directory, "--metadata-servers", 2)
    before = speedwell.ok("dump", "-").splitlines()
    (mountpoint / "dumped").mkdir()
    assert len(speedwell.ok("dump", "-").splitlines()) == len(before) + 2      # a directory and its name
    (mountpoint / "dumped").rmdir()


def test_on_a_fabric_owners_run_on_hosts_and_one_that_dies_there_is_followed_and_started_again(tmp_path):
    fabric = three_tier(pods=2, racks_per_pod=1, hosts_per_rack=2, aggregations_per_pod=1, cores=1, host_bps=80e6)
    mounts = {name: tmp_path / name for name in ("p0r0h1", "p1r0h1")}
    try:
        started = supervisor.up(read_settings(fabric=fabric, directory=tmp_path / "c", chunk_size_bytes=1 << 20,
                                              metadata_servers=2, mounts=mounts))
        owners = [fabric.host(name).management_ip for name in ("p0r0h0", "p1r0h0")]
        assert started["nameserver"] == ",".join(f"{ip}:7000" for ip in owners)
        here, there = mounts.values()
        for number in range(8):
            (here / f"d{number}").mkdir()
            (here / f"d{number}" / "f").write_text(str(number))
        assert len({slots.block_of(each.stat().st_ino) < slots.BLOCKS // 2 for each in here.iterdir()}) == 2
        with session(started["controller"]) as controller:
            told = controller.get(started["controller"] + "/v1/metadata/owners").json()["owners"]
        assert Counter(each["host_name"] for each in told) == {"p0r0h0": 128, "p1r0h0": 128}
        connections = subprocess.run(
            ["nsenter", f"--net=/proc/{started['hosts']['p0r0h1']['pid']}/ns/net", "ss", "-tnH", "state",
             "established", "dst", str(slots.NETWORK)], capture_output=True, text=True, check=True).stdout
        assert len({line.split()[3] for line in connections.splitlines()}) == 2      # one address of each owner
        kill(tmp_path / "c", "nameserver-1")
        for number in range(8):
            (there / f"d{number}" / "f").rename(there / f"d{(number + 1) % 8}" / "g")
        assert [(here / f"d{number}" / "g").read_text() for number in range(8)] == list("70123456")
        with session(started["controller"]) as controller:
            wait_until(lambda: sorted(each["state"] for each in controller.get(
                started["controller"] + "/v1/storage").json()["nameservers"]) == ["leads", "stands by"], 20,
                "not one tells of all")
    finally:
        supervisor.down()
