"""Disks that are full or read-only, and networks that are cut: afterwards every acknowledged byte can be read, the
check of the whole installation is clean, and nobody had to do anything."""

import random
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from speedwell.cluster.fsck import check
from speedwell.fs.client import Changes, Client
from speedwell.fs.errors import NoSpace, SpeedwellError
from tests.local_cluster import LocalCluster
from tests.waiting import wait_until

pytestmark = [pytest.mark.root, pytest.mark.full]
NAMES = {"d0", "d1", "d2", "d3"}


class Records:
    """A file to which records are appended, and what of them was acknowledged."""

    def __init__(self, client: Client, path: str, replicas: Sequence[str] = ()) -> None:
        self._client = client
        self.path = path
        self._acknowledged: list[tuple[int, bytes]] = []
        client.create(path, replicas=replicas)

    def append(self, size: int = 20_000) -> bool:
        record = random.Random(len(self._acknowledged)).randbytes(size)
        try:
            self._acknowledged.append((self._client.append(self.path, record), record))
        except SpeedwellError:
            return False
        return True

    def check(self) -> None:
        with self._client.open_read(self.path) as reader:
            data = reader.read(0, reader.size)
        for offset, record in self._acknowledged:
            assert data[offset:offset + len(record)] == record, f"the record at {offset} is not what was appended"


def names(client: Client, path: str) -> list[str]:
    return [replica.dataserver_id for replica in client.lookup(path, fresh=True).replicas]


@contextmanager
def own_disk(cluster: LocalCluster, name: str, options: str) -> Iterator[None]:
    """The dataserver's directory on a file system of its own, of which the nameserver has heard."""
    daemon, directory = cluster.dataserver(name), cluster.data_directory(name)
    client = cluster.client()

    def disk_bytes() -> int:
        return next(each.capacity_bytes for each in client.statistics().dataservers
                    if each.server.dataserver_id == name)

    before = disk_bytes()
    daemon.stop()
    saved = directory.with_name(f"{name}-before")
    directory.rename(saved)
    directory.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(directory)], check=True)
    try:
        subprocess.run(["cp", "-a", f"{saved}/.", str(directory)], check=True)
        daemon.start()
        wait_until(lambda: disk_bytes() != before, 30, f"{name} has not told of its new disk")
        cluster.wait_alive(NAMES)
        yield
    finally:
        daemon.kill()
        subprocess.run(["umount", str(directory)], check=True)


@contextmanager
def read_only(directory: Path) -> Iterator[None]:
    """Nothing below the directory can be written, as on a disk that the kernel has made read-only after an error."""
    subprocess.run(["mount", "--bind", str(directory), str(directory)], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(directory)], check=True)
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


@contextmanager
def cut(*match: str) -> Iterator[None]:
    """Packets that match are dropped, both ways."""
    rules = [["INPUT", *match, "-j", "DROP"], ["OUTPUT", *match, "-j", "DROP"]]
    for rule in rules:
        subprocess.run(["iptables", "-w", "-I", *rule], check=True)
    try:
        yield
    finally:
        for rule in rules:
            subprocess.run(["iptables", "-w", "-D", *rule], check=True)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path, dataservers=4, chunk_size=1 << 20, deletion_grace_seconds=1,
                      nameserver_arguments=("--recovery-grace", "2")) as cluster:
        yield cluster


def settled(cluster: LocalCluster, records: Records) -> None:
    """Everything is as it should be again."""
    records.check()
    with Client(cluster.nameserver.address) as client:
        wait_until(lambda: check(client.metadata).clean, 40, "the check is not clean",
                   interval_seconds=0.5)
    records.check()
    assert records.append()


@pytest.mark.parametrize("replicas", [("d0", "d1", "d2"), ("d1", "d0", "d2"), ("d1", "d2", "d0"), ("d0", "d1"),
                                      ("d0",)])
def test_a_replica_whose_disk_is_full_is_replaced_and_every_append_goes_on(
        cluster: LocalCluster, replicas: tuple[str, ...]) -> None:
    client = cluster.client(metadata_cache_seconds=0)
    with own_disk(cluster, "d0", "size=3m"):
        records = Records(client, "/f", replicas)
        for _ in range(20):
            assert records.append(500_000)
        records.check()
        assert "d0" not in names(client, "/f")
        wait_until(lambda: len(names(client, "/f")) == len(replicas), 30, "no replica is made in its place")
        assert records.append(500_000)
    cluster.revive()
    settled(cluster, records)


@pytest.mark.parametrize("replicas", [("d0", "d1", "d2"), ("d1", "d0", "d2")])
def test_changes_of_a_file_whose_replica_has_no_room_go_on(cluster: LocalCluster, replicas: tuple[str, ...]) -> None:
    client = cluster.client(metadata_cache_seconds=0)
    with own_disk(cluster, "d0", "size=3m"):
        client.create("/v", replicas=replicas)
        client.append("/v", b"." * 1_000_000)
        data = random.Random(1).randbytes(4_000_000)
        client.change("/v", Changes([(0, len(data))], lambda channel: channel.send_bytes([data])))
        with client.open_read("/v") as reader:
            assert reader.read(0, reader.size) == data
        assert "d0" not in names(client, "/v")
        client.remove("/v")
    cluster.revive()


def test_a_full_disk_that_nothing_can_replace_refuses_appends_and_keeps_what_was_acknowledged(
        cluster: LocalCluster) -> None:
    client = cluster.client(metadata_cache_seconds=0)
    with own_disk(cluster, "d3", "size=1m"), own_disk(cluster, "d0", "size=3m"):
        records = Records(client, "/f", replicas=("d0", "d1", "d2"))
        assert records.append()
        with pytest.raises(NoSpace):
            for _ in range(100):
                client.append("/f", b"x" * 500_000)
        assert names(client, "/f") == ["d0", "d1", "d2"]
        records.check()
        client.create("/g")
        for _ in range(20):
            records.append(1000)
        records.check()
    cluster.revive()
    settled(cluster, records)


@pytest.mark.parametrize("position", [0, 1])
def test_a_replica_whose_disk_is_read_only_leaves(cluster: LocalCluster, position: int) -> None:
    client = cluster.client()
    records = Records(client, "/f")
    assert records.append()
    attributes = client.lookup("/f", fresh=True)
    broken = attributes.replicas[position].dataserver_id
    with read_only(cluster.stored(broken, attributes.file_id)):
        assert records.append()
        after = client.lookup("/f", fresh=True)
        assert broken not in {replica.dataserver_id for replica in after.replicas}
        records.check()
    settled(cluster, records)


@pytest.mark.parametrize("position", [0, 1])
def test_a_dataserver_that_nobody_but_the_nameserver_reaches(cluster: LocalCluster, position: int) -> None:
    client = cluster.client()
    records = Records(client, "/f")
    assert records.append()
    away = client.lookup("/f").replicas[position]
    with cut("-d", away.host, "-p", "tcp", "--dport", str(away.port)):
        appended = records.append()
        assert appended or position == 0, "a replica that cannot be reached must not hold up appends"
        records.check()
    settled(cluster, records)


def test_a_nameserver_that_nobody_reaches(cluster: LocalCluster) -> None:
    client = cluster.client()
    records = Records(client, "/f")
    assert records.append()
    with client.open_read("/f") as reader, cut("-p", "tcp", "--dport", str(cluster.nameserver.port)):
        assert reader.read(0, 10)
        records.append()
        assert not records.append(), "without a lease nobody may order appends"
        assert reader.read(10, 10)
    wait_until(records.append, 30, "appends do not go on")
    settled(cluster, records)
