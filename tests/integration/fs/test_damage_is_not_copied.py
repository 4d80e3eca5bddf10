"""A flipped bit never gets a good sum: not by catching up a replica, not by repairing one, not by copying one."""

import random
from pathlib import Path

import pytest

from speedwell.cluster import fsck
from speedwell.fs.checksums import BLOCK_BYTES, block_sum
from speedwell.fs.client import Client
from speedwell.fs.dataserver.disk.stored_file import head
from speedwell.fs.errors import AppendFailed
from speedwell.fs.proto.speedwell_pb2 import (
    OK,
    Attributes,
    CheckOperation,
    DataReply,
    DataRequest,
    Replica,
    VerifyOperation,
)
from speedwell.fs.wire.channel import connect
from tests.commits import commit_on
from tests.local_cluster import LocalCluster
from tests.waiting import wait_until

CONTENT = random.Random(2).randbytes(150_000)
MORE = random.Random(3).randbytes(100_000)


def cluster_of(directory: Path, dataservers: int) -> LocalCluster:
    return LocalCluster(directory, dataservers=dataservers, replication=dataservers, chunk_size=1 << 20,
                        dataserver_arguments=("--scrub-rate", "0"))


def put(client: Client, path: str, data: bytes) -> Attributes:
    client.create(path)
    client.append(path, data)
    return client.lookup(path, fresh=True)


def flip(cluster: LocalCluster, replica: Replica, file_id: str, offset: int) -> None:
    with (cluster.stored(replica.dataserver_id, file_id) / "1").open("r+b") as chunk:
        chunk.seek(offset)
        byte = chunk.read(1)[0]
        chunk.seek(offset)
        chunk.write(bytes([byte ^ 1]))


def launder(cluster: LocalCluster, replica: Replica, file_id: str, offset: int) -> None:
    """Flip a bit in the last block, and give the block a sum that matches."""
    server = cluster.dataserver(replica.dataserver_id)
    server.kill()
    flip(cluster, replica, file_id, offset)
    stored = cluster.stored(replica.dataserver_id, file_id)
    data = (stored / "1").read_bytes()
    assert offset // BLOCK_BYTES == (len(data) - 1) // BLOCK_BYTES
    with (stored / "meta").open("r+b") as meta:
        meta.write(head(len(data), block_sum(data[offset - offset % BLOCK_BYTES:])))
    server.start()
    cluster.wait_alive({server.name for server in cluster.dataservers})


def require_no_damage_with_a_good_sum(cluster: LocalCluster, attributes: Attributes, content: bytes) -> None:
    for replica in attributes.replicas:
        stored = cluster.stored_bytes(replica.dataserver_id, attributes.file_id)
        damaged = fsck.verified(replica, VerifyOperation(file_ids=[attributes.file_id]), cluster.client().metadata)
        assert damaged or content.startswith(stored), replica.dataserver_id


@pytest.mark.parametrize("ahead", [0, 1], ids=["the primary gives", "the primary takes"])
def test_a_replica_is_not_caught_up_with_damaged_bytes(tmp_path: Path, ahead: int) -> None:
    with cluster_of(tmp_path, 2) as cluster:
        client = cluster.client(metadata_cache_seconds=0)
        attributes = put(client, "/f", CONTENT)
        assert commit_on(attributes.replicas[ahead], cluster.as_server(attributes), MORE, len(CONTENT)).status == OK
        flip(cluster, attributes.replicas[ahead], attributes.file_id, len(CONTENT) + 70_000)
        with pytest.raises(AppendFailed, match=r"damaged|differ"):
            client.append("/f", b"last")
        require_no_damage_with_a_good_sum(cluster, attributes, CONTENT + MORE + b"last")
        assert len(client.lookup("/f", fresh=True).replicas) == 2


def test_a_replica_whose_earlier_bytes_differ_takes_no_append(tmp_path: Path) -> None:
    with cluster_of(tmp_path, 3) as cluster:
        client = cluster.client(metadata_cache_seconds=0)
        attributes = put(client, "/f", CONTENT)
        launder(cluster, attributes.replicas[1], attributes.file_id, 140_000)
        assert client.append("/f", MORE) == len(CONTENT)
        assert attributes.replicas[1].dataserver_id not in [
            replica.dataserver_id for replica in client.lookup("/f", fresh=True).replicas]


def check(replica: Replica, attributes: Attributes) -> None:
    """Have the dataserver look for damage, as a reader does that found some."""
    channel = connect(replica.host, replica.port)
    channel.send(DataRequest(check=CheckOperation(file_id=attributes.file_id), token=attributes.token))
    assert channel.expect(DataReply).status == OK
    channel.close()


def test_a_block_is_not_repaired_with_one_whose_sum_nobody_else_knows(tmp_path: Path) -> None:
    with cluster_of(tmp_path, 2) as cluster:
        client = cluster.client(metadata_cache_seconds=0)
        attributes = put(client, "/f", CONTENT)
        good, wrong = attributes.replicas
        launder(cluster, wrong, attributes.file_id, 140_000)
        flip(cluster, good, attributes.file_id, 141_000)
        damaged = cluster.stored_bytes(good.dataserver_id, attributes.file_id)
        check(good, attributes)
        log = cluster.dataserver(good.dataserver_id).log
        wait_until(lambda: "stays damaged" in log.read_text(), 15, "the damage is not found")
        assert cluster.stored_bytes(good.dataserver_id, attributes.file_id) == damaged


def test_a_third_replica_decides_which_block_is_right(tmp_path: Path) -> None:
    with cluster_of(tmp_path, 4) as cluster:
        client = cluster.client(metadata_cache_seconds=0)
        attributes = put(client, "/f", CONTENT)
        first, wrong = attributes.replicas[:2]
        launder(cluster, wrong, attributes.file_id, 140_000)
        flip(cluster, first, attributes.file_id, 141_000)
        check(first, attributes)
        wait_until(lambda: cluster.stored_bytes(first.dataserver_id, attributes.file_id) == CONTENT, 15,
                   "the block is not repaired")


def test_fsck_compares_the_sums_of_the_replicas_and_has_the_outvoted_one_made_anew(tmp_path: Path) -> None:
    with cluster_of(tmp_path, 3) as cluster:
        client = cluster.client(metadata_cache_seconds=0)
        attributes = put(client, "/f", CONTENT)
        wrong = attributes.replicas[2]
        launder(cluster, wrong, attributes.file_id, 140_000)
        assert fsck.check(client.metadata).clean
        found = fsck.check(client.metadata, verify=True)
        assert [(problem.kind, problem.dataserver_id) for problem in found.problems] == [
            ("diverged", wrong.dataserver_id)]
        fsck.repair(client.metadata, found)
        wait_until(lambda: fsck.check(client.metadata, verify=True).clean, 60, "it is not made anew",
                   interval_seconds=0.5)
        assert cluster.stored_bytes(wrong.dataserver_id, attributes.file_id) == CONTENT


def test_where_two_replicas_contradict_each_other_fsck_says_so_and_takes_neither(tmp_path: Path) -> None:
    with cluster_of(tmp_path, 2) as cluster:
        client = cluster.client(metadata_cache_seconds=0)
        attributes = put(client, "/f", CONTENT)
        launder(cluster, attributes.replicas[1], attributes.file_id, 140_000)
        found = fsck.check(client.metadata, verify=True)
        assert [(problem.kind, problem.dataserver_id) for problem in found.problems] == [("diverged", "")]
        fsck.repair(client.metadata, found)
        assert len(client.lookup("/f", fresh=True).replicas) == 2
