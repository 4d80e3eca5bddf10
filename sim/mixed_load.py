"""A mixed load, the systems that may carry it, and what became of it and what their decisions cost."""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from speedwell.sim.workload import Read


@dataclass(frozen=True)
class Systems:
    """Which are on, by which policy; an empty name is off."""

    reads: str = "mayflower-srpt"
    coflows: str = "coflow-plus"
    placements: str = "sinbad-plus"
    turns: str = "xco-plus"
    metadata: str = "metaflow"


@dataclass(frozen=True)
class Transfer:
    """Something that a client asks for: the reads that fan in together, a write, or background between two hosts."""

    kind: str
    arrival: float
    reads: tuple[Read, ...] = ()
    writer: str = ""
    client: str = ""
    size_bits: float = 0.0


@dataclass(frozen=True)
class Messages:
    """Metadata requests and short flows a second over the whole fabric, and what one needs. Seconds, bits.

    `buffer` is what a queue of a port holds, as time of the port.
    """

    metadata_rate: float = 1600.0
    short_rate: float = 200.0
    service: float = 0.5e-3
    stores: int = 4
    round_trip: float = 0.2e-3
    short_bits: float = 20e3 * 8
    buffer: float = 1e-3
    every: float = 0.02


@dataclass
class Outcome:
    """What became of a run: by kind, when each was asked for and how long it took, in seconds; what each client's
    transfers had to carry, in bits, and how long they took together; the mean use of links between switches; and how
    many calls each system's policy had, and the processor time that they took, in seconds, from the warm-up until
    nothing more comes."""

    seconds: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    bits: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    waited: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    link_use: float = 0.0
    decided: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    decisions: Counter[str] = field(default_factory=Counter)

    @property
    def fairness(self) -> float:
        """Jain's index of the rates that clients have had: 1 if all had the same, 1/n if one of n had all."""
        rates = np.array([self.bits[client] / seconds for client, seconds in self.waited.items()])
        return float(rates.sum() ** 2 / (len(rates) * (rates ** 2).sum())) if len(rates) else math.nan


class Timed:
    """A policy whose calls are counted, and their processor time."""

    def __init__(self, policy: object) -> None:
        self.__dict__.update(_policy=policy, seconds=0.0, calls=0)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._policy, name)
        return self.timed(found) if callable(found) else found

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._policy, name, value)

    def timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The same call, which counts as one of the policy's."""
        def timed(*arguments: Any) -> Any:
            began = time.thread_time()
            try:
                return call(*arguments)
            finally:
                self.__dict__["seconds"] += time.thread_time() - began
                self.__dict__["calls"] += 1
        return timed
