"""Which of several controllers decides: the one with the lease in etcd. What follows from that, without a socket."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass


def now() -> float:
    """Seconds on a clock that all processes of a machine share, and that a suspended machine does not stop."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class Standing:
    """What the keeper of the lease says: the URL of who leads, empty if nobody is known, and the generation of its
    lease, which is higher than that of any leader before. `until` is when our own lead ends, 0.0 if we do not lead.
    `standbys` are the URLs of all others.
    """

    leader: str = ""
    generation: int = 0
    until: float = 0.0
    standbys: tuple[str, ...] = ()

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def decode(cls, line: bytes) -> Standing:
        said = json.loads(line)
        return cls(**said | {"standbys": tuple(said["standbys"])})


@dataclass(frozen=True, slots=True)
class Role:
    """What a controller asks to be at a switch (OpenFlow 1.3.5, section 6.3.6). The switch refuses one of a
    lower generation than it has seen."""

    is_master: bool
    generation: int


class Leadership:
    """Whether this controller decides: always if it `is_alone`, else while the keeper of its lease says so.

    Who has led and does so no more is deposed for good: what it believed may be wrong, and it must begin anew.
    """

    def __init__(self, is_alone: bool = True, clock: Callable[[], float] = now) -> None:
        self.is_alone = is_alone
        self.on_change: list[Callable[[], None]] = []
        """Called when the role at the switches is another one."""
        self._clock = clock
        self._standing = Standing(until=math.inf if is_alone else 0.0)
        self._own_generation = 0

    @property
    def leads(self) -> bool:
        return self.is_alone or self._clock() < self._standing.until

    @property
    def is_deposed(self) -> bool:
        return bool(self._own_generation) and not self.leads

    @property
    def leader(self) -> str:
        """The URL of who leads; empty if nobody is known."""
        return "" if self.is_deposed else self._standing.leader

    @property
    def standbys(self) -> tuple[str, ...]:
        """The URLs of those that would take over, if this one leads."""
        return self._standing.standbys if self.leads else ()

    @property
    def role(self) -> Role | None:
        """What to ask to be at every switch; None: ask for nothing."""
        if self.is_alone or not self._standing.generation or self.is_deposed:
            return None
        return Role(self.leads, self._standing.generation)

    def told(self, standing: Standing) -> None:
        """Take in what the keeper says."""
        if self.is_deposed:
            return
        before = self.role
        if self._own_generation and standing.generation != self._own_generation:
            standing = Standing()
        self._standing = standing
        if self.leads:
            self._own_generation = standing.generation
        if self.role not in (None, before):
            for each in self.on_change:
                each()

    def resign(self) -> None:
        """Decide nothing any more."""
        self._standing = Standing()
