"""Replaying a trace: each read begins at its time, whatever the earlier ones do."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from dataclasses import dataclass

from speedwell.cluster.errors import ClusterError
from speedwell.evaluation.papers.reads import Method
from speedwell.evaluation.replay.scale import file_of
from speedwell.evaluation.replay.system import ReadReport, SystemUnderTest
from speedwell.sim.errors import Overloaded
from speedwell.sim.workload import Read

LEAD_SECONDS = 0.1
MOST_RUNNING_PER_HOST = 8
DRAIN_SECONDS = 60.0


@dataclass(frozen=True)
class Replayed:
    """A read and what became of it; times in seconds since the start of the trace."""

    read: Read
    started: float
    finished: float
    report: ReadReport
    part_ends: tuple[float, ...] = ()

    @property
    def seconds(self) -> float:
        """Completion time: from the moment the trace asks for the read to its last byte."""
        return self.finished - self.read.arrival

    @property
    def late_seconds(self) -> float:
        """How long after its time the host began: what the replaying machine itself adds."""
        return self.started - self.read.arrival


def replay(reads: Sequence[Read], system: SystemUnderTest, method: Method, hosts: int,
           finished: Callable[[int], None] = lambda done: None) -> list[Replayed]:
    """Let the reads of a trace come at their times and wait for all to end.

    `finished` hears how many have ended. Raises ClusterError if a read fails. Raises Overloaded when more than
    MOST_RUNNING_PER_HOST for each of the `hosts` run at once, or if some still run so long after the last arrival
    as the whole trace took and DRAIN_SECONDS: then all that run are given up.
    """
    origin = time.monotonic() + LEAD_SECONDS
    reports: list[Future[ReadReport]] = []
    try:
        for read in reads:
            _sleep_until(origin + read.arrival)
            reports.append(system.read(read.client, file_of(read), method))
            done = [report for report in reports if report.done()]
            finished(len(done))
            _raise_failures(done)
            running = len(reports) - len(done)
            if running > MOST_RUNNING_PER_HOST * hosts:
                raise Overloaded(f"after {read.arrival:.0f} s, {running} reads are running; {len(done)} have ended")
        _drain(reports, origin + 2 * reads[-1].arrival + DRAIN_SECONDS, finished)
    except BaseException:
        system.abandon()
        raise
    return [Replayed(read, report.result().started - origin, report.result().finished - origin,
                     report.result())
            for read, report in zip(reads, reports, strict=True)]


def _drain(reports: Sequence[Future[ReadReport]], deadline: float, finished: Callable[[int], None]) -> None:
    while True:
        done, running = wait(reports, timeout=1.0, return_when=FIRST_EXCEPTION)
        finished(len(done))
        _raise_failures(done)
        if not running:
            return
        if time.monotonic() > deadline:
            raise Overloaded(f"{len(running)} of {len(reports)} reads have not ended long after the last was asked "
                             "for. The policies leave the network overloaded")


def _raise_failures(done: Sequence[Future[ReadReport]] | set[Future[ReadReport]]) -> None:
    for report in done:
        error = report.exception()
        if error is not None:
            raise error if isinstance(error, ClusterError) else ClusterError(str(error))


def _sleep_until(moment: float) -> None:
    while (left := moment - time.monotonic()) > 0:
        time.sleep(left)
