"""When to probe which port, and what the probes that came back, or did not, say about links. No clock, no sockets.

Each probe has an epoch of its own. An epoch counts once, and a link that is not known yet is believed only on one of
the last few probes of a port: what a host recorded is of no use later.

A port is probed a few times as soon as it is up, then once per interval, switches spread evenly. The interval grows
with the number of ports so that the packets per second stay bounded. A link is only suspected of being dead after
several probes in a row that really left did not come back; whoever suspects it asks both switches before taking it
out, so neither a busy nor a stalled controller ever drops a live link.
"""

from __future__ import annotations

import heapq
import itertools
import zlib
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Literal

from speedwell.controller.topology.state import PortKey

FIRST_PROBES_SECONDS = (0.0, 0.2, 0.6)
"""When a port that came up is probed, before its regular turn."""
DETERMINED_AFTER_SECONDS = 1.0
"""How long after its first probe a port from which nothing was heard is taken for one that leads to hosts."""
RECOVERED_AFTER_SECONDS = 0.25
"""The same for a port that by the switch's entries, from an earlier controller, leads to hosts or to nobody."""
STALL_SECONDS = 0.4
"""A gap between two ticks that means that answers may still lie unread."""
EDGE_INTERVALS = 5
"""Ports that lead to hosts are probed less often by this factor."""
FRESH_PROBES = 3
"""How many of a port's last probes may tell of a new link. Not seconds: a controller that stalled reads late."""


@dataclass(slots=True)
class _Port:
    turn: int = 0
    """Distinguishes the port's current place in the queue from earlier ones."""
    probes_sent: int = 0
    first_sent_at: float = 0.0
    unanswered: int = 0
    is_edge: bool = False
    far_end: PortKey | None = None
    """Where this port's probes arrive."""
    heard: PortKey | None = None
    """Whose probes arrive at this port."""
    fresh_epochs: deque[int] = field(default_factory=lambda: deque(maxlen=FRESH_PROBES))
    received_epoch: int = 0
    """The newest epoch of this port's probes that was received anywhere."""


@dataclass(slots=True)
class ProbeOutcome:
    """What an arriving probe changed."""

    joined: list[tuple[PortKey, PortKey]] = field(default_factory=list)
    parted: list[PortKey] = field(default_factory=list)
    """Ports, one per link, whose link is no more because their probes arrive elsewhere now."""
    loose: list[PortKey] = field(default_factory=list)
    """Ports that had a part in such a link and lead nowhere known any more."""
    refused: Literal["replayed", "host", "former-host"] | None = None
    """Why the probe changed nothing: its epoch was received before or is long gone, or a host is, or was, at one
    end."""
    doubtful: list[PortKey] = field(default_factory=list)
    """The ports at which hosts are, if that is why it was refused: are they still there?"""


class Probing:
    """The schedule and the links of all ports. Every method takes the time in seconds of one monotonic clock."""

    def __init__(self, interval_seconds: float, probes_per_second: float, misses: int) -> None:
        self.interval_seconds = interval_seconds
        self.probes_per_second = probes_per_second
        self.misses = misses
        self._ports: dict[PortKey, _Port] = {}
        self._queue: list[tuple[float, int, PortKey]] = []
        self._undetermined: set[PortKey] = set()
        self._epochs = itertools.count(1)
        self._allowance = 0.0
        self._last_tick: float | None = None
        self._trusted_from = 0.0

    @property
    def current_interval_seconds(self) -> float:
        """The time between two probes of a port that leads to a switch."""
        return max(self.interval_seconds, len(self._ports) / self.probes_per_second)

    # --- ports ---

    def add_port(self, key: PortKey, now: float) -> None:
        """A port is up. Adding it again begins anew what is known of it."""
        self.remove_port(key)
        self._ports[key] = _Port()
        self._undetermined.add(key)
        self._schedule(key, now)

    def remove_port(self, key: PortKey) -> PortKey | None:
        """A port is down or gone. Returns the port at the other end if they were joined."""
        if key not in self._ports:
            return None
        other = self.joined_to(key)
        heard = self._ports[key].heard
        self._unhear(key)
        if heard is not None:
            self._unhear(heard)
        del self._ports[key]
        self._undetermined.discard(key)
        return other

    def joined_to(self, key: PortKey) -> PortKey | None:
        """The port at the other end, if probes arrive both ways."""
        port = self._ports.get(key)
        return port.far_end if port is not None and port.far_end == port.heard else None

    def _unhear(self, source: PortKey) -> None:
        """The probes of `source` no longer arrive where they did."""
        port = self._ports[source]
        if port.far_end is not None:
            self._ports[port.far_end].heard = None
        port.far_end = None
        port.unanswered = 0

    # --- the schedule ---

    def tick(self, now: float) -> list[PortKey]:
        """The ports to probe now. Call it often; report each with `sent` if it really left, else with `not_sent`."""
        elapsed = now - self._last_tick if self._last_tick is not None else 0.0
        if elapsed > STALL_SECONDS:
            self._trusted_from = now + DETERMINED_AFTER_SECONDS
        self._last_tick = now
        burst = max(8.0, self.probes_per_second / 10)
        self._allowance = min(burst, self._allowance + elapsed * self.probes_per_second)
        due = []
        while self._queue and self._queue[0][0] <= now and self._allowance >= 1:
            _, turn, key = heapq.heappop(self._queue)
            port = self._ports.get(key)
            if port is not None and port.turn == turn:
                self._allowance -= 1
                due.append(key)
        return due

    def begin_epoch(self, key: PortKey) -> int:
        """The epoch for a probe of this port that is about to leave."""
        epoch = next(self._epochs)
        if key in self._ports:
            self._ports[key].fresh_epochs.append(epoch)
        return epoch

    def sent(self, key: PortKey, now: float) -> None:
        """A probe was handed to the switch's connection."""
        port = self._ports.get(key)
        if port is None:
            return
        if port.probes_sent == 0:
            port.first_sent_at = now
        port.probes_sent += 1
        if port.far_end is not None:
            port.unanswered += 1
        self._schedule(key, now)

    def not_sent(self, key: PortKey, now: float) -> None:
        """The switch's connection is backed up: nothing left, so nothing may be missed."""
        if key in self._ports:
            self._schedule(key, now)

    def _schedule(self, key: PortKey, now: float) -> None:
        port = self._ports[key]
        if port.probes_sent < len(FIRST_PROBES_SECONDS):
            before = FIRST_PROBES_SECONDS[max(port.probes_sent - 1, 0)]
            due = now + FIRST_PROBES_SECONDS[port.probes_sent] - before
        else:
            interval = self.current_interval_seconds * (EDGE_INTERVALS if port.is_edge else 1)
            # The first regular turn is anywhere in the interval, so that switches that came together spread out. The
            # ports of one have theirs together: their probes take one message's way.
            spread = zlib.crc32(key[0].encode()) / 2**32 if port.probes_sent == len(FIRST_PROBES_SECONDS) else 1.0
            due = now + interval * max(spread, 0.1)
        self._enqueue(key, due)

    def _enqueue(self, key: PortKey, due: float) -> None:
        """Set a port's turn, instead of the one it had."""
        port = self._ports[key]
        port.turn += 1
        heapq.heappush(self._queue, (due, port.turn, key))

    # --- what comes back ---

    def received(self, source: PortKey, destination: PortKey, epoch: int, now: float,
                 has_hosts: Callable[[PortKey], bool] = lambda key: False,
                 had_hosts: Callable[[PortKey], bool] = lambda key: False) -> ProbeOutcome:
        """A genuine probe of `source` arrived at `destination`. Ports where hosts are, or were since they are up, get
        no link on its word."""
        heard = ProbeOutcome()
        if source == destination or source not in self._ports or destination not in self._ports:
            return heard
        sender, receiver = self._ports[source], self._ports[destination]
        is_known = sender.far_end == destination
        if epoch <= sender.received_epoch or not (is_known or epoch in sender.fresh_epochs):
            heard.refused = "replayed"
            return heard
        if is_known:
            sender.received_epoch = epoch
            sender.unanswered = 0
            return heard
        heard.doubtful = [key for key in (source, destination) if has_hosts(key)]
        if heard.doubtful:
            heard.refused = "host"
            return heard
        if had_hosts(source) or had_hosts(destination):
            heard.refused = "former-host"
            return heard
        sender.received_epoch = epoch
        if receiver.heard is not None and self._ports[receiver.heard].unanswered == 0:
            # Two speak into one port, through a hub perhaps: the first one stays.
            return heard
        left = [key for gone in (source, receiver.heard) if gone is not None
                for key in (gone, self._ports[gone].far_end) if key is not None]
        for gone in (source, receiver.heard):
            if gone is not None:
                if self.joined_to(gone) is not None:
                    heard.parted.append(gone)
                self._unhear(gone)
        sender.far_end, receiver.heard = destination, source
        heard.loose = [key for key in left if self._ports[key].far_end is None and self._ports[key].heard is None]
        for key in (source, destination):
            self._undetermined.discard(key)
            self._ports[key].is_edge = False
        if self.joined_to(source) is not None:
            heard.joined.append((source, destination))
        else:
            # The other direction need not wait for its turn.
            self._enqueue(destination, now)
        return heard

    def turned_edge(self, now: float, recovered: Collection[PortKey] = ()) -> list[PortKey]:
        """Ports that had the time to show a switch behind them and did not, since the last call. Those that are
        `recovered` need less of it."""
        if now < self._trusted_from:
            return []
        found = [key for key in self._undetermined
                 if (port := self._ports[key]).probes_sent >= 2 and now - port.first_sent_at >= (
                     RECOVERED_AFTER_SECONDS if key in recovered else DETERMINED_AFTER_SECONDS)]
        for key in found:
            self._undetermined.discard(key)
            self._ports[key].is_edge = True
        return found

    def suspects(self) -> list[PortKey]:
        """Ports whose last probes, more than `misses` in a row, did not arrive where earlier ones did."""
        return [key for key in self._ports if self.is_suspect(key)]

    def is_suspect(self, key: PortKey) -> bool:
        port = self._ports.get(key)
        return port is not None and port.far_end is not None and port.unanswered > self.misses

    def far_end(self, key: PortKey) -> PortKey | None:
        """Where a port's probes arrive."""
        port = self._ports.get(key)
        return port.far_end if port else None
