"""What a trace is replayed against."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from speedwell.evaluation.papers.reads import Method
from speedwell.evaluation.replay.scale import StoredFile

Progress = Callable[[str], None]


@dataclass(frozen=True)
class ReadReport:
    """What the reading host says of one read. Times are of the machine's monotonic clock, in seconds.

    `sources` names the hosts that the bytes came from; `steered` is whether the controller chose them. If so `paths`
    has for each the nodes from there to the reader, `estimated_bps` is the rate that the controller expected in all.
    """

    started: float
    finished: float
    size_bytes: int
    sources: tuple[str, ...] = ()
    steered: bool = False
    paths: tuple[tuple[str, ...], ...] = ()
    estimated_bps: float | None = None


class SystemUnderTest(Protocol):
    """A filesystem that runs on the hosts of an emulated fabric."""

    def details(self) -> dict[str, Any]:
        """What the manifest of a run should say of the system, as JSON values."""

    def prepare(self, files: Sequence[StoredFile], progress: Progress) -> None:
        """Make these files exist, on exactly the hosts they name, with the primary first.

        Files that were prepared before stay. Nothing of it is measured: it may use the management network.
        """

    def read(self, host: str, file: StoredFile, method: Method) -> Future[ReadReport]:
        """Start to read a whole file on a host, once, over the fabric; returns at once.

        The future fails with a ClusterError if the read does.
        """

    def settle(self) -> None:
        """Between two runs: return when the network is quiet and nothing remembers the run before."""

    def abandon(self) -> None:
        """Give up all reads that run; their futures fail. Further reads can be started then."""

    def close(self) -> None:
        """Stop what this object started. Never raises."""
