"""What systems want to know of switches, and rates in bits/s from the counters that switches report.

Counters are compared over the switch's own durations, so neither a late reply nor a busy controller distorts a rate.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from speedwell.controller.errors import NoSuchPath
from speedwell.controller.policy.network.graph import Link
from speedwell.controller.topology.state import NetworkState, PortKey

WINDOW_SECONDS = 1.8
"""How far back a shown rate looks: Open vSwitch brings flow counters up to date every half second only."""
HISTORY = 16
"""Readings kept at most, however often a switch is polled."""
HEADER_BYTES = 66
"""Ethernet, IPv4 and TCP with timestamps: what a packet of a read carries besides the file's bytes."""


class Counter:
    """One growing byte counter: its total since it was first seen, and its rate."""

    def __init__(self, is_entrys: bool = False) -> None:
        """`is_entrys` says that it is of a flow entry: what its first reading has is counted since the entry's birth,
        and when the entry is replaced its count goes on while its age starts over. So an age tells nothing of how
        long its first reading took, and a rate begins with the second."""
        self.total = 0
        self.read_at: float | None = None
        """When it was last read, on the monotonic clock."""
        self._is_entrys = is_entrys
        self._last_raw: int | None = None
        self._age_before = 0.0
        """The age that what it counts had when its age last started over."""
        self._readings: deque[tuple[float, int]] = deque(maxlen=HISTORY)

    def read(self, value: int, duration_seconds: float, now: float) -> None:
        """Take in a reading: the counter's value, and the age of what it counts by the switch's clock.

        A value below the last one means that the counter began anew: the total goes on, the rate starts over. So does
        a lower age, but for an entry, which is as much older as seconds have passed here. The same holds for one that
        aged by less than half of those.
        """
        age = self._age_before + duration_seconds
        last_age = self._readings[-1][0] if self._readings else 0.0
        if self._last_raw is None:
            if self._is_entrys:
                self.total = value
        elif value < self._last_raw or (age < last_age and not self._is_entrys):
            self._readings.clear()
            self._age_before, age = 0.0, duration_seconds
            self.total += value
        else:
            passed_seconds = now - (self.read_at or now)
            if age < last_age or (self._is_entrys and age - last_age < passed_seconds / 2):
                age = last_age + passed_seconds
                self._age_before = age - duration_seconds
            self.total += value - self._last_raw
        self._last_raw, self.read_at = value, now
        if self._readings and age == self._readings[-1][0]:
            self._readings[-1] = (age, self.total)
        else:
            self._readings.append((age, self.total))
        while len(self._readings) > 2 and self._readings[1][0] <= age - WINDOW_SECONDS:
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

    def read(self, received_bytes: int, sent_bytes: int, duration_seconds: float, now: float) -> None:
        self.received.read(received_bytes, duration_seconds, now)
        self.sent.read(sent_bytes, duration_seconds, now)


class FlowCounters:
    """The entry of one flow. `transferred_bytes` is without headers."""

    def __init__(self) -> None:
        self._bytes = Counter(is_entrys=True)
        self._packets = self._last_packets = 0

    def read(self, byte_count: int, packet_count: int, duration_seconds: float, now: float) -> None:
        self._bytes.read(byte_count, duration_seconds, now)
        began_anew = packet_count < self._last_packets
        self._packets += packet_count if began_anew else packet_count - self._last_packets
        self._last_packets = packet_count

    @property
    def read_at(self) -> float | None:
        return self._bytes.read_at

    @property
    def transferred_bytes(self) -> int:
        return max(self._bytes.total - HEADER_BYTES * self._packets, 0)

    @property
    def rate_bps(self) -> float | None:
        """Bits/s on the wire over the window."""
        return self._bytes.rate_bps

    @property
    def latest_bps(self) -> float | None:
        """Bits/s on the wire in the last poll interval."""
        return self._bytes.latest_bps


@dataclass(frozen=True)
class StatsRequest:
    """What a system wants to know of some switches at each poll."""

    name: str
    switches: Callable[[], Collection[str]]
    """The datapath ids of those to be asked; others than connected ones are left out."""
    message: Callable[[Any], Any]
    """Makes the OpenFlow request for a connection."""
    handle: Callable[[str, list[Any], float], None]
    """Takes a switch's whole answer in: its datapath id, the statistics, when they came on the monotonic clock."""


class Measurements:
    """What the poller asks, and the latest counters of ports, by (dpid, port number). Systems add requests."""

    def __init__(self) -> None:
        self.requests: list[StatsRequest] = []
        self.ports: dict[PortKey, PortCounters] = {}
        self.complete_at: float | None = None
        """When every connected switch had answered a poll, on the monotonic clock."""

    def add_request(self, request: StatsRequest) -> None:
        """From now on every poll sends this too."""
        self.requests.append(request)

    def read_port(self, key: PortKey, received_bytes: int, sent_bytes: int, duration_seconds: float,
                  now: float) -> None:
        if key not in self.ports:
            self.ports[key] = PortCounters()
        self.ports[key].read(received_bytes, sent_bytes, duration_seconds, now)

    def keep(self, ports: Collection[PortKey]) -> None:
        """Forget the ports that are not among these."""
        for key in [key for key in self.ports if key not in ports]:
            del self.ports[key]


def duration_of(stat: Any) -> float:
    """The age in seconds that a switch gives with a counter."""
    return float(stat.duration_sec + stat.duration_nsec / 1e9)


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


def counter_of(state: NetworkState, measurements: Measurements, link: Link) -> Counter | None:
    """The one counter of what goes over a directed link, at the switch that has one; None if it was not read."""
    sender, receiver = ends_of(state, link)
    port = sender or receiver
    if port is None or port not in measurements.ports:
        return None
    counters = measurements.ports[port]
    return counters.sent if sender else counters.received


def fresh_rate(state: NetworkState, measurements: Measurements, link: Link,
               began_at: float) -> tuple[float, float] | None:
    """A directed link's rate in bits/s since the last poll, and when it was read, on the monotonic clock; None if it
    was not read since `began_at`, or only once so far."""
    counter = counter_of(state, measurements, link)
    if counter is None or counter.read_at is None or counter.read_at < began_at or counter.latest_bps is None:
        return None
    return counter.latest_bps, counter.read_at
