"""One change of a flow at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from eventlet.event import Event

from speedwell.controller.policy.network.five_tuple import FiveTuple


class FlowLocks:
    """Whoever has waited longest for a flow is next. `held` are the flows that are being changed, and who waits."""

    def __init__(self) -> None:
        self.held: dict[FiveTuple, deque[Event]] = {}

    @contextmanager
    def holding(self, flows: Iterable[FiveTuple]) -> Iterator[None]:
        """All of these. In one order, so that nobody waits for whoever waits for him."""
        locked: list[FiveTuple] = []
        try:
            for flow in sorted(flows):
                self._lock(flow)
                locked.append(flow)
            yield
        finally:
            for flow in locked:
                self._unlock(flow)

    def _lock(self, flow: FiveTuple) -> None:
        waiting = self.held.get(flow)
        if waiting is None:
            self.held[flow] = deque()
            return
        turn = Event()
        waiting.append(turn)
        try:
            turn.wait()
        except BaseException:
            if turn in waiting:
                waiting.remove(turn)
            else:
                self._unlock(flow)      # its turn had come
            raise

    def _unlock(self, flow: FiveTuple) -> None:
        if waiting := self.held[flow]:
            waiting.popleft().send()
        else:
            del self.held[flow]
