"""A real etcd for tests: members on loopback that can be killed and started again."""

import shutil
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from speedwell.cluster.nameservers import ETCD_TIMING
from speedwell.fs.errors import StorageFailed
from speedwell.fs.etcd_client import EtcdClient
from tests.waiting import wait_until

requires_etcd = pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd is not installed (etcd-server)")


class EtcdCluster:
    """`with EtcdCluster(tmp_path, members=3) as etcd: ... etcd.endpoints`."""

    def __init__(self, directory: Path, members: int = 1, *, data: Path | None = None,
                 prefixes: Sequence[Sequence[str]] = (), host: str = "127.0.0.1") -> None:
        """Member N keeps its data in `data`/N: in memory by default, as whoever else writes to the disk would decide
        how long etcd's fsync takes. `prefixes[N]` are words in front of its command. Clients
        ask at `host`."""
        ports = free_ports(2 * members)
        self._directory = directory
        self._memory = tempfile.TemporaryDirectory(prefix="etcd-", dir="/dev/shm")
        self._prefixes = prefixes or [()] * members
        self._data = data or Path(self._memory.name)
        self._peers = [f"http://127.0.0.1:{port}" for port in ports[members:]]
        self.endpoints = [f"{host}:{port}" for port in ports[:members]]
        self._running: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, number: int) -> None:
        """Start a member, with what it had before if it was killed."""
        url = f"http://{self.endpoints[number]}"
        cluster = ",".join(f"m{other}={peer}" for other, peer in enumerate(self._peers))
        with (self._directory / f"etcd{number}.log").open("ab") as log:
            self._running[number] = subprocess.Popen([
                *self._prefixes[number], "etcd", "--name", f"m{number}", "--data-dir", f"{self._data}/{number}",
                "--listen-client-urls", url, "--advertise-client-urls", url,
                "--listen-peer-urls", self._peers[number], "--initial-advertise-peer-urls", self._peers[number],
                "--initial-cluster", cluster, "--max-txn-ops", "100000",
                "--grpc-keepalive-min-time", "1s", *(f"--{name}={value}" for name, value in ETCD_TIMING.items())],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def kill(self, number: int) -> None:
        process = self._running.pop(number)
        process.kill()
        process.wait()

    def __enter__(self) -> "EtcdCluster":
        try:
            self.start_all()
        except BaseException:
            self.__exit__()
            raise
        return self

    def start_all(self) -> None:
        """Start every member and wait until they serve."""
        for number in range(len(self.endpoints)):
            self.start(number)
        wait_until(self._answers, 60, "etcd does not answer")

    def lose_everything(self) -> None:
        """All members die with what they had, and new ones are there."""
        for number in list(self._running):
            self.kill(number)
            shutil.rmtree(self._data / str(number))
        self.start_all()

    def __exit__(self, *_: object) -> None:
        for number in list(self._running):
            self.kill(number)
        self._memory.cleanup()

    def _answers(self) -> bool:
        return answers(EtcdClient(self.endpoints, timeout_seconds=0.5))


def answers(client: EtcdClient) -> bool:
    """Whether etcd serves a client, which is closed then."""
    try:
        client.range(b"key", b"")
    except StorageFailed:
        return False
    finally:
        client.close()
    return True


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody uses now."""
    sockets = [socket.socket() for _ in range(count)]
    for opened in sockets:
        opened.bind(("127.0.0.1", 0))
    ports = [int(opened.getsockname()[1]) for opened in sockets]
    for opened in sockets:
        opened.close()
    return ports
