"""Dataservers with two directories: one that is full is passed over, one that goes away is made good elsewhere."""

import contextlib
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from speedwell.cluster.fsck import check
from speedwell.fs.client import Client
from speedwell.fs.errors import NoSpace
from tests.local_cluster import LocalCluster
from tests.machine_state import PROPAGATION
from tests.waiting import wait_until

FILES = 24
FILE_BYTES = 150_000
PASS_THROUGH = Path(__file__).parents[3] / "scripts" / "pass_through.py"


def body(number: int) -> bytes:
    return random.Random(number).randbytes(FILE_BYTES)


def write(client: Client, numbers: range, replication: int) -> None:
    for number in numbers:
        client.create(f"/{number}", replication=replication)
        client.append(f"/{number}", body(number))


def read(client: Client, numbers: range) -> None:
    for number in numbers:
        with client.open_read(f"/{number}") as reader:
            assert reader.read(0, reader.size) == body(number)


def stored_in(directory: Path) -> int:
    return len(list(directory.glob("[0-9a-f][0-9a-f]/*")))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path / "c", dataservers=3, replication=2, directories=2, deletion_grace_seconds=1,
                      nameserver_arguments=("--recovery-grace", "1")) as cluster:
        yield cluster


def failures(client: Client) -> list[str]:
    return [f"{entry.server.dataserver_id} {use.path}" for entry in client.statistics().dataservers
            for use in entry.directories if use.failure]


def test_a_directory_that_goes_away_takes_only_its_own_replicas(cluster: LocalCluster) -> None:
    client = cluster.client(metadata_cache_seconds=0)
    write(client, range(FILES), replication=2)
    gone = cluster.data_directory("d0", 1)
    away = gone.with_name("elsewhere")
    kept, lost = stored_in(cluster.data_directory("d0")), stored_in(gone)
    assert lost and kept
    gone.rename(away)

    wait_until(lambda: failures(client) == [f"d0 {gone}"], 30, "nobody says that it has failed")
    assert any(f"{gone} of the dataserver d0" in warning for warning in client.statistics().warnings)
    read(client, range(FILES))

    def is_made_good() -> bool:
        return stored_in(cluster.data_directory("d0")) + sum(
            stored_in(cluster.data_directory(f"d{server}", number)) for server in (1, 2) for number in (0, 1)
        ) >= 2 * FILES and not check(client.metadata).problems

    wait_until(is_made_good, 90, "the replicas are not made anew", interval_seconds=0.5)
    cluster.wait_alive({"d0", "d1", "d2"})
    write(client, range(FILES, FILES + 6), replication=3)
    read(client, range(FILES + 6))

    cluster.dataserver("d0").kill()
    cluster.revive()
    wait_until(lambda: failures(client) == [f"d0 {gone}"], 30, "a directory that is not there was made anew")
    assert not gone.exists()
    read(client, range(FILES + 6))

    cluster.dataserver("d0").kill()
    away.rename(gone)
    cluster.revive()
    wait_until(lambda: not failures(client) and check(client.metadata).clean, 60, "it is not as it was",
               interval_seconds=0.5)
    read(client, range(FILES + 6))


@contextlib.contextmanager
def hanging(source: Path, mountpoint: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A disk at `mountpoint`, served by a process that can be stopped."""
    for directory in (source, mountpoint):
        directory.mkdir(parents=True)
    with subprocess.Popen([sys.executable, PASS_THROUGH, source, mountpoint]) as process:
        try:
            wait_until(mountpoint.is_mount, 30, "not mounted")
            yield process
        finally:
            process.send_signal(signal.SIGCONT)
            subprocess.run(["umount", "-l", str(mountpoint)], check=True, timeout=30)


@pytest.mark.root
@pytest.mark.full
def test_a_server_whose_disk_hangs_ends_and_serves_the_others_when_it_is_started_again(tmp_path: Path) -> None:
    disk = tmp_path / "c" / "d0-1"
    with hanging(tmp_path / "source", disk) as process, LocalCluster(
            tmp_path / "c", dataservers=2, replication=2, directories=2) as cluster, \
            contextlib.ExitStack() as cleanup:
        cleanup.callback(process.send_signal, signal.SIGCONT)   # before the cluster, which waits for its processes
        client = cluster.client(metadata_cache_seconds=0)
        write(client, range(FILES), replication=2)
        assert stored_in(tmp_path / "source")
        process.send_signal(signal.SIGSTOP)
        server = cluster.dataserver("d0")
        assert server.process is not None and server.process.wait(90) == 1
        assert "d0-1 has not answered for 30 s: this dataserver ends" in server.log.read_text()
        server.stop()
        cluster.revive()
        wait_until(lambda: failures(client) == [f"d0 {disk}"], 90, "nobody says that it has failed")
        read(client, range(FILES))
        write(client, range(FILES, FILES + 6), replication=2)
        read(client, range(FILES + 6))


@pytest.mark.root
def test_files_on_a_full_disk_grow_on_another_one_until_none_has_room(tmp_path: Path) -> None:
    """As below; both disks are small. The other server has room for everything."""
    disks = tmp_path / "c" / "d0", tmp_path / "c" / "d0-1"
    for directory in disks:
        directory.mkdir(parents=True)
    begin = ('mount -t tmpfs -o mode=700,size=4m none "$0" && mount -t tmpfs -o mode=700,size=12m none "$1" && '
             'shift && exec "$@"')
    with LocalCluster(tmp_path / "c", dataservers=1, replication=1, directories=2, prefixes={
            "d0": ["unshare", "--mount", *PROPAGATION, "sh", "-c", begin, *map(str, disks)]}) as cluster:
        client = cluster.client(metadata_cache_seconds=0)
        write(client, range(8), replication=1)
        whole = {number: body(number) for number in range(8)}
        with pytest.raises(NoSpace):
            for turn in range(20):
                for number in whole:
                    client.append(f"/{number}", body(turn))
                    whole[number] += body(turn)
        assert sum(map(len, whole.values())) > 10 << 20, "the small disk's files did not move"
        for number, expected in whole.items():
            with client.open_read(f"/{number}") as reader:
                assert reader.read(0, reader.size) == expected
        assert check(client.metadata).clean


@pytest.mark.root
def test_a_full_disk_is_passed_over(tmp_path: Path) -> None:
    """The disks of d0 are file systems that only its own process sees; one has room for small files alone."""
    full, free = tmp_path / "c" / "d0", tmp_path / "c" / "d0-1"
    for directory in (full, free):
        directory.mkdir(parents=True)
    begin = ('mount -t tmpfs -o mode=700,size=2m none "$0" && mount -t tmpfs -o mode=700,size=32m none "$1" && '
             'head -c 1900k /dev/zero > "$0/filler" && shift && exec "$@"')
    with LocalCluster(tmp_path / "c", dataservers=2, replication=2, directories=2, prefixes={
            "d0": ["unshare", "--mount", *PROPAGATION, "sh", "-c", begin, str(full), str(free)]},
            ) as cluster:
        client = cluster.client()
        write(client, range(FILES), replication=2)
        read(client, range(FILES))

        def used_bytes() -> list[int]:
            [status] = [entry for entry in client.statistics().dataservers if entry.server.dataserver_id == "d0"]
            assert status.capacity_bytes == 34 << 20 == sum(use.capacity_bytes for use in status.directories)
            assert status.available_bytes == sum(use.available_bytes for use in status.directories)
            return [use.capacity_bytes - use.available_bytes for use in status.directories]

        wait_until(lambda: used_bytes()[1] >= FILES * FILE_BYTES, 20, lambda: f"not all is there: {used_bytes()}")
        assert not failures(client) and used_bytes()[0] < 2 << 20
        assert {len(client.lookup(f"/{number}", fresh=True).replicas) for number in range(FILES)} == {2}
    assert not list(full.iterdir()) and not list(free.iterdir())
