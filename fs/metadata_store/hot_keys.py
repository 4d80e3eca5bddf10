"""What makes a record safe to read at several servers: the owner grants copies for a short time, and takes them back
before it changes the record (Gray, Cheriton: "Leases", SOSP 1989). Pure: the time is handed in, in monotonic seconds.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

COPY_SECONDS = 0.5
"""How long a copy may be read. A change waits as long for a replica that does not answer."""
MOST_COUNTED = 256
MOST_COPIES = 1024


class Reads:
    """Counts the reads of addresses, in so many counters that any address with more than 1 in `most` reads has one
    (Misra, Gries: "Finding repeated elements", 1982). Thread-safe."""

    def __init__(self, most: int = MOST_COUNTED) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._counts: dict[int, int] = {}
        self._total = 0

    def note(self, address: int) -> None:
        with self._lock:
            self._total += 1
            if address in self._counts or len(self._counts) < self._most:
                self._counts[address] = self._counts.get(address, 0) + 1
            else:
                self._counts = {known: count - 1 for known, count in self._counts.items() if count > 1}

    def take(self) -> tuple[int, dict[int, int]]:
        """(all reads, reads by address) since the last time. An address has at most all / (most + 1) too few, and
        none too many."""
        with self._lock:
            found = self._total, self._counts
            self._total, self._counts = 0, {}
        return found


@dataclass
class Grants:
    """An owner's: who may read which record until when."""

    held: dict[bytes, dict[str, float]] = field(default_factory=dict)
    """By key and host."""
    unknown_until: float = 0.0
    """Until then a process before this one can have granted anything."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def grant(self, key: bytes, host: str, now: float) -> None:
        with self._lock:
            self.held.setdefault(key, {})[host] = now + COPY_SECONDS

    def returned(self, key: bytes, now: float) -> dict[str, float]:
        """Who is to give its copy back, and until when it may read it otherwise; nobody holds it afterwards."""
        if key not in self.held:
            return {}
        with self._lock:
            return {host: until for host, until in self.held.pop(key, {}).items() if until > now}

    def granted(self) -> list[bytes]:
        with self._lock:
            return list(self.held)


class Copies:
    """A replica's: what it may answer itself. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[bytes, tuple[bytes | None, float]] = {}
        self._drops = 0

    @property
    def drops(self) -> int:
        """Changes with each drop: an answer that was asked for before is not kept."""
        return self._drops

    def keep(self, key: bytes, value: bytes | None, asked_at: float, drops: int) -> None:
        """`drops` is what it was when the owner was asked, at `asked_at`."""
        with self._lock:
            if drops == self._drops:
                if len(self._kept) >= MOST_COPIES:
                    self._kept.clear()
                self._kept[key] = value, asked_at + COPY_SECONDS

    def get(self, key: bytes, now: float) -> tuple[bytes | None] | None:
        """(value or None), in a tuple; None: it has no copy."""
        kept = self._kept.get(key)
        return (kept[0],) if kept is not None and now < kept[1] else None

    def drop(self, key: bytes) -> None:
        with self._lock:
            self._drops += 1
            self._kept.pop(key, None)


def hottest(reads: dict[int, int], total: int, seconds: float, most: int = 64) -> dict[int, float]:
    """The reads/s of those that have at least a hundredth of all, `most` of them at most."""
    worth = sorted((address for address, count in reads.items() if 100 * count >= total),
                   key=lambda address: -reads[address])
    return {address: reads[address] / seconds for address in worth[:most]}
