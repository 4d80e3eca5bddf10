"""Programs write, append, patch, rename and remove files on two mounts while daemons are killed again and again."""

import os
import random
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from cluster.fsck import check
from tests.integration.fuse_mount.mounting import Mounted
from tests.local_cluster import LocalCluster
from tests.mixed_load import acknowledged_count, entries, expected_of
from tests.waiting import wait_until

pytestmark = pytest.mark.root

ROOT = Path(__file__).parents[3]
MOUNTS = 2
WORKERS = 3
FAULTS = ("dataserver", "nameserver", "mount", "worker", "pause", "pause nameserver", "everything")
GETS_ON_SECONDS = 60.0


class Worker:
    """A program on a mount, and its logs: one for each time it was started, with a directory of its own each."""

    def __init__(self, mountpoint: Path, name: str, logs: Path) -> None:
        self._mountpoint = mountpoint
        self._name = name
        self._logs = logs
        self.runs: list[tuple[str, Path]] = []
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        directory = f"{self._name}-{len(self.runs)}"
        (self._mountpoint / directory).mkdir()
        log = self._logs / f"{directory}.log"
        log.touch()
        self.runs.append((directory, log))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.mixed_client", str(self._mountpoint / directory), str(log),
             str(random.Random(directory).getrandbits(32))], cwd=ROOT, stdin=subprocess.DEVNULL)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def done(self) -> int:
        """Operations acknowledged in this run. AssertionError if the worker found something wrong."""
        log = self.runs[-1][1]
        assert expected_of(entries(log))[1] == []
        return acknowledged_count(log)


class Campaign:
    """A cluster, its mounts and the programs on them."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._directory = directory
        self.cluster = stack.enter_context(LocalCluster(
            directory / "cluster", dataservers=4, chunk_size=1 << 16, deletion_grace_seconds=5,
            nameserver_arguments=("--recovery-grace", "2")))
        self.mounts = [self._mounted(f"mount{number}") for number in range(MOUNTS)]
        stack.callback(lambda: [mount.clean_up() for mount in self.mounts])
        self.workers = [Worker(self.mounts[number % MOUNTS].path, f"w{number}", directory)
                        for number in range(WORKERS)]
        stack.callback(lambda: [worker.kill() for worker in self.workers])
        for worker in self.workers:
            worker.start()

    def fault(self, kind: str, generator: random.Random) -> None:
        """Break one thing, leave it broken for a moment, and have it come back as a supervisor would."""
        away_seconds = generator.uniform(0.0, 1.5)
        dataserver = generator.choice(self.cluster.dataservers)
        if kind == "worker":
            worker = generator.choice(self.workers)
            worker.kill()
            worker.start()
        elif kind == "mount":
            number = generator.randrange(MOUNTS)
            self.mounts[number].kill()
            time.sleep(away_seconds)        # a part of the fault itself
            self.mounts[number].clean_up()
            self.mounts[number] = self._mounted(f"mount{number}")
        elif kind.startswith("pause"):
            victim = self.cluster.nameserver if kind == "pause nameserver" else dataserver
            victim.pause()
            time.sleep(2 * away_seconds)    # a part of the fault itself
            victim.resume()
        else:
            for victim in {"dataserver": [dataserver], "nameserver": [self.cluster.nameserver],
                           "everything": [self.cluster.nameserver, *self.cluster.dataservers]}[kind]:
                victim.kill()
            time.sleep(away_seconds)        # a part of the fault itself
            self.cluster.revive()

    def gets_on(self, what: str) -> None:
        """Wait until every program gets operations acknowledged again."""
        before = [worker.done() for worker in self.workers]
        wait_until(lambda: all(worker.done() > done + 2 for worker, done in zip(self.workers, before, strict=True)),
                   GETS_ON_SECONDS, f"not every program gets on after {what}")

    def judge(self) -> None:
        """Everything acknowledged is there, exactly, and the check of the whole installation gets clean by itself."""
        for worker in self.workers:
            worker.kill()
        self.mounts.append(self._mounted("fresh"))
        for worker in self.workers:
            for directory, log in worker.runs:
                expected, wrong = expected_of(entries(log))
                found = {path.name: path.read_bytes() for path in (self.mounts[-1].path / directory).iterdir()}
                assert wrong + expected.differences(found) == [], directory
        client = self.cluster.client()
        wait_until(lambda: check(client.metadata).clean, GETS_ON_SECONDS, "the check is not clean",
                   interval_seconds=0.5)

    def _mounted(self, name: str) -> Mounted:
        return Mounted(self._directory / name, self.cluster.nameserver.address)


def run(directory: Path, rounds: int, seed: int) -> None:
    generator = random.Random(seed)
    with ExitStack() as stack:
        campaign = Campaign(directory, stack)
        campaign.gets_on("the start")
        for number in range(rounds):
            kind = FAULTS[(number + seed) % len(FAULTS)] if rounds >= len(FAULTS) else generator.choice(FAULTS)
            campaign.fault(kind, generator)
            campaign.gets_on(f"fault {number} of seed {seed} ({kind})")
        campaign.judge()


@pytest.mark.timeout(240)
def test_nothing_acknowledged_is_lost_when_daemons_are_killed_below_programs(tmp_path: Path) -> None:
    run(tmp_path, rounds=3, seed=int.from_bytes(os.urandom(4), "big"))


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(2))
def test_nothing_acknowledged_is_lost_over_many_faults(tmp_path: Path, seed: int) -> None:
    run(tmp_path, rounds=25, seed=seed)
