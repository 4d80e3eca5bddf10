"""The paces of TCP senders: set in the worker's thread, and tried again where there is no connection yet."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from speedwell.coflow.report import Flow
from speedwell.host_agent import netlink
from speedwell.host_agent.connections import connections, pace
from speedwell.host_agent.netlink import NETLINK_SOCK_DIAG

Rates = dict[Flow, int]
Attempt = tuple[Rates, set[Flow]]
"""The rates that were set, and the flows that have a connection."""


class Paces:
    """For the use of one thread. Rates are in bits a second; 0: no limit."""

    def __init__(self, worker: ThreadPoolExecutor, attempts: int, ended: Callable[[Future[Attempt]], object]) -> None:
        """`ended` is told of each attempt in the worker's thread."""
        self._worker = worker
        self._attempts = attempts
        self._ended = ended
        self._set: Rates = {}
        self._asked: dict[Flow, tuple[int, int]] = {}
        """Rate, and attempts left."""
        self._attempt: Future[Attempt] | None = None

    @property
    def is_waiting(self) -> bool:
        """For an attempt to end, or for a connection to begin."""
        return bool(self._asked)

    def ask(self, flow: Flow, rate_bps: int) -> None:
        """Have a flow paced by the next attempts, unless it is already."""
        if flow in self._asked or self._set.get(flow, 0) != rate_bps:
            self._asked[flow] = rate_bps, self._attempts

    def attempt(self) -> int:
        """Begin an attempt at all that wait, unless one is under way; how many flows the one before paced."""
        count = 0
        if self._attempt is not None:
            if not self._attempt.done():
                return 0
            if not self._attempt.exception():
                count = self._take(*self._attempt.result())
            self._attempt = None
            self._asked = {flow: (rate_bps, left) for flow, (rate_bps, left) in self._asked.items() if left}
        if self._asked:
            self._asked = {flow: (rate_bps, left - 1) for flow, (rate_bps, left) in self._asked.items()}
            rates = {flow: rate_bps for flow, (rate_bps, _) in self._asked.items()}
            self._attempt = self._worker.submit(_pace, rates)
            self._attempt.add_done_callback(self._ended)
        return count

    def _take(self, rates: Rates, live: set[Flow]) -> int:
        self._set = {flow: rate_bps for flow, rate_bps in (self._set | rates).items() if flow in live}
        self._asked = {flow: asked for flow, asked in self._asked.items() if rates.get(flow) != asked[0]}
        return len(rates)


def _pace(rates: Rates) -> Attempt:
    with netlink.connect(NETLINK_SOCK_DIAG) as diagnostics:
        diagnostics.settimeout(1.0)
        live = {each.flow: each.inode for each in connections(diagnostics)}
    return {flow: rate_bps for flow, rate_bps in rates.items()
            if flow in live and pace(live[flow], rate_bps)}, set(live)
