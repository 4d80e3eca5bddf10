"""What whoever plays an experiment on an emulated fabric may choose."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Emulation:
    """Runs of each method at each point, reads or coflows of a run, Mbit/s of a host's link, and how much larger
    files are and rarer they come. None: as the experiment has it."""

    runs: int | None = None
    reads: int | None = None
    coflows: int | None = None
    host_mbps: float | None = None
    slowdown: float | None = None
