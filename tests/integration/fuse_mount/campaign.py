"""A cluster, two mounts and programs on them, whose daemons are broken in many ways while the programs work."""

import random
import time
from contextlib import ExitStack
from pathlib import Path

from speedwell.cluster.fsck import Check, check
from speedwell.fs.dataserver.disk.contents import PAUSE_SECONDS
from tests.integration.fuse_mount.mounting import Mounted
from tests.local_cluster import LocalCluster
from tests.mixed_worker import GETS_ON_SECONDS, Worker, all_get_on
from tests.waiting import wait_until
from tests.wall_clock import WallClock

MOUNTS = 2
WORKERS = 3
DATASERVERS = 4
FAULTS = ("dataserver", "nameserver", "mount", "worker", "pause", "pause nameserver", "everything", "clock", "clocks")
LONGEST_JUMP_SECONDS = 26 * 3600.0
NOTICED_SECONDS = 2 * PAUSE_SECONDS
"""A dataserver reports all it holds so often: once before the grace period of what no file has, once after it."""


class Campaign:
    """A cluster, its mounts and the programs on them."""

    def __init__(self, directory: Path, stack: ExitStack, *, deletion_grace_seconds: float = 5,
                 session_lease_seconds: float = 15) -> None:
        self._directory = directory
        # twice: a machine that stands still for seconds makes replicas be made elsewhere, and some of that fail
        self._clean_seconds = 2 * (deletion_grace_seconds + NOTICED_SECONDS) + GETS_ON_SECONDS
        daemons = ["nameserver", *(f"d{number}" for number in range(DATASERVERS))]
        self.clocks = {name: WallClock(directory / f"{name}.clock")
                       for name in (*daemons, *(f"mount{number}" for number in range(MOUNTS)))}
        self.cluster = stack.enter_context(LocalCluster(
            directory / "cluster", dataservers=DATASERVERS, chunk_size=1 << 16,
            deletion_grace_seconds=deletion_grace_seconds,
            nameserver_arguments=("--recovery-grace", "2", "--session-lease", str(session_lease_seconds)),
            prefixes={name: self.clocks[name].prefix for name in daemons}))
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
        elif kind.startswith("clock"):
            jump_seconds = generator.uniform(-LONGEST_JUMP_SECONDS, LONGEST_JUMP_SECONDS)
            for clock in self.clocks.values() if kind == "clocks" else [generator.choice([*self.clocks.values()])]:
                clock.jump(jump_seconds)
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
        all_get_on(self.workers, what)

    def judge(self) -> None:
        """Everything acknowledged is there, exactly, and the check of the whole installation gets clean by itself."""
        for worker in self.workers:
            worker.kill()
        self.mounts.append(self._mounted("fresh"))
        for worker in self.workers:
            worker.judge(self.mounts[-1].path)
        client = self.cluster.client()
        found = Check()

        def clean() -> bool:
            nonlocal found
            found = check(client.metadata)
            return found.clean

        wait_until(clean, self._clean_seconds, lambda: f"the check is not clean: {found.document()}",
                   interval_seconds=0.5)

    def _mounted(self, name: str) -> Mounted:
        prefix = self.clocks[name].prefix if name in self.clocks else ()
        return Mounted(self._directory / name, self.cluster.nameserver.address, prefix=prefix)
