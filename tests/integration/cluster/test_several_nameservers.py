"""`speedwell up --nameservers 3`: an etcd and three nameservers, of which any one may die."""

import json
import random
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from speedwell.cluster import mounts
from speedwell.cluster.processes import Processes, is_running
from tests.etcd import requires_etcd
from tests.integration.cluster.executable import Speedwell, error_line, kill, pids
from tests.mixed_worker import Worker, all_get_on
from tests.waiting import wait_until

pytestmark = [pytest.mark.root, requires_etcd]

SERVERS = {"etcd-0", "etcd-1", "etcd-2", "nameserver-0", "nameserver-1", "nameserver-2", "d0", "d1", "d2",
           "supervisor"}
TAKEOVER_SECONDS = 15.0     # a quiet machine takes three


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Speedwell, Path, Path]]:
    """A running installation, which every test leaves complete: the command, its directory, its mount point."""
    tmp_path = tmp_path_factory.mktemp("several")
    speedwell, mountpoint = Speedwell(tmp_path / "state"), tmp_path / "m"
    # In memory: whoever else writes to the disk would decide how long etcd's fsync takes.
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        directory = Path(name) / "c"
        speedwell.ok("up", "--local", directory, "--nameservers", 3, "--mount", mountpoint)
        yield speedwell, directory, mountpoint
        records = Processes(directory).running()
        speedwell.ok("down", "--local", directory, "--force")
        assert mounts.mounted_here(mountpoint) is None
        assert [record for record in records if is_running(record)] == []


def roles(speedwell: Speedwell) -> dict[str, str]:
    found: dict[str, str] = json.loads(speedwell.run("status", "--json").stdout)["roles"]
    return found


def leader(speedwell: Speedwell, directory: Path) -> str:
    """The name of the process that leads."""
    addresses = [address for address, role in roles(speedwell).items() if role == "leads"]
    assert len(addresses) == 1
    return next(record.name for record in Processes(directory).running() if record.address == addresses[0])


def test_a_mount_goes_on_when_the_leader_is_killed_and_up_starts_it_again(place):
    speedwell, directory, mountpoint = place
    assert set(pids(directory)) == SERVERS | {"mount"}
    kill(directory, "supervisor")
    assert sorted(roles(speedwell).values()) == ["follows", "follows", "leads"]
    written: list[str] = []
    slowest_seconds = [0.0]
    stop = threading.Event()

    def write_files() -> None:
        while not stop.is_set():
            name, began = f"f{len(written)}", time.monotonic()
            with (mountpoint / name).open("w") as stream:
                stream.write(name)
            written.append(name)
            slowest_seconds[0] = max(slowest_seconds[0], time.monotonic() - began)

    worker = threading.Thread(target=write_files)
    worker.start()
    try:
        wait_until(lambda: len(written) > 20, 20, "nothing is written")
        old = leader(speedwell, directory)
        kill(directory, old)
        before = len(written)
        wait_until(lambda: len(written) > before + 20, 30, "the mount does not go on")
    finally:
        stop.set()
        worker.join()
    assert slowest_seconds[0] < TAKEOVER_SECONDS
    assert leader(speedwell, directory) != old
    assert {name: (mountpoint / name).read_text() for name in written} == {name: name for name in written}
    status = speedwell.run("status")
    assert status.returncode == 1
    assert f"{old} is not running".encode() in status.stderr

    speedwell.ok("up")
    assert set(pids(directory)) == SERVERS | {"mount"}
    wait_until(lambda: sorted(roles(speedwell).values()) == ["follows", "follows", "leads"], 10,
               "the killed nameserver does not follow")
    kill(directory, "etcd-0")
    (mountpoint / "without one of etcd").write_text("goes")
    wait_until(lambda: set(pids(directory)) == SERVERS | {"mount"}, 20, "nobody starts the member of etcd again")
    assert speedwell.ok("cat", "/without one of etcd") == "goes"


def test_programs_lose_nothing_while_members_of_etcd_nameservers_and_the_supervisor_are_killed(
        place: tuple[Speedwell, Path, Path], tmp_path: Path, seed: int) -> None:
    speedwell, directory, mountpoint = place
    draw = random.Random(seed)
    etcds, nameservers = (sorted(name for name in SERVERS if name.startswith(f"{kind}-"))
                          for kind in ("etcd", "nameserver"))
    workers = [Worker(mountpoint, f"w{number}", tmp_path) for number in range(2)]
    with ExitStack() as stack:
        for worker in workers:
            stack.callback(worker.kill)
            worker.start()
        all_get_on(workers, "the start")
        for victims in ([draw.choice(etcds)], [leader(speedwell, directory)], ["supervisor"],
                        ["supervisor", draw.choice(etcds), draw.choice(nameservers)]):
            kill(directory, *victims)
            all_get_on(workers, f"a kill of {', '.join(victims)}")
            if "supervisor" in victims:
                speedwell.ok("up", "--local", directory)
            wait_until(lambda: set(pids(directory)) == SERVERS | {"mount"}, 30,
                       f"not all is there again after a kill of {', '.join(victims)}")
            wait_until(lambda: sorted(roles(speedwell).values()) == ["follows", "follows", "leads"], 30,
                       "no nameserver leads, or one does not follow")
    for worker in workers:
        worker.judge(mountpoint)


def test_after_everything_was_killed_up_brings_all_of_it_back(place):
    speedwell, directory, mountpoint = place
    (mountpoint / "file").write_bytes(b"precious")
    kill(directory, "supervisor", *SERVERS - {"supervisor"}, "mount")
    speedwell.ok("up", "--local", directory)
    assert (mountpoint / "file").read_bytes() == b"precious"
    refused = speedwell.run("up", "--local", directory, "--nameservers", 1)
    assert "was made with 3; that cannot be changed later" in error_line(refused)
