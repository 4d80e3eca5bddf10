"""Content through the client library, a nameserver and dataservers as real processes."""

import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from speedwell.fs.client import Changes, Client
from speedwell.fs.errors import (
    AlreadyExists,
    FileClosed,
    InvalidArgument,
    IsADirectory,
    NoSuchFile,
    SpeedwellError,
    StaleFile,
)
from tests.local_cluster import LocalCluster
from tests.waiting import wait_until

CHUNK_BYTES = 65536


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("cluster"), dataservers=3, chunk_size=CHUNK_BYTES,
                      deletion_grace_seconds=0.5) as cluster:
        yield cluster


@pytest.fixture
def client(cluster: LocalCluster) -> Client:
    return cluster.client()


@pytest.fixture
def path(request: pytest.FixtureRequest) -> str:
    return "/" + request.node.name.replace("/", "_")[:200]


def write(client: Client, path: str, data: bytes, block: int = 10_000) -> None:
    with client.open_append(path, client.create(path)) as appender:
        for offset in range(0, len(data), block):
            appender.write(data[offset:offset + block])


def read_all(client: Client, path: str, block: int = 10_000) -> bytes:
    with client.open_read(path) as reader:
        parts = []
        while part := reader.read(sum(map(len, parts)), block):
            parts.append(part)
        return b"".join(parts)


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 10 * CHUNK_BYTES + 17])
@pytest.mark.parametrize("block", [999, CHUNK_BYTES, 1 << 20])
def test_content_comes_back_across_chunk_borders(client: Client, path: str, size: int, block: int) -> None:
    data = random.Random(size).randbytes(size)
    write(client, path, data, block)
    assert client.lookup(path, fresh=True).size == size
    assert read_all(client, path, block) == data


def test_every_replica_holds_every_byte_in_numbered_chunks(cluster: LocalCluster, client: Client,
                                                           path: str) -> None:
    data = random.Random(1).randbytes(3 * CHUNK_BYTES + 5)
    write(client, path, data)
    attributes = client.lookup(path, fresh=True)
    assert [cluster.stored_bytes(name, attributes.file_id) for name in ("d0", "d1", "d2")] == [data] * 3
    assert {file.name for file in cluster.stored("d0", attributes.file_id).iterdir()} == {
        "meta", "sums", "1", "2", "3", "4"}


def test_random_reads_by_several_threads_get_the_right_bytes(client: Client, path: str) -> None:
    data = random.Random(2).randbytes(40 * CHUNK_BYTES)
    write(client, path, data, 1 << 20)
    wrong: list[tuple[int, int]] = []
    with client.open_read(path) as reader:
        def read_somewhere(seed: int) -> None:
            generator = random.Random(seed)
            for _ in range(60):
                offset, length = generator.randrange(len(data)), generator.choice([10, 5000, 200_000])
                buffer = bytearray(length)
                count = reader.readinto(offset, buffer)
                if buffer[:count] != data[offset:offset + length]:
                    wrong.append((offset, length))

        in_threads(read_somewhere, range(4))
    assert wrong == []


def test_threads_that_read_one_file_in_turns_share_one_stream(client: Client, path: str) -> None:
    data = random.Random(3).randbytes(200 * 8192)
    write(client, path, data, 1 << 20)
    got: dict[int, bytes] = {}
    offsets = iter(range(0, len(data), 8192))
    lock = threading.Lock()
    with client.open_read(path) as reader:
        def read_next(_: int) -> None:
            while True:
                with lock:
                    offset = next(offsets, None)
                if offset is None:
                    return
                got[offset] = reader.read(offset, 8192)

        before = client.metrics.small_reads
        in_threads(read_next, range(4))
    assert b"".join(got[offset] for offset in sorted(got)) == data
    assert client.metrics.small_reads - before <= 8, "sequential reads became requests of their own"


def test_a_seek_after_a_stream_reads_the_right_bytes_and_streams_again(client: Client, path: str) -> None:
    data = random.Random(4).randbytes(12 << 20)
    write(client, path, data, 4 << 20)
    with client.open_read(path) as reader:
        for offset in [0, 100_000, 11 << 20, (11 << 20) + 100_000, 5 << 20, *range(1 << 20, 9 << 20, 100_000)]:
            assert reader.read(offset, 100_000) == data[offset:offset + 100_000]
    assert client.metrics.small_reads < 15


def test_a_reader_sees_what_is_appended_after_the_open(client: Client, path: str) -> None:
    write(client, path, b"first")
    with client.open_read(path) as reader:
        assert reader.read(0, 100) == b"first"
        assert reader.read(5, 100) == b""
        client.append(path, b" second")
        assert reader.read(5, 100) == b" second"
        assert reader.size == 12


def test_concurrent_appenders_keep_their_records_whole(cluster: LocalCluster, client: Client, path: str) -> None:
    client.create(path)
    clients = [cluster.client() for _ in range(4)]
    offsets: dict[bytes, int] = {}

    def append_records(writer: int) -> None:
        for number in range(25):
            record = b"%d.%d." % (writer, number) * (1 + 37 * number)
            offsets[record] = clients[writer].append(path, record)

    in_threads(append_records, range(4))
    data = read_all(client, path)
    assert len(data) == sum(map(len, offsets))
    assert all(data[offset:offset + len(record)] == record for record, offset in offsets.items())
    attributes = client.lookup(path, fresh=True)
    assert {cluster.stored_bytes(name, attributes.file_id) for name in ("d0", "d1", "d2")} == {data}


def test_buffered_writes_of_two_appenders_are_not_torn(client: Client, path: str) -> None:
    client.create(path)

    def write_lines(writer: int) -> None:
        with client.open_append(path) as appender:
            for _ in range(300):
                appender.write(bytes([65 + writer]) * 30_000 + b"\n")

    in_threads(write_lines, range(2))
    lines = read_all(client, path, 1 << 20).splitlines()
    assert sorted(set(lines)) == [b"A" * 30_000, b"B" * 30_000] and len(lines) == 600


def test_a_small_file_costs_one_append_request(client: Client, path: str) -> None:
    write(client, path, b"x" * 60_000, block=1000)
    assert client.metrics.append_requests == 1


def test_what_was_flushed_is_seen_by_others_before_the_close(cluster: LocalCluster, client: Client,
                                                             path: str) -> None:
    with client.open_append(path, client.create(path)) as appender:
        appender.write(b"abc")
        assert appender.size == 3
        assert cluster.client().lookup(path).size == 0
        assert appender.flush().size == 3
        requests = client.metrics.append_requests
        appender.flush()
        assert client.metrics.append_requests == requests
        assert read_all(cluster.client(), path) == b"abc"


def test_a_truncated_file_is_stale_for_its_appender_and_readable_for_its_reader(
        cluster: LocalCluster, client: Client, path: str) -> None:
    write(client, path, b"old content")
    with client.open_read(path) as reader:
        appender = client.open_append(path)
        cluster.client().truncate(path)
        assert reader.read(0, 100) == b"old content"
        appender.write(b"more")
        with pytest.raises(StaleFile):
            appender.flush()
        with pytest.raises(StaleFile):
            appender.write(b"again")
        appender.close()
    assert read_all(client, path) == b""


def test_removed_content_leaves_the_disks_after_the_grace_period_and_its_reader_is_told(
        cluster: LocalCluster, client: Client, path: str) -> None:
    write(client, path, b"x" * 100_000)
    file_id = client.lookup(path).file_id
    with client.open_read(path) as reader:
        client.remove(path)
        assert reader.read(0, 10) == b"x" * 10
        wait_until(lambda: not any(cluster.stored(name, file_id).exists() for name in ("d0", "d1", "d2")),
                   8, "the content is still there")
        with pytest.raises((StaleFile, NoSuchFile)):
            reader.read(90_000, 10)


def test_the_length_that_a_dead_client_did_not_commit_is_published(cluster: LocalCluster, client: Client,
                                                                  path: str) -> None:
    appender = client.open_append(path, client.create(path))
    appender.append_with(lambda channel: channel.send_bytes([b"acknowledged"]), 12)
    wait_until(lambda: client.lookup(path, fresh=True).size == 12, 8, "heartbeats do not report the length")
    assert read_all(client, path) == b"acknowledged"


class TestWholeFiles:
    def test_store_and_fetch_keep_every_byte(self, client: Client, path: str, tmp_path: Path) -> None:
        data = random.Random(6).randbytes(5 * CHUNK_BYTES + 3)
        (tmp_path / "source").write_bytes(data)
        steps: list[int] = []
        with (tmp_path / "source").open("rb") as source:
            assert client.store(path, source.fileno(), steps.append) == len(data) == sum(steps)
        steps.clear()
        with (tmp_path / "copy").open("wb") as copy:
            assert client.fetch(path, copy.fileno(), steps.append) == len(data) == sum(steps)
        assert (tmp_path / "copy").read_bytes() == data

    def test_fetch_appends_to_a_file_and_writes_to_a_pipe(self, client: Client, path: str, tmp_path: Path) -> None:
        data = random.Random(7).randbytes(300_000)
        write(client, path, data)
        (tmp_path / "log").write_bytes(b"before ")
        with (tmp_path / "log").open("ab") as log:
            client.fetch(path, log.fileno())
        assert (tmp_path / "log").read_bytes() == b"before " + data
        outlet, inlet = os.pipe()
        got: list[bytes] = []

        def drain() -> None:
            while part := os.read(outlet, 65536):
                got.append(part)

        thread = threading.Thread(target=drain)
        thread.start()
        client.fetch(path, inlet)
        os.close(inlet)
        thread.join()
        os.close(outlet)
        assert b"".join(got) == data

    def test_store_reads_a_pipe_to_its_end(self, client: Client, path: str) -> None:
        data = random.Random(8).randbytes(3 << 20)
        outlet, inlet = os.pipe()

        def feed() -> None:
            with os.fdopen(inlet, "wb") as stream:
                stream.write(data)

        thread = threading.Thread(target=feed)
        thread.start()
        assert client.store(path, outlet) == len(data)
        thread.join()
        os.close(outlet)
        assert read_all(client, path, 1 << 20) == data

    def test_store_replaces_a_file_in_one_step_and_a_failure_keeps_the_old_one(
            self, client: Client, path: str, tmp_path: Path) -> None:
        write(client, path, b"old")
        directory = os.open(tmp_path, os.O_RDONLY)
        with pytest.raises(OSError):
            client.store(path, directory)
        os.close(directory)
        assert read_all(client, path) == b"old"
        (tmp_path / "new").write_bytes(b"new")
        with (tmp_path / "new").open("rb") as source:
            with pytest.raises(AlreadyExists):
                client.store(path, source.fileno(), exclusive=True)
            assert read_all(client, path) == b"old"
            source.seek(0)
            client.store(path, source.fileno())
        assert read_all(client, path) == b"new"
        assert not [entry.name for entry in client.list("/") if entry.name.startswith(b".")]


class TestBadCalls:
    def test_opening_what_is_no_file_is_refused(self, client: Client, path: str) -> None:
        client.mkdir(path)
        for opened in (client.open_read, client.open_append):
            with pytest.raises(IsADirectory):
                opened(path)
            with pytest.raises(NoSuchFile):
                opened(path + "/none")

    def test_negative_offsets_and_sizes_are_refused(self, client: Client, path: str) -> None:
        write(client, path, b"abc")
        with client.open_read(path) as reader:
            for offset, size in ((-1, 1), (0, -1)):
                with pytest.raises(InvalidArgument):
                    reader.read(offset, size)
            assert reader.read(1 << 60, 10) == b"" and reader.read(1, 0) == b""
        with pytest.raises(InvalidArgument):
            client.change(path, Changes(size=-1))

    def test_what_is_closed_stays_closed(self, cluster: LocalCluster, path: str) -> None:
        client = cluster.client()
        write(client, path, b"abc")
        reader, appender = client.open_read(path), client.open_append(path)
        for closed in (reader, appender, reader, appender):
            closed.close()
        for use in (lambda: reader.read(0, 1), lambda: appender.write(b"x"), appender.flush):
            with pytest.raises(FileClosed):
                use()
        client.close()
        with pytest.raises(FileClosed):
            client.open_read(path)

    @pytest.mark.parametrize("options", [{"controller": "nonsense"}, {"steer_min_bytes": -1},
                                         {"controller_timeout_seconds": 0}])
    def test_options_out_of_range_are_refused(self, options: dict[str, object]) -> None:
        with pytest.raises(InvalidArgument, match=next(iter(options))):
            Client("127.0.0.1:1", **options)  # type: ignore[arg-type]


class TestWithoutAController:
    def test_reads_go_on_and_are_counted(self, cluster: LocalCluster, path: str) -> None:
        data = random.Random(9).randbytes(1 << 20)
        write(cluster.client(), path, data)
        client = cluster.client(controller="http://127.0.0.1:1")
        with client.open_read(path) as reader:
            assert reader.read(0, len(data)) == data
            assert reader.last_read is not None and reader.last_read.chosen_by == "nearest"
        assert client.metrics.controller_fallbacks == 1

    def test_small_files_do_not_ask_the_controller(self, cluster: LocalCluster, path: str) -> None:
        write(cluster.client(), path, b"x" * 100_000)
        client = cluster.client(controller="http://127.0.0.1:1")
        assert read_all(client, path, 100_000) == b"x" * 100_000
        assert (client.metrics.controller_requests, client.metrics.controller_fallbacks) == (0, 0)

    @pytest.mark.parametrize("name", ["d0", "d1", "d2"])
    def test_the_replica_on_the_own_host_is_the_nearest(self, cluster: LocalCluster, path: str, name: str) -> None:
        client = cluster.client(local_host=cluster.dataserver(name).host)
        write(client, path, b"x" * 100)
        assert client.lookup(path).replicas[0].dataserver_id == name, "placed on the writer's host"
        with client.open_read(path) as reader:
            reader.read(0, 100)
            assert reader.last_read is not None and reader.last_read.replica_id == name


def in_threads(work, arguments) -> None:  # type: ignore[no-untyped-def]
    failures: list[BaseException] = []

    def run(argument: int) -> None:
        try:
            work(argument)
        except (SpeedwellError, AssertionError, KeyError) as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(argument,)) for argument in arguments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
