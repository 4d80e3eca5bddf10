"""Counters of one client, safe to bump from any thread."""

import threading
from dataclasses import dataclass, field


@dataclass
class Counters:
    """What a client has done since it was made; bytes are payload bytes."""

    bytes_read: int = 0
    bytes_appended: int = 0
    steered_reads: int = 0            # streams that the controller placed
    split_reads: int = 0              # those of them that came from several replicas at once
    waited_reads: int = 0             # those of them that had to wait for their turn (mayflower-plus)
    later_parts: int = 0              # connections that such reads were given under way
    moved_parts: int = 0              # connections whose rest was given to a faster one
    nearest_reads: int = 0            # streams from the nearest replica, fallbacks included
    controller_fallbacks: int = 0     # a controller is configured, but the nearest replica was used instead
    controller_requests: int = 0
    controller_seconds: float = 0.0   # time reads waited for the controller, in all
    small_reads: int = 0              # requests outside a stream
    damaged_blocks: int = 0           # received blocks that differed from their sum
    cache_hits: int = 0               # blocks that came from the cache on the local disk
    cache_misses: int = 0             # blocks that had to be fetched for it
    cache_damaged: int = 0            # blocks in it that differed from their sum
    cache_failures: int = 0           # blocks that could not be read, written or removed there
    replica_failures: int = 0         # a replica that did not serve or stopped in the middle
    append_requests: int = 0
    versions_written: int = 0         # published changes other than appends
    bytes_written: int = 0            # in them
    replicas_dropped: int = 0         # replicas that did not take an append or a version


@dataclass
class Metrics(Counters):
    """`Counters` that threads share. Read an attribute at any time, or all at once with `snapshot()`."""

    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def add(self, **amounts: float) -> None:
        """Add to the named counters: `metrics.add(bytes_read=131072)`."""
        with self._lock:
            for name, amount in amounts.items():
                setattr(self, name, getattr(self, name) + amount)

    def snapshot(self) -> dict[str, float]:
        """All counters by name, taken at one moment."""
        with self._lock:
            return {name: getattr(self, name) for name in Counters.__dataclass_fields__}
