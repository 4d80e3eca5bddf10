"""Many clients append and read records while everything is killed: the recorded histories are linearizable."""

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from speedwell.fs.client import Client
from speedwell.fs.errors import SpeedwellError
from tests.histories import History, violations
from tests.local_cluster import Daemon, LocalCluster
from tests.waiting import wait_until

PATH = "/records"
CLIENTS = 4
ROOT = Path(__file__).parents[3]


class Load:
    """Client processes that append to one file and write down what happens to them."""

    def __init__(self, cluster: LocalCluster, directory: Path) -> None:
        self._cluster = cluster
        self._directory = directory
        self._started = 0
        self.processes: list[subprocess.Popen[bytes]] = []

    def start_one(self) -> None:
        self._started += 1
        with (self._directory / f"client{self._started}.err").open("wb") as errors:
            self.processes.append(subprocess.Popen(
                [sys.executable, "-m", "tests.record_client", self._cluster.nameserver.address, PATH,
                 str(self._started), str(self._directory / f"client{self._started}.log"), "--lose", "0.03"],
                cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors))

    def kill_one(self, generator: random.Random) -> None:
        process = self.processes.pop(generator.randrange(len(self.processes)))
        process.kill()
        process.wait()

    def stop(self) -> None:
        while self.processes:
            self.kill_one(random.Random(1))

    def history(self) -> History:
        history = History()
        for log in sorted(self._directory.glob("client*.log")):
            history.load(log)
        return history


def fault(cluster: LocalCluster, load: Load, generator: random.Random) -> None:
    """Break one thing, leave it broken for a moment, and have it come back."""
    kind = generator.choice(["dataserver", "primary", "nameserver", "client", "pause", "everything"])
    seconds = generator.uniform(0.0, 0.8)
    if kind == "client":
        load.kill_one(generator)
        load.start_one()
        return
    victims = {"nameserver": [cluster.nameserver], "everything": [cluster.nameserver, *cluster.dataservers],
               "primary": [primary(cluster)]}.get(kind, [generator.choice(cluster.dataservers)])
    if kind == "pause":
        victims[0].pause()
        wait_some(seconds * 5)
        victims[0].resume()
        return
    for victim in victims:
        victim.kill()
    wait_some(seconds)
    cluster.revive()


def wait_some(seconds: float) -> None:
    """A part of the fault itself: how long something is away."""
    time.sleep(seconds)


def primary(cluster: LocalCluster) -> Daemon:
    with Client(cluster.nameserver.address) as client:
        try:
            return cluster.dataserver(client.lookup(PATH).replicas[0].dataserver_id)
        except SpeedwellError:
            return cluster.dataservers[0]


def run(directory: Path, rounds: int, seed: int) -> None:
    generator = random.Random(seed)
    with LocalCluster(directory / "cluster", dataservers=4, chunk_size=65536) as cluster:
        load = Load(cluster, directory)
        with Client(cluster.nameserver.address) as client:
            client.create(PATH)
        try:
            for _ in range(CLIENTS):
                load.start_one()
            for number in range(rounds):
                before = len(load.history().acknowledged)
                fault(cluster, load, generator)
                wait_until(lambda before=before: len(load.history().acknowledged) > before + CLIENTS, 60,  # type: ignore[misc]
                           f"nobody gets on after fault {number}")
        finally:
            load.stop()
        history = load.history()
        assert any(append.offset is None for append in history.appends.values()), "no fault hit anybody"
        check(cluster, history)


def check(cluster: LocalCluster, history: History) -> None:
    with Client(cluster.nameserver.address) as client:
        client.append(PATH, b"")
        final = wait_until(lambda: whole(client), 30, "the file cannot be read")
        attributes = client.lookup(PATH, fresh=True)
    assert violations(history, final) == []
    for replica in attributes.replicas:
        held = cluster.stored_bytes(replica.dataserver_id, attributes.file_id)
        assert held[:len(final)] == final[:len(held)]


def whole(client: Client) -> bytes | None:
    try:
        with client.open_read(PATH) as reader:
            return reader.read(0, reader.size)
    except SpeedwellError:
        return None


def test_histories_are_linearizable_while_everything_is_killed(tmp_path: Path, seed: int) -> None:
    run(tmp_path, rounds=3, seed=seed)


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(2))
def test_histories_are_linearizable_over_many_faults(tmp_path: Path, seed: int) -> None:
    run(tmp_path, rounds=25, seed=seed)
