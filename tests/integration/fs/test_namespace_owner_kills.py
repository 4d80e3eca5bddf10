"""Four owners of one namespace, killed and stopped at every step of changes across them and of moves of blocks."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from speedwell.fs import paths, slots
from speedwell.fs.client.names.metadata import MetadataClient
from speedwell.fs.errors import NoSuchFile, NotLeader, NotOwner
from speedwell.fs.proto import speedwell_pb2 as pb
from speedwell.fs.wire.calls import CallFailed, Calls
from tests.etcd import EtcdCluster, requires_etcd
from tests.integration.fs.test_namespace_owners import change_all_at_once, owners
from tests.local_cluster import Daemon
from tests.several_nameservers import Installation
from tests.stepping_nameserver import MOVE_STEPS, RENAME_STEPS, VARIABLE
from tests.waiting import wait_until

pytestmark = requires_etcd

STEPS = (*RENAME_STEPS, *MOVE_STEPS)
NUMBER = 4
STOPPED_SECONDS = 5.0
SERVICE_SECONDS = 2.0
"""From the end of an owner until all that was its own is answered again, on an idle machine."""


@pytest.fixture
def installation(tmp_path: Path, etcd: EtcdCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Installation]:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "step"))
    started = Installation(tmp_path, etcd, NUMBER, "--shared",
                           program=(sys.executable, "-m", "tests.stepping_nameserver"))
    wait_until(lambda: len(owners(started)) == NUMBER, 30, "not all own a part")
    yield started
    started.stop()


class Disturbance:
    """Ends or stops whoever comes to a step first, and sees that all goes on."""

    def __init__(self, installation: Installation, step_file: Path, seed: int) -> None:
        self._installation = installation
        self._file = step_file
        self._random = Random(seed)
        self.waits: list[float] = []
        self.done: dict[str, int] = {}
        self.refusals = 0

    def __call__(self, number: int) -> None:
        step = STEPS[number % len(STEPS)]
        is_stop = number // len(STEPS) % 3 == 2 or number in (2, 7)
        doors = {each.name: (calls, owned) for each, calls, owned in self._doors()}
        self._file.with_name("next").write_text(f"{step}:{int(signal.SIGSTOP if is_stop else signal.SIGKILL)}")
        self._file.with_name("next").rename(self._file)
        leaver = self._random.choice(self._installation.nameservers) if step in MOVE_STEPS else None
        if leaver is not None:
            os.kill(leaver.pid, signal.SIGTERM)
        wait_until(lambda: not self._file.exists(), 60, f"nobody comes to the step {step!r}")
        began = time.monotonic()
        taken = next(self._file.parent.glob("taken-*"))
        hit = next(each for each in self._installation.nameservers if each.pid == int(taken.name.partition("-")[2]))
        taken.unlink()
        if is_stop:
            self._wait_for_service(began, hit)
            self._resume(hit, began, *doors[hit.name])
        else:
            assert hit.process is not None
            hit.process.wait(10)
            hit.stop()
            self._wait_for_service(began, hit)
            hit.start()
        if (leaver is not None and leaver is not hit) or (leaver is not None and is_stop):
            leaver.stop()
            leaver.start()
        for calls, _ in doors.values():
            calls.close()
        wait_until(lambda: len(owners(self._installation)) == NUMBER, 40, "not all own a part again")
        self.done[step] = self.done.get(step, 0) + 1

    def _wait_for_service(self, began: float, hit: Daemon) -> None:
        """Until somebody answers for every block."""
        others = ",".join(each.address for each in self._installation.nameservers if each is not hit and each.process)
        with MetadataClient(others, 0, call_timeout_seconds=20) as client:
            for block in range(1, slots.BLOCKS, 8):
                with pytest.raises(NoSuchFile):
                    client.lookup_inode(block << slots.BLOCK_SHIFT | 1)
        self.waits.append(time.monotonic() - began)

    def _resume(self, hit: Daemon, began: float, door: Calls, owned: set[int]) -> None:
        """What it was asked while it stood still it refuses once it goes on: its blocks are others'."""
        with MetadataClient(self._installation.address, 0) as client:
            there = [entry.attributes.inode for entry in client.list("/")]
        directory = next((number for number in there if slots.block_of(number) in owned), there[0])
        request = pb.MakeSymbolicLinkRequest(path=paths.below(directory, b"acknowledged"), target=b"x")
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(door.call, "MakeSymbolicLink", request, 30.0)
            time.sleep(max(began + STOPPED_SECONDS - time.monotonic(), 0.0))
            hit.resume()
            with pytest.raises((NotLeader, NotOwner, CallFailed)):
                answer.result(30)
        self.refusals += 1

    def _doors(self) -> Iterator[tuple[Daemon, Calls, set[int]]]:
        """A connection to each nameserver, and the blocks that it owns."""
        for each in self._installation.nameservers:
            calls = Calls(each.address, 60)
            with suppress(NotLeader):       # which has just joined
                calls.call("Statistics", pb.StatisticsRequest(), 5.0)       # else the next call would do so
            reply = calls.call("Owners", pb.OwnersRequest(), 5.0)
            yield each, calls, {block for run in reply.owners if run.address == each.address
                                for block in range(run.first, run.last + 1)}


@pytest.mark.timeout(3000)
@pytest.mark.parametrize(("kills", "seed"), [
    (len(STEPS), 0), *(pytest.param(100, seed, marks=pytest.mark.full) for seed in (1, 2, 3))])
def test_kills_and_stops_at_every_step_leave_the_namespace_whole(installation: Installation, etcd: EtcdCluster,
                                                                 tmp_path: Path, kills: int, seed: int) -> None:
    disturbance = Disturbance(installation, tmp_path / "step", seed)
    workers = change_all_at_once(installation, etcd, disturbance, kills, pause_seconds=0.05)
    waits = sorted(disturbance.waits)
    print(f"{sum(each.done for each in workers)} changes, {disturbance.done}, {disturbance.refusals} resumed owners "
          f"refused; service after s: median {waits[len(waits) // 2]:.2f}, 95 % {waits[len(waits) * 95 // 100]:.2f}, "
          f"longest {waits[-1]:.2f}; above {SERVICE_SECONDS:g} s: {sum(each > SERVICE_SECONDS for each in waits)}")
    assert set(disturbance.done) == set(STEPS)
    assert waits[len(waits) // 2] < SERVICE_SECONDS
