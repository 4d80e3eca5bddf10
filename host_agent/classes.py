"""The classes and paces of flows that a host sends: set where there is a connection, or as soon as there is one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from math import inf
from queue import Empty, SimpleQueue

from speedwell.coflow.report import TCP, Flow
from speedwell.host_agent import netlink
from speedwell.host_agent.channel import CLASS_LEASE_SECONDS, PRIORITIES, FlowClass
from speedwell.host_agent.connections import connections, pace
from speedwell.host_agent.marks import Beginnings, Marks
from speedwell.host_agent.netlink import NETLINK_SOCK_DIAG
from speedwell.host_agent.uplink import mark_of


class Classes:
    """For the use of one thread. Nothing is tried again but when a flow is told again, or its connection begins."""

    def __init__(self, worker: ThreadPoolExecutor, paced: Callable[[Future[int]], object]) -> None:
        """`paced` is told in the worker's thread how many flows were paced. Raises KernelRefused."""
        self._marks, self._beginnings = Marks(), Beginnings()
        self._worker, self._paced = worker, paced
        self._told: dict[Flow, tuple[FlowClass, float]] = {}
        """With when the lease ends."""
        self._missing: set[Flow] = set()
        """Those of them that have no connection."""
        self._to_pace: SimpleQueue[tuple[Flow, int]] = SimpleQueue()
        self._paces: dict[Flow, int] = {}
        """Bits a second, of connections that are limited; the worker's."""
        self._due = inf
        self.socket = self._beginnings.socket
        """Readable where connections begin that `hear` wants to know of."""

    def tell(self, classes: Iterable[FlowClass], now: float) -> int:
        """How many connections have their class by it. Raises KernelRefused, OSError."""
        until, count = now + CLASS_LEASE_SECONDS, 0
        self._beginnings.want(True)     # before we look: what begins meanwhile is not missed
        for each in classes:
            before, _ = self._told.get(each.flow, (None, 0.0))
            self._told[each.flow] = each, until
            if each != before or each.flow in self._missing:
                count += self._set(each)
        self._due = min(self._due, until)
        self._beginnings.want(bool(self._missing))
        return count

    def hear(self) -> int:
        """Connections have begun: how many of them have their class by it. Raises KernelRefused, OSError."""
        count = sum(self._set(self._told[flow][0]) for flow in self._beginnings.receive() if flow in self._missing)
        self._beginnings.want(bool(self._missing))
        return count

    def end_leases(self, now: float) -> None:
        """Raises KernelRefused."""
        if now < self._due:
            return
        for flow in [flow for flow, (_, until) in self._told.items() if until <= now]:
            self._set(FlowClass(flow, PRIORITIES - 1))
        self._due = min((until for _, until in self._told.values()), default=inf)

    def _set(self, wanted: FlowClass) -> bool:
        is_there = self._marks.set(wanted.flow, mark_of(wanted.priority))
        if wanted.priority == PRIORITIES - 1 and not wanted.pacing_bps:     # as what nobody has named
            self._told.pop(wanted.flow, None)
        if is_there or wanted.flow not in self._told:
            self._missing.discard(wanted.flow)
        else:
            self._missing.add(wanted.flow)
        if is_there and wanted.flow.protocol == TCP and self._paces.get(wanted.flow, 0) != wanted.pacing_bps:
            self._to_pace.put((wanted.flow, wanted.pacing_bps))
            self._worker.submit(self._pace).add_done_callback(self._paced)
        return is_there

    def _pace(self) -> int:
        """All that are to be paced by now, in one walk through the processes."""
        wanted: dict[Flow, int] = {}
        with suppress(Empty):
            while True:
                flow, rate_bps = self._to_pace.get_nowait()
                wanted[flow] = rate_bps
        if not wanted:
            return 0
        with netlink.connect(NETLINK_SOCK_DIAG) as diagnostics:
            diagnostics.settimeout(1.0)
            inodes = {each.flow: each.inode for each in connections(diagnostics)}
        paced = pace({inodes[flow]: rate_bps for flow, rate_bps in wanted.items() if flow in inodes})
        is_paced = {flow: rate_bps for flow, rate_bps in wanted.items() if inodes.get(flow) in paced}
        self._paces = {flow: rate_bps for flow, rate_bps in (self._paces | is_paced).items()
                       if rate_bps and flow in inodes and (flow in is_paced or flow not in wanted)}
        return len(is_paced)
