"""Links of an emulated fabric go down below programs that work on its mounts, and come up again: whoever can goes on
meanwhile, and afterwards all do, every acknowledged byte is there and the check is clean. Nobody does anything."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from speedwell.cluster.fabric import NAMESERVER, FabricCluster
from speedwell.cluster.fabric_settings import read_settings
from speedwell.cluster.processes import program
from speedwell.fs.dataserver.disk.contents import PAUSE_SECONDS
from speedwell.topo.emulation import Emulation
from speedwell.topo.fabric import spine_leaf
from tests.mixed_worker import GETS_ON_SECONDS, Worker, all_get_on
from tests.waiting import wait_until

pytestmark = [pytest.mark.root, pytest.mark.full, pytest.mark.timeout(300)]

FABRIC = spine_leaf(leaves=4, spines=1, hosts_per_leaf=1, host_bps=100e6, oversubscription=1.0)
MOUNTED = ("r0h0", "r1h0")
CUT_OFF_SECONDS = 8.0
"""Longer than the lease of a primary, and than what a call waits for a nameserver."""
DELETION_GRACE_SECONDS = 5.0
CLEAN_SECONDS = 2 * (DELETION_GRACE_SECONDS + 2 * PAUSE_SECONDS) + GETS_ON_SECONDS
"""What no file has is dropped with the second report of it, after the grace period; copies that fail leave more."""


class Load:
    """A cluster with two mounts, and a program on each."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self.mountpoints = {host: directory / host for host in MOUNTED}
        self.cluster = FabricCluster(read_settings(fabric=FABRIC, directory=directory / "cluster",
                                                   chunk_size_bytes=1 << 16, mounts=self.mountpoints,
                                                   deletion_grace_seconds=DELETION_GRACE_SECONDS))
        stack.callback(self.cluster.stop)
        self.cluster.start()
        self.workers = {host: Worker(path, host, directory) for host, path in self.mountpoints.items()}
        stack.callback(lambda: [worker.kill() for worker in self.workers.values()])
        for worker in self.workers.values():
            worker.start()

    @property
    def emulation(self) -> Emulation:
        return self.cluster.emulation

    def get_on(self, hosts: tuple[str, ...], after: str) -> None:
        all_get_on([self.workers[host] for host in hosts], after)

    def reaches(self, host: str, address: str) -> bool:
        return self.emulation.run(host, ["ping", "-c", "1", "-W", "1", address]).returncode == 0

    def judge(self) -> None:
        for worker in self.workers.values():
            worker.kill()
        for worker in self.workers.values():
            for mountpoint in self.mountpoints.values():
                worker.judge(mountpoint)
        said = ""

        def clean() -> bool:
            nonlocal said
            done = self.emulation.run("r3h0", [program("speedwell"), "fsck", "--nameserver", NAMESERVER], 60)
            said = done.stdout + done.stderr
            return done.returncode == 0 and "away:" not in said

        wait_until(clean, CLEAN_SECONDS, lambda: f"the check is not clean: {said}", interval_seconds=0.5)
        for worker in self.workers.values():
            worker.start()


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Load]:
    with ExitStack() as stack:
        yield Load(tmp_path_factory.mktemp("partitions"), stack)


def fabric_link(host: str) -> Callable[[Emulation, bool], None]:
    return lambda emulation, up: emulation.set_link(host, FABRIC.edge_switch_of(host).name, up)


def management_link(host: str) -> Callable[[Emulation, bool], None]:
    return lambda emulation, up: emulation.set_management_link(host, up)


def rack(leaf: str) -> Callable[[Emulation, bool], None]:
    return lambda emulation, up: emulation.set_link(leaf, "spine0", up)


Link = Callable[[Emulation, bool], None]


@pytest.mark.parametrize(("links", "going_on"), [
    pytest.param([fabric_link("r2h0"), management_link("r2h0")], MOUNTED, id="a dataserver"),
    pytest.param([fabric_link("r2h0")], MOUNTED, id="a dataserver that the nameserver hears"),
    pytest.param([management_link("r2h0")], MOUNTED, id="a dataserver that only the nameserver misses"),
    pytest.param([fabric_link("r1h0"), management_link("r1h0")], ("r0h0",), id="a host with a mount"),
    pytest.param([rack("leaf3")], MOUNTED, id="a rack"),
    pytest.param([fabric_link(host.name) for host in FABRIC.hosts], (), id="every host from every other"),
])
def test_programs_outlive_links_that_cut_off(load: Load, links: list[Link], going_on: tuple[str, ...]) -> None:
    load.get_on(MOUNTED, "the start")
    for link in links:
        link(load.emulation, False)
    try:
        began = time.monotonic()
        load.get_on(going_on, "links went down")
        time.sleep(max(0.0, began + CUT_OFF_SECONDS - time.monotonic()))    # a part of the fault itself
        load.get_on(going_on, "links were down for a while")
    finally:
        for link in links:
            link(load.emulation, True)
    load.get_on(MOUNTED, "the links came up again")
    load.judge()


def test_programs_outlive_a_nameserver_that_is_cut_off(load: Load) -> None:
    load.get_on(MOUNTED, "the start")
    other = FABRIC.host("r2h0").ip
    wait_until(lambda: load.reaches("r0h0", other), 20, "hosts do not reach each other")
    load.emulation.set_management_network(up=False)
    try:
        assert not load.reaches("r0h0", NAMESERVER.partition(":")[0])
        assert load.reaches("r0h0", other)
        time.sleep(CUT_OFF_SECONDS)     # a part of the fault itself
    finally:
        load.emulation.set_management_network(up=True)
    load.get_on(MOUNTED, "the nameserver was reached again")
    load.judge()
