"""Rates in bits/s from the counters that switches report, and where the applications find the latest ones.

Counters are compared over the switch's own durations, so neither a late reply nor a busy controller distorts a rate.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable
from dataclasses import dataclass, field

from controller.errors import NoSuchPath
from controller.network_state import NetworkState, PortKey
from controller.policy.network import Link

WINDOW_SECONDS = 1.8
"""How far back a shown rate looks: Open vSwitch brings flow counters up to date every half second only."""
HISTORY = 16
"""Readings kept at most, however often a switch is polled."""
HEADER_BYTES = 66
"""Ethernet, IPv4 and TCP with timestamps: what a packet of a read carries besides the file's bytes."""


class Counter:
    """One growing byte counter: its total since it was first seen, and its rate."""

    def __init__(self, starts_at_zero: bool = False) -> None:
        """`starts_at_zero` says that the first reading counts from the counter's own birth (a flow entry's)."""
        self.total = 0
        self._starts_at_zero = starts_at_zero
        self._last_raw: int | None = None
        self._readings: deque[tuple[float, int]] = deque(maxlen=HISTORY)

    def read(self, value: int, duration_seconds: float) -> None:
        """Take in a reading: the counter's value, and the age of what it counts by the switch's clock.

        A value or an age below the last one means that the counter began anew: the total goes on, the rate
        starts over.
        """
        last_duration = self._readings[-1][0] if self._readings else 0.0
        if self._last_raw is None:
            if self._starts_at_zero:
                self._readings.append((0.0, 0))
                self.total = value
        elif value < self._last_raw or duration_seconds < last_duration:
            self._readings.clear()
            if self._starts_at_zero:
                self._readings.append((0.0, self.total))
            self.total += value
        else:
            self.total += value - self._last_raw
        self._last_raw = value
        if self._readings and duration_seconds == self._readings[-1][0]:
            self._readings[-1] = (duration_seconds, self.total)
        else:
            self._readings.append((duration_seconds, self.total))
        while len(self._readings) > 2 and self._readings[1][0] <= duration_seconds - WINDOW_SECONDS:
            self._readings.popleft()

    @property
    def rate_bps(self) -> float | None:
        """Bits/s over the window, or since the counter began if that is later; None before two readings."""
        return self._since(0)

    @property
    def latest_bps(self) -> float | None:
        """Bits/s between the last two readings: less steady, but it tells of the last poll interval alone."""
        return self._since(-2)

    def _since(self, index: int) -> float | None:
        if len(self._readings) < 2:
            return None
        (begin, before), (end, now) = self._readings[index], self._readings[-1]
        return 8 * (now - before) / (end - begin)


class PortCounters:
    """A port's two directions as its switch counts them."""

    def __init__(self) -> None:
        self.received = Counter()
        self.sent = Counter()

    def read(self, received_bytes: int, sent_bytes: int, duration_seconds: float) -> None:
        self.received.read(received_bytes, duration_seconds)
        self.sent.read(sent_bytes, duration_seconds)


class FlowCounters:
    """The entry of one flow. `transferred_bytes` is without headers."""

    def __init__(self) -> None:
        self._bytes = Counter(starts_at_zero=True)
        self._packets = Counter(starts_at_zero=True)

    def read(self, byte_count: int, packet_count: int, duration_seconds: float) -> None:
        self._bytes.read(byte_count, duration_seconds)
        self._packets.read(packet_count, duration_seconds)

    @property
    def transferred_bytes(self) -> int:
        return max(self._bytes.total - HEADER_BYTES * self._packets.total, 0)

    @property
    def rate_bps(self) -> float | None:
        """Bits/s on the wire over the window."""
        return self._bytes.rate_bps

    @property
    def latest_bps(self) -> float | None:
        """Bits/s on the wire in the last poll interval."""
        return self._bytes.latest_bps


@dataclass
class Measurements:
    """The latest counters of ports, by (dpid, port number), and of flows, by cookie. The monitor writes them."""

    ports: dict[PortKey, PortCounters] = field(default_factory=dict)
    flows: dict[int, FlowCounters] = field(default_factory=dict)
    complete_at: float | None = None
    """When every connected switch had answered a poll, on the monotonic clock."""

    def read_port(self, key: PortKey, received_bytes: int, sent_bytes: int, duration_seconds: float) -> None:
        self.ports.setdefault(key, PortCounters()).read(received_bytes, sent_bytes, duration_seconds)

    def read_flow(self, cookie: int, byte_count: int, packet_count: int, duration_seconds: float) -> None:
        self.flows.setdefault(cookie, FlowCounters()).read(byte_count, packet_count, duration_seconds)

    def keep(self, ports: Iterable[PortKey], flows: Iterable[int]) -> None:
        """Forget the ports and flows that are not among these."""
        kept_ports, kept_flows = set(ports), set(flows)
        self.ports = {key: counters for key, counters in self.ports.items() if key in kept_ports}
        self.flows = {cookie: counters for cookie, counters in self.flows.items() if cookie in kept_flows}


def ends_of(state: NetworkState, link: Link) -> tuple[PortKey | None, PortKey | None]:
    """The ports at both ends of a directed link; None at a host, and for what is not known (any more)."""
    source, destination = link
    if source in state.hosts:
        return None, state.hosts[source].port_key
    try:
        port = source, state.port_toward(source, destination)
    except NoSuchPath:
        return None, None
    return port, state.links.get(port)


def counter_of(state: NetworkState, measurements: Measurements, link: Link,
               among: Container[PortKey] | None = None) -> Counter | None:
    """The counter of what goes over a directed link, at the switch that has one; None if it was not read.

    `among` restricts it to ports of which new counters have come.
    """
    sender, receiver = ends_of(state, link)
    port = sender or receiver
    if port is None or port not in measurements.ports or (among is not None and port not in among):
        return None
    counters = measurements.ports[port]
    return counters.sent if sender else counters.received
