"""For how long a controller may lead: its lease in etcd lives, and it is alive itself. Decisions without a clock."""

from __future__ import annotations

PATIENCE_SECONDS = 1.0
"""A controller that has said nothing for so long may not lead, and its lease is given back."""


class Tenure:
    """One controller's lease and lead. Times are in seconds, all of one clock.

    `until` never promises more than the lease and the controller's last beat bear, so when it is over nobody believes
    in it any more, and the lease may be given back.
    """

    def __init__(self) -> None:
        self.lease = 0
        self.generation = 0
        self._lease_ends = 0.0
        self._patience_ends = 0.0

    @property
    def until(self) -> float:
        """When the lead ends; 0.0 without one."""
        return min(self._lease_ends, self._patience_ends) if self.generation else 0.0

    def beat(self, sent_at: float) -> None:
        """The controller was alive at that time."""
        self._patience_ends = max(self._patience_ends, sent_at + PATIENCE_SECONDS)

    def leased(self, lease: int, asked_at: float, seconds: float) -> None:
        """etcd gave or renewed a lease, asked at that time, for so many seconds from when it was asked; 0: it has
        ended."""
        if lease != self.lease or not seconds:
            self.generation = 0
        self.lease = lease if seconds else 0
        self._lease_ends = asked_at + seconds

    def holds(self, lease: int, generation: int) -> bool:
        """Whether the leader's key, made with that lease at that revision, makes this controller lead."""
        self.generation = generation if lease and lease == self.lease else 0
        return bool(self.generation)

    def is_fit(self, now: float) -> bool:
        """Whether the controller may lead: it is alive, and has a lease."""
        return bool(self.lease) and now < min(self._lease_ends, self._patience_ends)

    def is_alive(self, now: float) -> bool:
        return now < self._patience_ends
