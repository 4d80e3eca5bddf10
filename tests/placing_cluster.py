"""A nameserver that asks a real controller where large files go, as processes on loopback.

The controller has no switches, so it knows no host: it answers each question in time, and places nothing.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from speedwell.evaluation.placement_trial import counted, creates_at_once
from speedwell.fs.client.names.metadata import MetadataClient
from tests.local_cluster import SCRIPTS, START_SECONDS, Daemon, _first_line
from tests.waiting import wait_until

DATASERVERS = 6
WRITER = "10.9.0.1"


@dataclass(frozen=True)
class PlacingCluster:
    nameserver: str
    controller_pid: int


@contextmanager
def placing_cluster(directory: Path) -> Iterator[PlacingCluster]:
    """Serves, and the controller has answered once. Dataservers say they are on hosts of a fabric, two to a rack."""
    with ExitStack() as cleanup:
        controller = subprocess.Popen([SCRIPTS / "speedwell-controller", "--insecure", "--openflow-port", "0",
                                       "--rest-port", "0"],
                                      stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        cleanup.callback(controller.wait)
        cleanup.callback(controller.kill)
        assert controller.stdout is not None
        words = _first_line(controller.stdout, 4 * START_SECONDS).decode().split()
        url = next(word.removeprefix("rest=") for word in words if word.startswith("rest="))
        nameserver = Daemon("nameserver", [
            str(SCRIPTS / "speedwell-nameserver"), "--directory", str(directory / "nameserver"), "--controller",
            url if url.startswith("http") else f"http://{url}"], directory / "nameserver.log")
        _start(nameserver, cleanup, "--new")
        for number in range(DATASERVERS):
            _start(Daemon(f"d{number}", [
                str(SCRIPTS / "speedwell-dataserver"), "--id", f"d{number}", "--advertise", f"10.9.0.{number + 1}",
                "--rack", f"r{number // 2}", "--nameserver", nameserver.address, "--directory",
                str(directory / f"d{number}")], directory / f"d{number}.log"), cleanup)
        with MetadataClient(nameserver.address) as client:
            wait_until(lambda: sum(each.server.alive for each in client.statistics().dataservers) == DATASERVERS,
                       START_SECONDS, "not all dataservers are known")
        names = iter(range(10_000))

        def answered() -> bool:
            creates_at_once(nameserver.address, [WRITER], f"/asked-{next(names)}", 0.0)
            return counted(nameserver.address).get("refused", 0) > 0

        wait_until(answered, 60, "the controller answers no question in time", 0.5)
        yield PlacingCluster(nameserver.address, controller.pid)


def _start(daemon: Daemon, cleanup: ExitStack, *more: str) -> None:
    daemon.launch(*more)
    cleanup.callback(daemon.kill)
    daemon.wait_ready()
