"""Who may order appends, what becomes of an append that is sent twice, and of one that only some replicas have."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from speedwell.fs.client import Client
from speedwell.fs.proto.speedwell_pb2 import (
    FENCED,
    OK,
    STALE_EPOCH,
    UNKNOWN,
    AppendOperation,
    AppendRecord,
    Attributes,
    DataReply,
    DataRequest,
    Replica,
)
from speedwell.fs.wire.channel import connect
from tests.commits import commit_on
from tests.local_cluster import LocalCluster
from tests.waiting import wait_until

NAMES = ("d0", "d1", "d2")


@pytest.fixture(scope="module")
def one_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("cluster"), dataservers=3) as cluster:
        yield cluster


@pytest.fixture
def client(cluster: LocalCluster) -> Client:
    return cluster.client()


@pytest.fixture
def path(request: pytest.FixtureRequest) -> str:
    return f"/{request.node.name}"


def make_file(client: Client, path: str, data: bytes) -> Attributes:
    client.create(path)
    client.append(path, data)
    return client.lookup(path, fresh=True)


def ask(attributes: Attributes, data: bytes, *, sequence: int, retry: bool = False, epoch: int | None = None,
        replicas: Sequence[Replica] | None = None) -> DataReply:
    """An append as a client's library sends it, of a writer that is always the same."""
    primary, *relay = attributes.replicas if replicas is None else replicas
    channel = connect(primary.host, primary.port)
    channel.send(DataRequest(append=AppendOperation(
        file_id=attributes.file_id, inode=attributes.inode, path=b"/by-hand", chunk_size=attributes.chunk_size,
        length=len(data), relay=relay, epoch=epoch or attributes.epoch, retry=retry,
        records=[AppendRecord(writer=77, sequence=sequence)]), token=attributes.token))
    channel.send_bytes([data])
    reply = channel.expect(DataReply)
    channel.close()
    return reply


def contents(cluster: LocalCluster, attributes: Attributes) -> list[bytes]:
    return [cluster.stored_bytes(name, attributes.file_id) for name in NAMES]


class TestAppendsSentTwice:
    def test_an_append_whose_answer_was_lost_is_carried_out_once(self, cluster: LocalCluster, client: Client,
                                                                 path: str) -> None:
        attributes = make_file(client, path, b"data")
        first = ask(attributes, b"once", sequence=1)
        again = ask(attributes, b"once", sequence=1, retry=True)
        assert (first.status, first.offset) == (again.status, again.offset) == (OK, 4)
        assert ask(attributes, b"next", sequence=2).offset == 8
        assert ask(attributes, b"once", sequence=1, retry=True).status == UNKNOWN
        assert contents(cluster, attributes) == [b"dataoncenext"] * 3

    def test_also_after_everything_was_restarted(self, cluster: LocalCluster, client: Client, path: str) -> None:
        attributes = make_file(client, path, b"data")
        assert ask(attributes, b"once", sequence=1).offset == 4
        cluster.restart()
        again = wait_until(lambda: not_fenced(ask(attributes, b"once", sequence=1, retry=True)), 10, "no lease")
        assert (again.status, again.offset) == (OK, 4)
        assert contents(cluster, attributes) == [b"dataonce"] * 3

    def test_also_by_the_primarys_successor(self, cluster: LocalCluster, client: Client, path: str) -> None:
        attributes = make_file(client, path, b"data")
        assert ask(attributes, b"once", sequence=1).offset == 4
        cluster.dataserver(attributes.replicas[0].dataserver_id).kill()
        after = wait_until(lambda: named(client, attributes), 10, "no successor is named")
        again = ask(after, b"once", sequence=1, retry=True)
        assert (again.status, again.offset) == (OK, 4)
        assert client.append(path, b"more") == 8

    def test_an_append_that_only_the_last_replica_has_is_carried_out_once(self, cluster: LocalCluster,
                                                                          client: Client, path: str) -> None:
        attributes = make_file(client, path, b"data")
        assert commit_on(attributes.replicas[2], cluster.as_server(attributes), b"once", 4, sequence=1).status == OK
        again = ask(attributes, b"once", sequence=1, retry=True)
        assert (again.status, again.offset) == (OK, 4)
        assert contents(cluster, attributes) == [b"dataonce"] * 3


def named(client: Client, before: Attributes) -> Attributes | None:
    """The file's attributes once another primary is named."""
    attributes = client._metadata.lookup_inode(before.inode, to_append=True)
    return attributes if attributes.epoch > before.epoch else None


class TestUnevenReplicas:
    @pytest.mark.parametrize("position", [1, 2])
    def test_what_one_replica_committed_before_its_primary_died_stays(self, cluster: LocalCluster, client: Client,
                                                                      path: str, position: int) -> None:
        attributes = make_file(client, path, b"data")
        assert commit_on(attributes.replicas[position], cluster.as_server(attributes), b"seen", 4).status == OK
        assert client.append(path, b"more") == 8
        assert contents(cluster, attributes) == [b"dataseenmore"] * 3
        assert client.lookup(path, fresh=True).epoch == attributes.epoch

    def test_replicas_that_went_different_ways_far_end_up_the_same(self, cluster: LocalCluster, client: Client,
                                                                   path: str) -> None:
        attributes = make_file(client, path, b"data")
        assert commit_on(attributes.replicas[1], cluster.as_server(attributes), b"ab", 4).status == OK
        for offset, data in ((4, b"ab"), (6, b"cde")):
            assert commit_on(attributes.replicas[2], cluster.as_server(attributes), data, offset).status == OK
        assert client.append(path, b"more") == 9
        assert contents(cluster, attributes) == [b"dataabcdemore"] * 3


class TestFencing:
    def test_a_primary_that_does_not_hear_from_the_nameserver_orders_nothing(self, tmp_path: Path) -> None:
        with LocalCluster(tmp_path, dataservers=3) as cluster:
            attributes = make_file(cluster.client(), "/f", b"data")
            cluster.nameserver.pause()
            sequence = iter(range(1, 1000))
            reply = wait_until(lambda: fenced(ask(attributes, b"x", sequence=next(sequence))), 10,
                               "the primary goes on")
            assert "nameserver" in reply.message
            before = contents(cluster, attributes)
            assert ask(attributes, b"x", sequence=2000).status == FENCED
            assert contents(cluster, attributes) == before
            cluster.nameserver.resume()
            wait_until(lambda: ask(attributes, b"x", sequence=3000, retry=True).status == OK, 10,
                       "the primary does not begin again")

    def test_a_primary_that_never_heard_from_a_nameserver_orders_nothing(self, tmp_path: Path) -> None:
        with LocalCluster(tmp_path, dataservers=3) as cluster:
            attributes = make_file(cluster.client(), "/f", b"data")
            cluster.nameserver.kill()
            primary = cluster.dataserver(attributes.replicas[0].dataserver_id)
            primary.kill()
            primary.start()
            assert ask(attributes, b"x", sequence=1).status == FENCED

    def test_replicas_refuse_a_deposed_primary(self, cluster: LocalCluster, client: Client, path: str) -> None:
        attributes = make_file(client, path, b"data")
        cluster.dataserver(attributes.replicas[1].dataserver_id).kill()
        assert client.append(path, b"more") == 4
        assert client.lookup(path, fresh=True).epoch == 2
        assert client.append(path, b"more") == 8
        late = commit_on(attributes.replicas[2], cluster.as_server(attributes), b"late", 12, epoch=1)
        assert late.status == STALE_EPOCH

    def test_a_deposed_primary_acknowledges_nothing(self, cluster: LocalCluster, client: Client,
                                                    path: str) -> None:
        attributes = make_file(client, path, b"data")
        old = cluster.dataserver(attributes.replicas[0].dataserver_id)
        old.pause()
        assert client.append(path, b"more") == 4
        old.resume()
        cluster.wait_alive(set(NAMES))
        wait_until(lambda: ask(attributes, b"late", sequence=1).status == STALE_EPOCH, 10, "it is not told")
        with client.open_read(path) as reader:
            assert reader.read(0, 100) == b"datamore"


def fenced(reply: DataReply) -> DataReply | None:
    return reply if reply.status == FENCED else None


def not_fenced(reply: DataReply) -> DataReply | None:
    return reply if reply.status != FENCED else None
