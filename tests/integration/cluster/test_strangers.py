"""Somebody else answers at a dataserver's address, as on a machine that is not on the installation's network."""

import socket
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from speedwell.cluster import mounts
from speedwell.fs.client import Client
from tests.local_cluster import SCRIPTS, LocalCluster
from tests.waiting import wait_until

ELSEWHERE = "127.0.9.9"
SECRET = b"for nobody else" * 1000


class Stranger:
    """A web server at an address, which keeps what it is sent."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.received = b""
        self._listener = socket.create_server(address)
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                with connection, suppress(OSError):
                    connection.settimeout(5)
                    self.received += connection.recv(65536)
                    connection.sendall(b"HTTP/1.0 400 Bad Request\r\n\r\n")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path, dataservers=1) as cluster:
        yield cluster


@pytest.fixture
def stranger(cluster: LocalCluster) -> Iterator[Stranger]:
    """Answers for d0, which holds `/healthy`."""
    client = cluster.client(metadata_cache_seconds=0)
    with client.open_append("/healthy", client.create("/healthy")) as appender:
        appender.write(SECRET)
    server = cluster.dataserver("d0")
    server.stop()
    server.launch("--advertise", ELSEWHERE)
    server.wait_ready()
    wait_until(lambda: is_at(client, ELSEWHERE), 10, "it is not there")
    stranger = Stranger((ELSEWHERE, server.port))
    yield stranger
    stranger.close()


def is_at(client: Client, host: str) -> bool:
    return any(status.server.alive and status.server.host == host for status in client.statistics().dataservers)


def speedwell(cluster: LocalCluster, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([str(SCRIPTS / "speedwell"), *arguments, "--nameserver", cluster.nameserver.address],
                          input=stdin, capture_output=True, timeout=60, check=False)


def test_nothing_is_written_to_a_stranger_and_nothing_read_from_it(cluster: LocalCluster, stranger: Stranger) -> None:
    with ThreadPoolExecutor() as pool:      # a write tries for ten seconds
        asked = [pool.submit(speedwell, cluster, *arguments, stdin=SECRET)
                 for arguments in (("put", "-", "/secret"), ("append", "/healthy"), ("cat", "/healthy"))]
    for refused in (one.result() for one in asked):
        assert refused.returncode == 1
        assert b"is not the dataserver d0" in refused.stderr
        assert refused.stdout == b""
    assert b"speedwell: /healthy: no replica delivers " in refused.stderr
    assert SECRET[:15] not in stranger.received
    assert speedwell(cluster, "ls").stdout.split() == [b"healthy"]


def test_a_mount_that_could_serve_no_byte_is_refused(cluster: LocalCluster, stranger: Stranger,
                                                     tmp_path: Path) -> None:
    refused = speedwell(cluster, "mount", str(tmp_path / "mnt"))
    assert refused.returncode == 1
    assert b"is not the dataserver d0" in refused.stderr
    place = tmp_path / "place"
    place.mkdir()
    refused = subprocess.run([SCRIPTS / "speedwell-mount", place, "--nameserver", cluster.nameserver.address],
                             capture_output=True, timeout=60, check=False)
    assert refused.returncode == 1
    assert b"is not the dataserver d0" in refused.stderr
    assert mounts.mounted_here(place) is None


def test_what_a_stranger_hides_is_not_called_missing_and_not_repaired(cluster: LocalCluster,
                                                                      stranger: Stranger) -> None:
    found = speedwell(cluster, "fsck")
    assert found.returncode == 4
    assert b"missing" not in found.stdout
    assert b"unreachable: /healthy," in found.stdout
    refused = speedwell(cluster, "fsck", "--repair", "--timeout", "1")
    assert refused.returncode == 4
    assert b"nothing is repaired: d0 cannot be reached" in refused.stderr
