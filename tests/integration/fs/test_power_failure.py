"""The power fails, everywhere at once: what was fsynced is there, and the rest hinders nobody."""

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from crc32c import crc32c

from speedwell.fs.client import Changes, Client
from speedwell.fs.errors import SpeedwellError
from tests.forgetful import ForgetfulDisk
from tests.local_cluster import LocalCluster
from tests.preloaded import requires_compiler
from tests.waiting import wait_until

pytestmark = requires_compiler

DAEMONS = ("nameserver", "d0", "d1", "d2")
SMALL, LARGE = 3_000, 200_000


@contextmanager
def forgetful(directory: Path, *nameserver_arguments: str) -> Iterator[tuple[LocalCluster, list[ForgetfulDisk]]]:
    disks = [ForgetfulDisk(directory / "c" / name, directory / "disks" / name) for name in DAEMONS]
    with LocalCluster(directory / "c", dataservers=3, chunk_size=1 << 16, nameserver_arguments=nameserver_arguments,
                      dataserver_arguments=("--scrub-rate", "0"),
                      prefixes={disk.tree.name: disk.prefix for disk in disks}) as cluster:
        for daemon, disk in zip((cluster.nameserver, *cluster.dataservers), disks, strict=True):
            daemon.pause()      # what it syncs meanwhile would be recorded where the records are made anew
            disk.remember_all()
            daemon.resume()
        yield cluster, disks


def fail_power(cluster: LocalCluster, disks: list[ForgetfulDisk], generator: random.Random, reached: float) -> None:
    for daemon in (cluster.nameserver, *cluster.dataservers):
        daemon.kill()
    for disk in disks:
        disk.lose_power(generator, reached)
        if (state := disk.tree / "state").exists():
            started_before(state)
        elif disk.tree.name != "nameserver":    # several have mirrors of etcd, which is on another machine
            (disk.tree / "boot").write_bytes(b"another")
    cluster.revive()


def started_before(state: Path) -> None:
    """As if the nameserver had been started before the machine was."""
    text = json.loads(state.read_bytes().strip().rpartition(b" ")[0])
    text["boot"] = "another"
    line = json.dumps(text).encode()
    state.write_bytes(line + b" %08x\n" % crc32c(line))


def read_all(client: Client, path: str) -> bytes:
    with client.open_read(path) as reader:
        return reader.read(0, reader.size)


def put(client: Client, path: str, data: bytes) -> bytes:
    client.append(path, data)
    return data


@pytest.mark.parametrize("reached", [0.0, 0.5, 1.0])
def test_what_was_fsynced_survives_and_what_was_not_hinders_nobody(tmp_path: Path, reached: float) -> None:
    generator = random.Random(f"power {reached}")
    with forgetful(tmp_path) as (cluster, disks):
        client = cluster.client(metadata_cache_seconds=0)
        synced: dict[str, bytes] = {}
        client.mkdir("/d")
        for number in range(8):
            path = f"/d/f{number}"
            client.create(path)
            data = put(client, path, generator.randbytes(generator.choice([SMALL, LARGE])))
            if number % 4 == 1:
                client.change(path, Changes([(100, 107)], lambda channel: channel.send_bytes([b"changed"])))
                data = data[:100] + b"changed" + data[107:]
            client.sync(client.lookup(path))
            data += put(client, path, generator.randbytes(generator.choice([10, SMALL, LARGE])))
            client.sync(client.lookup(path))
            synced[path] = data
        lengths = {}
        for number, path in enumerate(synced):
            if number % 2:
                put(client, path, generator.randbytes(generator.choice([10, SMALL, LARGE])))
                lengths[path] = client.lookup(path).size
        client.create("/d/never")
        put(client, "/d/never", b"n" * SMALL)
        fail_power(cluster, disks, generator, reached)
        client = cluster.client(metadata_cache_seconds=0)
        for path, data in synced.items():
            attributes = client.lookup(path)
            with client.open_read(path) as reader:
                assert reader.read(0, len(data)) == data, path
            assert len(data) <= attributes.size <= lengths.get(path, len(data))
            if attributes.size == len(data):
                assert client.append(path, b"after") == len(data)
                assert read_all(client, path) == data + b"after"
        with suppress(SpeedwellError):      # it may be there, or not, or in part
            assert (b"n" * SMALL).startswith(read_all(client, "/d/never"))


def test_an_fsync_ends_only_when_a_replica_that_cannot_do_it_has_left_the_set(tmp_path: Path) -> None:
    with forgetful(tmp_path) as (cluster, _):
        client = cluster.client(metadata_cache_seconds=0)
        client.create("/f")
        put(client, "/f", b"data")
        attributes = client.lookup("/f")
        cluster.dataserver(attributes.replicas[2].dataserver_id).kill()
        client.sync(attributes)
        assert len(client.lookup("/f").replicas) == 2


def test_with_the_policy_always_an_append_is_on_the_disks_before_it_is_acknowledged(tmp_path: Path) -> None:
    with forgetful(tmp_path, "--fsync", "always") as (cluster, disks):
        client = cluster.client(metadata_cache_seconds=0)
        assert client.statistics().fsync == "always"
        client.create("/f")
        data = put(client, "/f", b"d" * LARGE)
        client.change("/f", Changes([(0, 3)], lambda channel: channel.send_bytes([b"new"])))
        fail_power(cluster, disks, random.Random(1), 0.0)
        assert read_all(cluster.client(), "/f") == b"new" + data[3:]


def test_a_replica_that_joins_has_what_was_fsynced_on_its_disk(tmp_path: Path) -> None:
    with forgetful(tmp_path, "--recovery-grace", "0", "--replication", "2") as (cluster, disks):
        client = cluster.client(metadata_cache_seconds=0)
        client.create("/f", replication=2)
        data = put(client, "/f", b"d" * LARGE)
        client.sync(client.lookup("/f"))
        gone = client.lookup("/f").replicas[1].dataserver_id
        cluster.dataserver(gone).kill()
        wait_until(lambda: gone not in [replica.dataserver_id for replica in client.lookup("/f").replicas], 30,
                   "no other replica is made")
        client.metadata.sync()      # the nameserver's disk is to know the new set
        joined = client.lookup("/f").replicas[1].dataserver_id
        fail_power(cluster, disks, random.Random(1), 0.0)
        assert cluster.stored_bytes(joined, client.lookup("/f").file_id) == data
