"""Rates of hosts' links from what the hosts themselves tell (Sinbad, section 5.2: measuring at the hosts).

Late, doubled and missing heartbeats are tolerated; what is from another time, from a host that is nobody, or says
what no link can carry changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from ryu.controller.event import EventBase

from speedwell.controller.policy.network.graph import Link
from speedwell.controller.topology.state import NetworkState

ALLOWED_SKEW_SECONDS = 30.0
"""How far a host's clock may be from ours."""
LEAST_SECONDS = 0.2
"""Two heartbeats that are nearer tell nothing of a rate."""
MOST_OF_CAPACITY = 1.5
"""A counter that grew by more than this part of what the link can carry is no counter of that link."""
MAX_SENDERS = 16
"""Processes of one host that may tell of its link."""


@dataclass(frozen=True, slots=True)
class HostCounted:
    """A heartbeat that was signed correctly. Times in seconds: Unix time, and one that is never set."""

    host: str
    sender: int
    sent_at: float
    uptime: float
    received_bytes: int
    sent_bytes: int


@dataclass(eq=False)
class EventHostCounted(EventBase):
    """A host tells what its link has carried. Sent by whoever takes reports."""

    counted: HostCounted


class RefusedHeartbeat(Exception):
    """It changes nothing. `reason` says why in one word, for counters."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class HostRates:
    """The latest heartbeat of each host's senders, and what the next one says about rates."""

    def __init__(self, state: NetworkState) -> None:
        self._state = state
        self._latest: dict[str, dict[int, HostCounted]] = {}

    def take(self, counted: HostCounted, now_unix: float) -> dict[Link, float]:
        """What the host's link carried since the last heartbeat, in bits/s, by direction; nothing for the first one
        of a sender, and for counters that began anew. Raises RefusedHeartbeat."""
        location = self._state.hosts.get(counted.host)
        if location is None:
            raise RefusedHeartbeat("unknown-host")
        if abs(counted.sent_at - now_unix) > ALLOWED_SKEW_SECONDS:
            raise RefusedHeartbeat("stale")
        senders = self._latest.setdefault(counted.host, {})
        self._forget(senders, now_unix)
        last = senders.get(counted.sender)
        if last is None and len(senders) >= MAX_SENDERS:
            raise RefusedHeartbeat("crowded")
        if last is not None and counted.uptime - last.uptime < LEAST_SECONDS:
            raise RefusedHeartbeat("late")
        rates = {} if last is None else self._rates(location.dpid, last, counted)
        senders[counted.sender] = counted
        return rates

    def _rates(self, dpid: str, last: HostCounted, counted: HostCounted) -> dict[Link, float]:
        seconds = counted.uptime - last.uptime
        network, rates = self._state.network, {}
        for link, before, after in (((counted.host, dpid), last.sent_bytes, counted.sent_bytes),
                                    ((dpid, counted.host), last.received_bytes, counted.received_bytes)):
            if after < before:
                return {}
            rates[link] = 8 * (after - before) / seconds
            if network.has_link(link) and rates[link] > MOST_OF_CAPACITY * network.capacity_bps(link):
                raise RefusedHeartbeat("absurd")
        return {link: rate_bps for link, rate_bps in rates.items() if network.has_link(link)}

    @staticmethod
    def _forget(senders: dict[int, HostCounted], now_unix: float) -> None:
        """Senders whose heartbeats could not be taken twice any more."""
        for sender, last in list(senders.items()):
            if now_unix - last.sent_at > 2 * ALLOWED_SKEW_SECONDS:
                del senders[sender]
