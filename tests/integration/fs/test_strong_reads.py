"""Strong reads: every append acknowledged before the read began is seen, also by a reader opened long ago, and a
primary that may have been deposed does not answer."""

from collections.abc import Iterator

import pytest

from speedwell.fs.client import Client
from speedwell.fs.proto.speedwell_pb2 import FENCED, OK, Attributes, DataReply, DataRequest, LengthOperation
from speedwell.fs.wire.channel import connect
from tests.local_cluster import LocalCluster
from tests.waiting import wait_until

NAMES = {"d0", "d1", "d2"}


@pytest.fixture(scope="module")
def one_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("cluster"), dataservers=3, chunk_size=1024) as cluster:
        yield cluster


@pytest.fixture
def path(request: pytest.FixtureRequest) -> str:
    return f"/{request.node.name}"


def test_a_strong_reader_sees_what_others_appended_since_it_was_opened(cluster: LocalCluster, path: str) -> None:
    writer, reading = cluster.client(), cluster.client(strong=True)
    writer.create(path)
    with reading.open_read(path) as reader:
        assert reader.read(0, 100) == b""
        content = b""
        for number in range(20):
            record = bytes([number]) * 300
            writer.append(path, record)
            content += record
            assert reader.read(0, 1 << 20) == content
            assert reader.read(len(content) - 10, 1000) == content[-10:]


def test_one_reader_can_be_strong(cluster: LocalCluster, path: str) -> None:
    client = cluster.client()
    client.create(path)
    client.append(path, b"first")
    with client.open_read(path, strong=True) as strong:
        assert strong.read(0, 100) == b"first"
        client.append(path, b"second")
        assert strong.read(0, 100) == b"firstsecond"


def test_a_file_that_is_removed_is_read_to_its_end(cluster: LocalCluster, path: str) -> None:
    reading, other = cluster.client(strong=True), cluster.client()
    other.create(path)
    other.append(path, b"first")
    with reading.open_read(path) as reader:
        assert reader.read(0, 100) == b"first"
        other.append(path, b"second")
        other.remove(path)
        assert reader.read(0, 100) == b"firstsecond"


def test_after_the_primary_died_its_successor_answers(cluster: LocalCluster, path: str) -> None:
    client = cluster.client(strong=True)
    client.create(path)
    client.append(path, b"first")
    with client.open_read(path) as reader:
        cluster.dataserver(reader.attributes.replicas[0].dataserver_id).kill()
        cluster.client().append(path, b"second")
        assert reader.read(0, 100) == b"firstsecond"


def strong_length(attributes: Attributes) -> DataReply:
    primary, *others = attributes.replicas
    channel = connect(primary.host, primary.port)
    channel.send(DataRequest(length=LengthOperation(file_id=attributes.file_id, strong=True, epoch=attributes.epoch,
                                                    others=others),
                             token=attributes.token))
    reply = channel.expect(DataReply)
    channel.close()
    return reply


def test_a_primary_that_was_deposed_does_not_answer(cluster: LocalCluster, path: str) -> None:
    client = cluster.client()
    client.create(path)
    client.append(path, b"first")
    attributes = client.lookup(path, fresh=True)
    assert (strong_length(attributes).status, strong_length(attributes).file_size) == (OK, 5)
    old = cluster.dataserver(attributes.replicas[0].dataserver_id)
    old.pause()
    client.append(path, b"second")
    old.resume()
    cluster.wait_alive(NAMES)
    assert strong_length(attributes).status != OK
    assert strong_length(client.lookup(path, fresh=True)).file_size == 11


def test_without_the_nameserver_the_primary_soon_does_not_answer(cluster: LocalCluster, path: str) -> None:
    client: Client = cluster.client()
    client.create(path)
    client.append(path, b"first")
    attributes = client.lookup(path, fresh=True)
    assert strong_length(attributes).status == OK
    cluster.nameserver.pause()
    wait_until(lambda: strong_length(attributes).status == FENCED, 10, "it goes on answering")
    cluster.nameserver.resume()
    wait_until(lambda: strong_length(attributes).status == OK, 10, "it does not answer again")
