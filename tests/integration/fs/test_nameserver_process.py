"""The nameserver as a process: what its door lets in, how it starts, stops, and comes back."""

import random
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from speedwell.fs.client.names.metadata import MetadataClient
from speedwell.fs.errors import AlreadyExists, NoReplicaAvailable, NoSuchFile
from speedwell.fs.nameserver.service import grpc_errors as rpc
from speedwell.fs.proto import speedwell_pb2 as pb
from tests.local_cluster import SCRIPTS, Daemon, LocalCluster
from tests.waiting import wait_until

METHODS = ("Lookup", "List", "Create", "MakeDirectory", "Remove", "Rename", "SetAttributes", "Truncate", "Commit",
           "Statistics", "Heartbeat")


def nameserver(directory: Path, *options: str) -> Daemon:
    return Daemon("nameserver", [str(SCRIPTS / "speedwell-nameserver"), "--new", "--directory",
                                 str(directory / "nameserver"), *options], directory / "nameserver.log")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("cluster"), dataservers=3) as cluster:
        yield cluster
        assert "Traceback" not in cluster.nameserver.log.read_text()


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[MetadataClient]:
    client = MetadataClient(cluster.nameserver.address, cache_seconds=0)
    yield client
    client.close()


def call(address: str, method: str, data: bytes) -> Any:
    """Send raw bytes as a request; the error (or None) that comes back."""
    with grpc.insecure_channel(address) as channel:
        try:
            channel.unary_unary(f"/{rpc.SERVICE}/{method}")(data, timeout=10)
        except grpc.RpcError as error:
            return error
    return None


class TestDoor:
    @pytest.mark.parametrize("method", METHODS)
    def test_bytes_that_are_no_message_are_an_invalid_argument(self, cluster: LocalCluster, method: str) -> None:
        error = call(cluster.nameserver.address, method, b"\xff\xff\xff")
        assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert f"is not a {method}Request message" in error.details()

    def test_random_bytes_never_stop_the_server(self, cluster: LocalCluster, client: MetadataClient) -> None:
        generator = random.Random(7)
        refusals = 0
        for _ in range(200):
            data = generator.randbytes(generator.randrange(40))
            error = call(cluster.nameserver.address, generator.choice(METHODS), data)
            if error is not None:
                assert error.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND)
                refusals += 1
        assert refusals > 100
        assert client.lookup("/").inode == 1

    def test_an_unknown_method_is_unimplemented(self, cluster: LocalCluster) -> None:
        assert call(cluster.nameserver.address, "Format", b"").code() == grpc.StatusCode.UNIMPLEMENTED

    def test_a_request_larger_than_any_sensible_one_is_refused(self, cluster: LocalCluster,
                                                               client: MetadataClient) -> None:
        request = pb.LookupRequest(path=b"/" + b"x" * (8 << 20)).SerializeToString()
        assert call(cluster.nameserver.address, "Lookup", request).code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert client.lookup("/").inode == 1

    def test_something_that_does_not_speak_grpc_is_dropped(self, cluster: LocalCluster,
                                                           client: MetadataClient) -> None:
        with socket.create_connection((cluster.nameserver.host, cluster.nameserver.port), timeout=10) as connection:
            connection.sendall(b"GET / HTTP/1.0\r\n\r\n" + bytes(1000))
            connection.settimeout(10)
            try:
                while connection.recv(4096):
                    pass
            except ConnectionResetError:
                pass
        assert client.lookup("/").inode == 1

    @pytest.mark.parametrize(("method", "request_message", "code", "name"), [
        ("Lookup", pb.LookupRequest(path=b"/missing"), "NOT_FOUND", "NoSuchFile"),
        ("Lookup", pb.LookupRequest(path=b"/a/../b"), "INVALID_ARGUMENT", "InvalidName"),
        ("Lookup", pb.LookupRequest(path=b"/" + b"n" * 300), "INVALID_ARGUMENT", "NameTooLong"),
        ("Create", pb.CreateRequest(path=b"/"), "FAILED_PRECONDITION", "IsADirectory"),
        ("Create", pb.CreateRequest(path=b"/x", replication=99), "INVALID_ARGUMENT", "InvalidArgument"),
        ("MakeDirectory", pb.MakeDirectoryRequest(path=b"/"), "ALREADY_EXISTS", "AlreadyExists"),
        ("Remove", pb.RemoveRequest(path=b"/", directory=True), "FAILED_PRECONDITION", "DeviceBusy"),
    ])
    def test_an_error_says_what_and_is_named(self, cluster: LocalCluster, method: str, request_message: Any,
                                             code: str, name: str) -> None:
        error = call(cluster.nameserver.address, method, request_message.SerializeToString())
        assert error.code() == grpc.StatusCode[code]
        assert (rpc.ERROR_NAME_KEY, name) in [tuple(pair) for pair in error.trailing_metadata()]
        assert error.details()


class TestRestart:
    def test_kill_9_loses_nothing_that_was_answered(self, cluster: LocalCluster, client: MetadataClient) -> None:
        """Kills the process while a client creates, renames and removes as fast as it can."""
        client.mkdir("/burst")
        present: list[str] = []
        removed: list[str] = []
        enough = threading.Event()

        def work() -> None:
            writer = MetadataClient(cluster.nameserver.address, cache_seconds=0, call_timeout_seconds=30)
            try:
                for number in range(100_000):
                    if enough.is_set():
                        return
                    writer.create(f"/burst/{number}", exclusive=True)
                    if number % 3 == 0:
                        writer.rename(f"/burst/{number}", f"/burst/moved-{number}")
                        present.append(f"moved-{number}")
                        removed.append(f"{number}")
                    elif number % 3 == 1:
                        writer.remove(f"/burst/{number}")
                        removed.append(f"{number}")
                    else:
                        present.append(f"{number}")
            finally:
                writer.close()

        worker = threading.Thread(target=work)
        worker.start()
        wait_until(lambda: len(present) > 100, 20, "the client makes no progress")
        before = client.statistics()
        cluster.nameserver.kill()
        cluster.nameserver.start()
        answered = len(present)
        wait_until(lambda: len(present) > answered + 10, 20, "the client does not go on")
        enough.set()
        worker.join(60)
        assert not worker.is_alive()
        names = {entry.name.decode() for entry in client.list("/burst")}
        assert names == set(present)
        assert not names & set(removed)
        wait_until(lambda: {status.server.dataserver_id for status in client.statistics().dataservers}
                   == {"d0", "d1", "d2"}, 10, "a dataserver does not register again")
        after = client.statistics()
        assert after.directories == before.directories
        assert after.files == len(names) + sum(entry.attributes.type == pb.REGULAR for entry in client.list("/"))

    def test_a_client_goes_on_over_a_restart_without_an_error(self, cluster: LocalCluster,
                                                              client: MetadataClient) -> None:
        made, _ = client.create("/over-restart")
        cluster.nameserver.kill()
        starter = threading.Timer(0.5, cluster.nameserver.start)
        starter.start()
        assert client.lookup("/over-restart").inode == made.inode
        starter.join()
        client.remove("/over-restart")

    def test_files_can_be_made_at_once_after_a_restart(self, cluster: LocalCluster, client: MetadataClient) -> None:
        cluster.nameserver.kill()
        cluster.nameserver.start()
        attributes, _ = client.create("/at-once")
        assert len(attributes.replicas) == 3
        client.remove("/at-once")

    def test_removed_content_is_deleted_from_the_disks_though_the_nameserver_restarted(
            self, tmp_path: Path) -> None:
        with LocalCluster(tmp_path, dataservers=2, deletion_grace_seconds=1) as cluster:
            client = cluster.client()
            attributes = client.create("/f")
            client.append("/f", b"x" * 1000)
            assert all(cluster.stored(name, attributes.file_id).exists() for name in ("d0", "d1"))
            client.remove("/f")
            cluster.nameserver.kill()
            cluster.nameserver.start()
            wait_until(lambda: not any(cluster.stored(name, attributes.file_id).exists() for name in ("d0", "d1")),
                       15, "the content stays on the disks")


class TestLiveness:
    def test_a_silent_dataserver_is_dead_after_three_seconds_and_back_with_its_heartbeat(
            self, tmp_path: Path) -> None:
        with LocalCluster(tmp_path, dataservers=2) as cluster:
            with MetadataClient(cluster.nameserver.address, cache_seconds=0) as client:
                attributes, _ = client.create("/f")
                primary, other = (replica.dataserver_id for replica in attributes.replicas)
                cluster.dataserver(primary).kill()
                cluster.wait_alive({other}, 10)
                seen = client.lookup("/f").replicas
                # in either order: the one that lives may have been made the primary already
                assert {replica.dataserver_id: replica.alive for replica in seen} == {primary: False, other: True}
                assert len(client.create("/g")[0].replicas) == 1
                cluster.dataserver(other).kill()
                cluster.wait_alive(set(), 10)
                with pytest.raises(NoReplicaAvailable, match="no dataserver is alive"):
                    client.create("/h")
                with pytest.raises(NoSuchFile):
                    client.lookup("/h")
            cluster.revive()
            assert len(cluster.client().create("/h").replicas) == 2


class TestConcurrency:
    def test_of_many_exclusive_creates_of_a_name_one_succeeds(self, cluster: LocalCluster) -> None:
        def attempt(client: MetadataClient, path: str, wins: list[str]) -> None:
            try:
                client.create(path, exclusive=True)
                wins.append(path)
            except AlreadyExists:
                pass

        wins: list[str] = []
        clients = [MetadataClient(cluster.nameserver.address) for _ in range(8)]
        expected = [f"/race-{number}" for number in range(20)]
        for path in expected:
            _in_parallel([lambda client=client, path=path: attempt(client, path, wins)  # type: ignore[misc]
                          for client in clients])
        assert sorted(wins) == sorted(expected)
        for path in expected:
            clients[0].remove(path)
        for client in clients:
            client.close()

    def test_many_clients_in_one_directory_leave_a_true_count(self, cluster: LocalCluster,
                                                              client: MetadataClient) -> None:
        before = client.statistics()
        client.mkdir("/many")

        def work(worker: int) -> None:
            own = MetadataClient(cluster.nameserver.address)
            for number in range(30):
                own.create(f"/many/{worker}-{number}")
                own.mkdir(f"/many/{worker}-{number}-d")
                own.rename(f"/many/{worker}-{number}", f"/many/{worker}-{number}-d/f")
                if number % 2:
                    own.remove(f"/many/{worker}-{number}-d/f")
                    own.rmdir(f"/many/{worker}-{number}-d")
            own.close()

        _in_parallel([lambda worker=worker: work(worker) for worker in range(8)])  # type: ignore[misc]
        after = client.statistics()
        assert (after.files - before.files, after.directories - before.directories) == (8 * 15, 8 * 15 + 1)
        assert client.lookup("/many").link_count == 2 + 8 * 15
        assert len(client.list("/many")) == 8 * 15


def _in_parallel(work: list[Any]) -> None:
    failures: list[BaseException] = []

    def guarded(function: Any) -> None:
        try:
            function()
        except BaseException as error:  # reported by the test's own thread
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(function,)) for function in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures, failures


class TestLife:
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_it_stops_with_status_0_with_clients_connected(
            self, tmp_path: Path, number: signal.Signals) -> None:
        daemon = nameserver(tmp_path)
        daemon.start()
        with MetadataClient(daemon.address) as client:
            client.mkdir("/d")
            assert daemon.stop(number) == 0
        assert "Traceback" not in daemon.log.read_text()

    @pytest.mark.parametrize("round_", range(5))
    def test_a_signal_at_the_moment_it_is_ready_is_not_lost(self, tmp_path: Path, round_: int) -> None:
        daemon = nameserver(tmp_path)
        daemon.start()
        assert daemon.stop() == 0

    def test_a_taken_port_gets_one_line_and_touches_no_disk(self, tmp_path: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            done = _run(tmp_path, "--listen", f"127.0.0.1:{port}")
        assert done.returncode == 1
        assert done.stderr == (f"speedwell-nameserver: --listen: cannot listen on 127.0.0.1:{port}: "
                               "Address already in use\n")
        assert not (tmp_path / "nameserver").exists()

    def test_two_nameservers_cannot_share_a_directory(self, tmp_path: Path) -> None:
        daemon = nameserver(tmp_path)
        daemon.start()
        done = _run(tmp_path)
        assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
        assert f"{tmp_path}/nameserver is in use by another process" in done.stderr
        assert daemon.stop() == 0

    def test_a_directory_below_a_file_gets_one_line(self, tmp_path: Path) -> None:
        (tmp_path / "nameserver").write_text("a file")
        done = _run(tmp_path)
        assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
        assert "cannot make the directory" in done.stderr

    @pytest.mark.root
    def test_a_read_only_disk_gets_one_line(self, tmp_path: Path) -> None:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "none", str(tmp_path)], check=True)
        try:
            done = _run(tmp_path)
        finally:
            subprocess.run(["umount", str(tmp_path)], check=True)
        assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
        assert "Read-only file system" in done.stderr

    @pytest.mark.parametrize(("options", "message"), [
        (["--replication", "0"], "replication: 0"), (["--replication", "17"], "replication: 17"),
        (["--replication", "many"], "'--replication'"), (["--chunk-size", "-1"], "'--chunk-size'"),
        (["--chunk-size", "5"], "chunk-size: 5"),
        (["--deletion-grace", "nan"], "deletion-grace"), (["--listen", "somewhere"], "--listen: 'somewhere'"),
        (["--listen", "127.0.0.1:70000"], "--listen: '127.0.0.1:70000'"), (["--frobnicate"], "--frobnicate"),
        (["--log-level", "loud"], "--log-level")])
    def test_a_bad_flag_gets_one_line_and_touches_no_disk(self, tmp_path: Path, options: list[str],
                                                          message: str) -> None:
        done = _run(tmp_path, *options)
        assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
        assert message in done.stderr
        assert not (tmp_path / "nameserver").exists()

    def test_with_every_change_forced_to_the_disk_everything_works_the_same(self, tmp_path: Path) -> None:
        daemon = nameserver(tmp_path, "--fsync", "always")
        daemon.start()
        with MetadataClient(daemon.address) as client:
            client.mkdir("/d")
        daemon.kill()
        daemon.start()
        with MetadataClient(daemon.address) as client:
            assert [entry.name for entry in client.list("/")] == [b"d"]
        assert daemon.stop() == 0

    def test_it_is_light(self, cluster: LocalCluster, client: MetadataClient) -> None:
        client.mkdir("/light")
        for number in range(500):
            client.mkdir(f"/light/{number}")
        status = Path(f"/proc/{cluster.nameserver.pid}/status").read_text()
        resident_kib = int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")))
        assert resident_kib < 120 * 1024


def _run(directory: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    listen = [] if "--listen" in options else ["--listen", "127.0.0.1:0"]
    return subprocess.run([SCRIPTS / "speedwell-nameserver", "--directory", str(directory / "nameserver"), *listen,
                           *options], capture_output=True, text=True, timeout=30, check=False)
