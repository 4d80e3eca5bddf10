"""Whether a host is still where it is known to be, when something says otherwise. No clock, no sockets.

A packet with a host's address that comes from elsewhere proves nothing: anybody can send one. So the known place is
asked by ARP, a few times; only if nobody answers there is the claim believed. A host has one such check at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

from speedwell.controller.topology.state import HostLocation

QUESTIONS = 3
QUESTION_SECONDS = 0.2
"""How long the known place has for each answer: a move takes `QUESTIONS` times this."""
PAUSE_SECONDS = 1.0
"""How long after an answer the same host is not asked again, whatever is claimed."""
ABSENCE_SECONDS = 10.0
"""How long a claim waits for a switch that cannot be asked: a switch that lost its controller is back in less."""


@dataclass(slots=True)
class _Check:
    known: HostLocation
    claimed: HostLocation | None
    """Where the host is said to be now; None if its place is just in doubt."""
    due_at: float
    believed_at: float
    """When a claim is believed although the switch of the known place cannot be asked."""
    asked: int = 0
    claims: int = 0
    """How many packets have said so and are not accounted for yet."""
    is_answered: bool = False


class HostMoves:
    """The open checks. Every method takes the time in seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._open: dict[str, _Check] = {}

    def __len__(self) -> int:
        return len(self._open)

    def doubt(self, known: HostLocation, claimed: HostLocation | None, now: float) -> None:
        """A packet says that a host is elsewhere, or (None) that it cannot be where it is known to be."""
        check = self._open.get(known.ip)
        if check is None or check.known != known:
            check = self._open[known.ip] = _Check(known, None, now, now + ABSENCE_SECONDS)
        if claimed is not None:
            check.claimed = claimed
            check.claims += 1

    def heard(self, host: HostLocation, now: float) -> int:
        """A packet came from a host at its place. Returns how many claims that refutes."""
        check = self._open.get(host.ip)
        if check is None or check.known != host:
            return 0
        refuted, check.claims, check.claimed = check.claims, 0, None
        if not check.is_answered:
            check.is_answered, check.asked, check.due_at = True, 0, now + PAUSE_SECONDS
        return refuted

    def to_ask(self, now: float) -> list[HostLocation]:
        """The places to ask now. Report each that was asked with `asked`."""
        due = []
        for ip, check in list(self._open.items()):
            if check.due_at > now:
                continue
            if check.is_answered and not check.claims:
                del self._open[ip]
                continue
            if check.is_answered:
                check.is_answered, check.believed_at = False, now + ABSENCE_SECONDS
            if check.asked < QUESTIONS:
                due.append(check.known)
        return due

    def asked(self, ip: str, now: float) -> None:
        """A question has left for the known place of a host."""
        check = self._open.get(ip)
        if check is not None:
            check.asked += 1
            check.due_at = now + QUESTION_SECONDS

    def silent(self, now: float) -> list[tuple[HostLocation, HostLocation | None]]:
        """Known and claimed places of hosts that did not answer; their checks are closed."""
        closed = [check for check in self._open.values() if not check.is_answered and check.due_at <= now
                  and (check.asked >= QUESTIONS or check.believed_at <= now)]
        for check in closed:
            del self._open[check.known.ip]
        return [(check.known, check.claimed) for check in closed]

    def close(self, ip: str) -> None:
        """A host went, or its place is known otherwise."""
        self._open.pop(ip, None)
