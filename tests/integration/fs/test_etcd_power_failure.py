"""The power fails under all members of etcd at once: what the store has acknowledged is there."""

import platform
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from speedwell.fs.errors import SpeedwellError
from speedwell.fs.store import Batch
from tests.etcd import EtcdCluster, requires_etcd
from tests.forgetful import ForgetfulDisk
from tests.integration.fs.test_store_replicated import Member
from tests.preloaded import requires_compiler
from tests.waiting import wait_until

pytestmark = [requires_etcd, requires_compiler,
              pytest.mark.skipif(platform.machine() != "x86_64", reason="the tracer reads registers of x86-64")]

MEMBERS = 3
ELECTION_SECONDS = 90
ACKNOWLEDGED = 20


@contextmanager
def on_forgetful_disks(directory: Path, *, lie: bool) -> Iterator[tuple[EtcdCluster, list[ForgetfulDisk]]]:
    """Disks that `lie` forget what was synced too."""
    disks = [ForgetfulDisk(directory / "data" / str(number), directory / f"records{number}")
             for number in range(MEMBERS)]
    prefixes = [disk.tracing_prefix for disk in disks]
    with EtcdCluster(directory, MEMBERS, data=directory / "data", prefixes=() if lie else prefixes) as etcd:
        kill_all(etcd, disks)
        for disk in disks:
            disk.remember_all()
        etcd.start_all()
        yield etcd, disks


def kill_all(etcd: EtcdCluster, disks: list[ForgetfulDisk]) -> None:
    for number in range(MEMBERS):
        etcd.kill(number)
    wait_until(lambda: not any(is_used(disk.tree) for disk in disks), 20, "etcd does not die")


def is_used(tree: Path) -> bool:
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if str(tree).encode() in command.read_bytes().split(b"\0"):
                return True
    return False


def write_names(etcd: EtcdCluster, acknowledged: list[bytes], stop: threading.Event) -> None:
    """One after the other, by another leader when one has lost its leadership: these disks are slow."""
    while not stop.is_set():
        member = Member(etcd.endpoints, "/power", "before")
        try:
            wait_until(lambda member=member: member.store.leads or stop.is_set(),  # type: ignore[misc]
                       ELECTION_SECONDS, "nobody was elected")
            while not stop.is_set():
                name = b"name%d" % len(acknowledged)
                batch = Batch()
                batch.put(name, b"value")
                member.store.write(batch)
                acknowledged.append(name)
        except SpeedwellError:
            continue
        finally:
            member.close()


def names_left(etcd: EtcdCluster, disks: list[ForgetfulDisk], reached: float) -> tuple[set[bytes], set[bytes]]:
    """(what was acknowledged before the power failed in the middle of writing, what is there afterwards)."""
    acknowledged: list[bytes] = []
    stop = threading.Event()
    writer = threading.Thread(target=write_names, args=(etcd, acknowledged, stop))
    writer.start()
    try:
        wait_until(lambda: len(acknowledged) >= ACKNOWLEDGED, 240, "etcd acknowledges nothing")
        kill_all(etcd, disks)
    finally:
        stop.set()
        writer.join()
    for disk in disks:
        disk.lose_power(random.Random(1), reached)
    etcd.start_all()
    after = Member(etcd.endpoints, "/power", "after")
    try:
        wait_until(lambda: after.store.leads, ELECTION_SECONDS, "nobody was elected after the power failure")
        return set(acknowledged), {key for key, _ in after.store.iterate(b"name", b"namf")}
    finally:
        after.close()


@pytest.mark.parametrize("reached", [0.0, 1.0])
def test_what_the_store_has_acknowledged_is_in_etcd_after_a_power_failure(tmp_path: Path, reached: float) -> None:
    with on_forgetful_disks(tmp_path, lie=False) as (etcd, disks):
        acknowledged, left = names_left(etcd, disks, reached)
        assert acknowledged <= left


def test_on_disks_that_lie_about_syncing_it_would_be_lost(tmp_path: Path) -> None:
    with on_forgetful_disks(tmp_path, lie=True) as (etcd, disks):
        acknowledged, left = names_left(etcd, disks, 0.0)
        assert acknowledged - left
