"""Speedwell and HDFS on the same emulated hosts, one idle while the other is measured (Mayflower, figure 8)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from speedwell.cluster import supervisor
from speedwell.cluster.fabric_settings import read_settings
from speedwell.evaluation.hdfs.libraries import Libraries
from speedwell.evaluation.hdfs.system import Hdfs
from speedwell.evaluation.neighbours import introduce
from speedwell.evaluation.papers.mayflower import HDFS_METHODS
from speedwell.evaluation.papers.reads import Method
from speedwell.evaluation.replay.scale import Scale, StoredFile
from speedwell.evaluation.replay.speedwell import Speedwell
from speedwell.evaluation.replay.system import Progress, ReadReport, SystemUnderTest


class SpeedwellAndHdfs:
    """Both systems as one: the method says which of them reads. Both hold every file on the same hosts."""

    def __init__(self, speedwell: Speedwell, hdfs: Hdfs) -> None:
        self._speedwell = speedwell
        self._hdfs = hdfs

    def details(self) -> dict[str, Any]:
        """See `SystemUnderTest`."""
        return self._speedwell.details() | self._hdfs.details()

    def prepare(self, files: Sequence[StoredFile], progress: Progress) -> None:
        """See `SystemUnderTest`."""
        self._speedwell.prepare(files, progress)
        self._hdfs.prepare(files, progress)

    def read(self, host: str, file: StoredFile, method: Method) -> Future[ReadReport]:
        """See `SystemUnderTest`."""
        system: SystemUnderTest = self._hdfs if method in HDFS_METHODS else self._speedwell
        return system.read(host, file, method)

    def settle(self) -> None:
        """See `SystemUnderTest`. The controller's counters are the same for both."""
        self._speedwell.settle()

    def abandon(self) -> None:
        """See `SystemUnderTest`."""
        self._speedwell.abandon()
        self._hdfs.abandon()

    def close(self) -> None:
        """See `SystemUnderTest`."""
        with ExitStack() as steps:
            steps.callback(self._speedwell.close)
            steps.callback(self._hdfs.close)


@contextmanager
def speedwell_and_hdfs(scale: Scale, oversubscription: float, progress: Progress,
                       libraries: Libraries) -> Iterator[SystemUnderTest]:
    """Both on the scale's fabric for the time of the `with` block."""
    fabric = scale.fabric(oversubscription)
    settings = read_settings(fabric=fabric, identity=False, poll_interval_seconds=scale.poll_interval_seconds,
                             queue_packets=scale.queue_packets)
    with ExitStack() as cleanup:
        description = supervisor.up(settings, progress)
        cleanup.callback(supervisor.down)
        introduce(fabric, lambda host: int(description["hosts"][host]["pid"]))
        hdfs = Hdfs(description, fabric, libraries, Path(description["directory"]) / "hdfs")
        cleanup.callback(hdfs.close)
        hdfs.start(progress)
        speedwell = Speedwell(description, scale.poll_interval_seconds)
        cleanup.callback(speedwell.close)
        yield SpeedwellAndHdfs(speedwell, hdfs)
