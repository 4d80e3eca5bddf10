"""One dataserver process: what its door lets in, how it starts and stops, and a disk that is full."""

import random
import signal
import socket
import struct
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from speedwell.fs.errors import NoSpace
from speedwell.fs.proto.speedwell_pb2 import (
    INVALID,
    NO_SPACE,
    NOT_FOUND,
    OK,
    AppendOperation,
    AppendRecord,
    DataReply,
    DataRequest,
    LengthOperation,
    ReadOperation,
    Replica,
    Status,
)
from speedwell.fs.wire.channel import HEADER, MAGIC, MAX_FRAME_BYTES, Channel, ConnectionLost, MalformedFrame, connect
from tests.commits import commit_of
from tests.local_cluster import SCRIPTS, Daemon, LocalCluster
from tests.waiting import wait_until

FILE_ID = "0123abcd-0000-4000-8000-00000000000a"


def daemon(directory: Path, *options: str) -> Daemon:
    directory.mkdir(exist_ok=True)
    return Daemon("d0", [str(SCRIPTS / "speedwell-dataserver"), "--id", "d0", "--no-tokens",
                         "--nameserver", "127.0.0.1:1", "--directory", str(directory / "data"), *options],
                  directory / "log")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A dataserver that no nameserver knows of, holding one file of 1000 bytes."""
    server = daemon(tmp_path_factory.mktemp("dataserver"))
    server.start()
    assert append(server, FILE_ID, b"x" * 1000).status == OK
    yield server
    assert server.stop() == 0


def append(server: Daemon, file_id: str, data: bytes, chunk_size: int = 1 << 20) -> DataReply:
    """As the file's primary would: this server has no lease to order appends itself."""
    channel = connect(server.host, server.port)
    channel.send(DataRequest(length=LengthOperation(file_id=file_id)))
    operation = AppendOperation(file_id=file_id, inode=5, path=b"/f", chunk_size=chunk_size, length=len(data),
                                epoch=1, offset=channel.expect(DataReply).file_size)
    channel.send(DataRequest(append=operation), more=True)
    channel.send_bytes([data])
    reply = channel.expect(DataReply)
    if reply.status == OK:
        channel.send(commit_of(server.host, server.port, file_id, operation.offset, data))
        reply = channel.expect(DataReply)
    channel.close()
    return reply


def ask(server: Daemon, request: DataRequest) -> tuple[DataReply, bytes]:
    channel = connect(server.host, server.port)
    channel.send(request)
    reply = channel.expect(DataReply)
    data = bytearray(reply.length)
    channel.receive_all(memoryview(data))
    channel.close()
    return reply, bytes(data)


def serves(server: Daemon) -> bool:
    return ask(server, DataRequest(read=ReadOperation(file_id=FILE_ID, length=2000)))[1] == b"x" * 1000


def is_closed(channel: Channel) -> bool:
    try:
        return channel.receive(DataReply) is None
    except ConnectionLost:
        return True


READ = ReadOperation(file_id=FILE_ID, length=10)
APPEND = AppendOperation(file_id=FILE_ID, inode=5, path=b"/f", chunk_size=1 << 20, length=10, epoch=1)


def changed_read(**fields: object) -> DataRequest:
    operation = ReadOperation(file_id=FILE_ID, length=10)
    operation.MergeFrom(ReadOperation(**fields))  # type: ignore[arg-type]
    return DataRequest(read=operation)


def changed_append(**fields: object) -> DataRequest:
    operation = AppendOperation(file_id=FILE_ID, inode=5, path=b"/f", chunk_size=1 << 20, length=10, epoch=1)
    for name, value in fields.items():
        if name == "relay":
            operation.relay.extend(value)  # type: ignore[arg-type]
        elif name == "records":
            operation.records.extend(value)  # type: ignore[arg-type]
        else:
            setattr(operation, name, value)
    return DataRequest(append=operation)


class TestMalformedRequests:
    @pytest.mark.parametrize(("request_", "field"), [
        (DataRequest(), "operation"),
        (changed_read(file_id="../../../etc/passwd"), "file_id"),
        (changed_read(offset=2**64 - 1), "offset"),
        (changed_read(length=2**63), "length"),
        (DataRequest(length=LengthOperation(file_id="nonsense")), "file_id"),
        (changed_append(file_id=""), "file_id"),
        (changed_append(file_id="a/../b"), "file_id"),
        (changed_append(length=0), "length"),
        (changed_append(length=2**64 - 1), "length"),
        (changed_append(chunk_size=0), "chunk_size"),
        (changed_append(chunk_size=1, length=1 << 30), "chunk_size"),
        (changed_append(chunk_size=77, offset=0), "chunk_size"),
        (changed_append(offset=2**64 - 1), "offset"),
        (changed_append(path=b"x" * 5000), "path"),
        (changed_append(relay=[Replica(host="127.0.0.1", port=0)]), "relay"),
        (changed_append(relay=[Replica(host="", port=80)]), "relay"),
        (changed_append(relay=[Replica(host="127.0.0.1", port=80)] * 17), "relay"),
        (changed_append(epoch=0), "epoch"),
        (changed_append(epoch=2**32), "epoch"),
        (changed_append(), "records"),
        (changed_append(records=[AppendRecord(sequence=1)]), "records"),
        (changed_append(records=[AppendRecord(writer=1)]), "records"),
        (changed_append(offset=5, records=[AppendRecord(writer=1, sequence=1, offset=16)]), "records"),
    ])
    def test_a_field_out_of_range_is_named_and_the_connection_closed(self, server: Daemon, request_: DataRequest,
                                                                    field: str) -> None:
        channel = connect(server.host, server.port)
        channel.send(request_)
        reply = channel.expect(DataReply)
        assert reply.status == INVALID and reply.message.startswith(f"{field}: "), reply
        assert is_closed(channel)
        channel.close()
        assert serves(server)

    @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(prefix=st.sampled_from([b"", MAGIC, HEADER.pack(MAGIC, 20), HEADER.pack(MAGIC, MAX_FRAME_BYTES + 1)]),
           garbage=st.binary(max_size=200))
    def test_garbage_is_answered_invalid_or_dropped(self, server: Daemon, prefix: bytes, garbage: bytes) -> None:
        channel = connect(server.host, server.port, stall_timeout_seconds=5)
        try:
            channel.socket.sendall(prefix + garbage)
            channel.socket.shutdown(socket.SHUT_WR)
            reply = channel.receive(DataReply)
            assert reply is None or reply.status in (INVALID, OK, NOT_FOUND)
        except (ConnectionLost, MalformedFrame, BrokenPipeError, ConnectionResetError):
            pass
        finally:
            channel.close()
        assert serves(server)

    def test_garbage_in_place_of_the_commit_drops_the_append(self, server: Daemon) -> None:
        channel = connect(server.host, server.port)
        channel.send(changed_append(offset=1000))
        channel.send_bytes([b"y" * 10])
        assert channel.expect(DataReply).status == OK
        channel.socket.sendall(struct.pack(">4sI", b"????", 0))
        assert channel.expect(DataReply).status == INVALID
        channel.close()
        assert serves(server)

    def test_unknown_files_are_not_found_and_the_connection_stays(self, server: Daemon) -> None:
        channel = connect(server.host, server.port)
        for request in (changed_read(file_id=str(uuid.uuid4())),
                        DataRequest(length=LengthOperation(file_id=str(uuid.uuid4())))):
            channel.send(request)
            assert channel.expect(DataReply).status == NOT_FOUND
        channel.send(DataRequest(length=LengthOperation(file_id=FILE_ID)))
        assert channel.expect(DataReply) == DataReply(status=OK, file_size=1000)
        channel.close()

    @pytest.mark.parametrize(("offset", "length", "expected"), [
        (0, 10, 10), (990, 100, 10), (1000, 5, 0), (5000, 5, 0), (0, 2**62, 1000), (10, 0, 0)])
    def test_a_read_is_cut_at_the_committed_length(self, server: Daemon, offset: int, length: int,
                                                   expected: int) -> None:
        reply, data = ask(server, DataRequest(read=ReadOperation(file_id=FILE_ID, offset=offset, length=length)))
        assert (reply.status, reply.file_size, data) == (OK, 1000, b"x" * expected)


class TestLife:
    @pytest.mark.parametrize(("option", "value", "message"), [
        ("--listen", "127.0.0.1", "--listen"), ("--listen", "127.0.0.1:99999", "--listen"),
        ("--listen", "192.0.2.1:0", "cannot listen"), ("--nameserver", "somewhere", "--nameserver"),
        ("--id", "", "--id"), ("--reserve", "-1", "--reserve"), ("--disk-rate", "-1", "--disk-rate"),
        ("--listen", "0.0.0.0:0", "--advertise"), ("--directory", "/proc/no", "cannot use")])
    def test_a_bad_flag_gets_one_line(self, tmp_path: Path, option: str, value: str, message: str) -> None:
        flags = {"--id": "d0", "--listen": "127.0.0.1:0", "--nameserver": "127.0.0.1:1",
                 "--directory": str(tmp_path / "data"), option: value}
        done = subprocess.run([SCRIPTS / "speedwell-dataserver", *(word for pair in flags.items() for word in pair)],
                              capture_output=True, text=True, timeout=20, check=False)
        assert done.returncode in (1, 2) and done.stdout == ""
        assert message in done.stderr and len(done.stderr.splitlines()) == 1
        assert not (tmp_path / "data" / "01").exists()

    def test_a_directory_in_use_is_refused(self, server: Daemon) -> None:
        second = daemon(server.log.parent)
        second.launch()
        assert second.process is not None and second.process.wait(60) == 1
        assert "another dataserver is running" in server.log.read_text()

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_it_stops_with_connections_open(self, tmp_path: Path, number: signal.Signals) -> None:
        server = daemon(tmp_path)
        server.start()
        idle = connect(server.host, server.port)
        half = connect(server.host, server.port)
        half.send(DataRequest(append=AppendOperation(file_id=FILE_ID, chunk_size=100, length=1000, offset=0,
                                                        epoch=1)))
        half.send_bytes([b"x" * 500])
        assert server.stop(number) == 0
        idle.close()
        half.close()

    def test_an_append_under_way_at_the_stop_may_end(self, tmp_path: Path) -> None:
        server = daemon(tmp_path)
        server.start()
        process = server.process
        assert process is not None
        channel = connect(server.host, server.port)
        channel.send(DataRequest(append=AppendOperation(file_id=FILE_ID, chunk_size=100, length=1000, offset=0,
                                                        epoch=1)))
        channel.send_bytes([b"x" * 500])
        wait_until(lambda: (tmp_path / "data/01" / FILE_ID / "5").exists(), 15, "the append did not begin")
        process.send_signal(signal.SIGTERM)
        channel.send_bytes([b"x" * 500])
        assert channel.expect(DataReply).status == OK
        channel.send(commit_of(server.host, server.port, FILE_ID, 0, b"x" * 1000))
        assert channel.expect(DataReply).file_size == 1000
        channel.close()
        assert process.wait(60) == 0

    def test_it_is_light(self, server: Daemon) -> None:
        status = Path(f"/proc/{server.pid}/status").read_text()
        resident_kib = int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")))
        assert resident_kib < 120 * 1024


@pytest.mark.root
class TestFullDisk:
    @pytest.fixture
    def small_disk(self, tmp_path: Path) -> Iterator[Path]:
        directory = tmp_path / "disk"
        directory.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(directory)], check=True)
        yield directory
        subprocess.run(["umount", str(directory)], check=True)

    def test_an_append_that_does_not_fit_is_refused_and_leaves_nothing(self, small_disk: Path) -> None:
        server = daemon(small_disk)
        server.start()
        kept = random.Random(1).randbytes(500_000)
        statuses: list[Status] = [append(server, FILE_ID, data, chunk_size=300_000).status
                                  for data in (kept, b"x" * 3_000_000, b"y" * 5_000_000)]
        assert statuses == [OK, NO_SPACE, NO_SPACE]
        other = str(uuid.uuid4())
        assert append(server, other, b"x" * 3_000_000).status == NO_SPACE
        assert not (small_disk / "data" / other[:2] / other).exists()
        chunks = small_disk / "data/01" / FILE_ID
        assert sum(chunk.stat().st_size for chunk in chunks.iterdir() if chunk.name.isdigit()) == len(kept)
        assert append(server, FILE_ID, b"fits", chunk_size=300_000).status == OK
        assert ask(server, DataRequest(read=ReadOperation(file_id=FILE_ID, length=1 << 20)))[1] == kept + b"fits"
        assert server.stop() == 0

    def test_a_full_disk_anywhere_in_the_chain_is_no_space_for_the_writer_and_invisible(
            self, small_disk: Path, tmp_path: Path) -> None:
        # A full server that is slow to answer must not be given up for dead.
        with LocalCluster(tmp_path / "cluster", dataservers=3, nameserver_arguments=("--lease", "60")) as cluster:
            full = cluster.dataserver("d2")
            full.stop()
            cluster.data_directory("d2").rename(tmp_path / "unused")
            cluster.data_directory("d2").symlink_to(small_disk)
            full.start()
            # It turns everybody away until the nameserver has answered it, and would leave the set for that.
            wait_until((small_disk / "admission").exists, 30, "d2 has not heard whom it may serve")
            client = cluster.client(local_host=cluster.dataserver("d0").host)
            client.create("/f")
            assert client.append("/f", b"x" * 1_000_000) == 0
            with pytest.raises(NoSpace, match="d2"):
                client.append("/f", b"y" * 3_000_000)
            with pytest.raises(NoSpace), client.open_append("/f") as appender:
                for _ in range(100):
                    appender.write(b"z" * 1_000_000)
            attributes = client.lookup("/f", fresh=True)
            assert len(attributes.replicas) == 3
            assert [len(cluster.stored_bytes(name, attributes.file_id)) for name in ("d0", "d1", "d2")] == [
                attributes.size] * 3
            assert client.append("/f", b"fits") == attributes.size
