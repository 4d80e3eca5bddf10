"""A change that fewer replicas than `--min-replicas` would hold is refused, and said to be so."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from speedwell.fs.client import Changes, Client
from speedwell.fs.errors import TooFewReplicas
from speedwell.fs.proto.speedwell_pb2 import Attributes
from tests.local_cluster import LocalCluster
from tests.waiting import wait_until


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path / "c", dataservers=3, nameserver_arguments=("--recovery-grace", "3600")) as cluster:
        yield cluster


def make(client: Client) -> Attributes:
    client.create("/f")
    client.append("/f", b"data")
    return client.lookup("/f", fresh=True)


def content(client: Client) -> bytes:
    with client.open_read("/f") as reader:
        return reader.read(0, 100)


def test_with_two_of_three_replicas_gone_nothing_is_acknowledged_and_nothing_lost(cluster: LocalCluster) -> None:
    client = cluster.client(metadata_cache_seconds=0)
    attributes = make(client)
    for replica in attributes.replicas[1:]:
        cluster.dataserver(replica.dataserver_id).kill()
    with ThreadPoolExecutor() as pool:      # each tries for ten seconds
        refused = [pool.submit(client.append, "/f", b"more"), pool.submit(
            client.change, "/f", Changes([(0, 1)], lambda channel: channel.send_bytes([b"D"])))]
    for one in refused:
        with pytest.raises(TooFewReplicas, match="a change needs 2"):
            one.result()
    assert content(client) == b"data"
    assert len(client.lookup("/f", fresh=True).replicas) == 3
    wait_until(lambda: client.statistics().unwritable == 1, 15, "it is not counted")
    cluster.revive()
    assert client.append("/f", b"last") in (4, 8)
    assert content(client) in (b"datalast", b"datamorelast")
    wait_until(lambda: not client.statistics().unwritable, 15, "it is still counted")


def test_with_one_of_three_gone_appends_go_on(cluster: LocalCluster) -> None:
    client = cluster.client(metadata_cache_seconds=0)
    cluster.dataserver(make(client).replicas[0].dataserver_id).kill()
    assert client.append("/f", b"more") == 4


def test_a_set_that_was_made_with_too_few_replicas_takes_no_change(tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "c", dataservers=1, replication=2) as cluster:
        client = cluster.client()
        client.create("/f")
        with pytest.raises(TooFewReplicas, match="a change needs 2"):
            client.append("/f", b"data")
        client.create("/one", replication=1)
        assert client.append("/one", b"data") == 0


def test_the_operator_may_ask_for_one_replica_only(tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "c", dataservers=2, nameserver_arguments=("--min-replicas", "1")) as cluster:
        client = cluster.client()
        cluster.dataserver(make(client).replicas[1].dataserver_id).kill()
        assert client.append("/f", b"more") == 4


def test_a_dead_replica_of_two_is_made_anew_elsewhere_while_changes_wait(tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "c", dataservers=3, replication=2,
                      nameserver_arguments=("--recovery-grace", "0")) as cluster:
        client = cluster.client(metadata_cache_seconds=0)
        attributes = make(client)
        cluster.dataserver(attributes.replicas[1].dataserver_id).kill()
        wait_until(lambda: all(replica.alive for replica in client.lookup("/f", fresh=True).replicas), 30,
                   "no other replica is made")
        assert client.append("/f", b"more") == 4
