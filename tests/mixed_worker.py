"""Programs of their own at work on a mount (`tests.mixed_client`), started and judged by a test."""

import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.mixed_load import acknowledged_count, entries, expected_of
from tests.waiting import wait_until

ROOT = Path(__file__).parents[1]
GETS_ON_SECONDS = 60.0


class Worker:
    """A program on a mount, and its logs: one for each time it was started, with a directory of its own each."""

    def __init__(self, mountpoint: Path, name: str, logs: Path) -> None:
        self._mountpoint = mountpoint
        self._name = name
        self._logs = logs
        self._runs: list[tuple[str, Path]] = []
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        directory = f"{self._name}-{len(self._runs)}"
        (self._mountpoint / directory).mkdir()
        log = self._logs / f"{directory}.log"
        log.touch()
        self._runs.append((directory, log))
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
        log = self._runs[-1][1]
        assert expected_of(entries(log))[1] == []
        return acknowledged_count(log)

    def judge(self, mountpoint: Path) -> None:
        """On any mount there is exactly what was acknowledged, in all runs. AssertionError if not."""
        for directory, log in self._runs:
            expected, wrong = expected_of(entries(log))
            found = {path.name: path.read_bytes() for path in (mountpoint / directory).iterdir()}
            assert wrong + expected.differences(found) == [], directory


def all_get_on(workers: Sequence[Worker], after: str) -> None:
    """Wait until every program gets operations acknowledged again."""
    before = [worker.done() for worker in workers]
    wait_until(lambda: all(worker.done() > done + 2 for worker, done in zip(workers, before, strict=True)),
               GETS_ON_SECONDS, f"not every program gets on after {after}")
