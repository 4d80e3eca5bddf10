"""Reads on a simulated fabric, placed by the controller's own selector.

The selector is told what the controller would be told, when it would be told: a request when a client asks,
counters as of the last poll, the end of a read when the client's notice arrives, a failed link when it is
detected. It never sees the network itself.
"""

import heapq
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from random import Random

import speedwell.controller.own_policies  # noqa: F401  (a worker process has to know of users' policies)
from speedwell.controller.policy.errors import NoPath
from speedwell.controller.policy.network.graph import Path
from speedwell.controller.policy.reads.mayflower_plus import PATIENCE
from speedwell.controller.policy.reads.selection import PLUS, Selector
from speedwell.controller.policy.reads.selection_request import Replica, SelectionRequest
from speedwell.sim.errors import InvalidSetting, Overloaded
from speedwell.sim.fabric_network import network_of
from speedwell.sim.fluid import FluidNetwork, Link
from speedwell.sim.workload import Read
from speedwell.topo.fabric import Fabric

SERVER_PORT = 7000
SPREAD = 0.3    # of `speedwell.controller.counters.poller`
FIRST_CLIENT_PORT, CLIENT_PORTS = 32768, 28232


@dataclass(frozen=True)
class Delays:
    """Seconds. The defaults are those of the controller: a poll a second, decisions in milliseconds."""

    poll_interval: float = 1.0
    poll_spread: float = SPREAD     # the part of the interval in which the switches are read, one after the other
    poll: float = 0.01          # from reading the last counters to telling the selector
    decision: float = 0.002     # from a client's request to the first byte
    notice: float = 0.001       # from the last byte to the controller's knowing
    detection: float = 0.5      # from a link's failing to the controller's knowing
    division: float = 0.02      # from the controller's dividing a read anew to the client's doing so

    def __post_init__(self) -> None:
        """Raises InvalidSetting."""
        if not 0 <= self.poll_spread <= 1:
            raise InvalidSetting(f"poll_spread: must be a part of the interval, not {self.poll_spread!r}")
        for name in ("poll_interval", "poll", "decision", "notice", "detection", "division"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0) or (name == "poll_interval" and value == 0):
                raise InvalidSetting(f"{name}: must be a positive number of seconds, not {value!r}")


@dataclass(slots=True)
class Outcome:
    """What became of a read. `finished` is not a number while it runs; `sources` are the hosts it read from."""

    read: Read
    sources: tuple[str, ...] = ()
    finished: float = math.nan
    name: str = ""
    waiting_bits: float = 0.0       # what it has not been given a part for
    parts_running: int = 0
    part_ends: list[float] = field(default_factory=list)
    divisions: int = 0              # how often it was divided anew

    @property
    def seconds(self) -> float:
        """Completion time: from the request to the last byte."""
        return self.finished - self.read.arrival


@dataclass(slots=True)
class _Part:
    """One flow of a read."""

    name: str
    outcome: Outcome
    path: Path
    size_bits: float
    client_port: int
    asked_at: float
    flow: int | None = None     # number in the fluid network, once it runs
    moved_bits: float = 0.0     # on earlier paths
    last_bits: float = 0.0      # at the last poll
    last_poll: float | None = None
    stranded: bool = False
    waits: bool = False         # for the client to hear of it
    ended: bool = False


class _Reading:
    """What a switch's counters showed last."""

    def __init__(self, links: list[Link]) -> None:
        self.links, self.bits, self.at = links, [0.0] * len(links), 0.0


class Simulation:
    """One run. Deterministic: the same arguments give the same outcomes to the last bit."""

    def __init__(self, fabric: Fabric, replica_policy: str, path_policy: str, generator: Random,
                 delays: Delays | None = None, parts: int = 1, most_running: int | None = None,
                 patience: float = PATIENCE, revises: bool = True) -> None:
        """Reads may be split into up to `parts` parts. With more than `most_running` parts running or reads waiting
        (default: 32 for each host) the network is taken to be overloaded. `patience` is mayflower-plus's; its
        running reads are left as they are unless it `revises`. Raises UnknownPolicy, InvalidSetting."""
        if parts < 1:
            raise InvalidSetting(f"parts: must be at least 1, not {parts}")
        self._delays = delays or Delays()
        self._network = network_of(fabric)
        self.selector = Selector(self._network, replica_policy, path_policy, generator, patience)
        self._divides = self.selector.replica_policy == PLUS
        self._revises = revises
        self.fluid = FluidNetwork({link: self._network.capacity_bps(link) for link in self._network.links})
        self._capacities = {link: self._network.capacity_bps(link) for link in self._network.links}
        self._most_parts = parts
        self._most_running = most_running or 32 * len(fabric.hosts)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._asked_for: dict[str, Outcome] = {}    # what the controller may divide anew, by name
        self._parts: dict[str, _Part] = {}          # what the controller knows of, by name
        self._running: dict[int, _Part] = {}        # by number in the fluid network
        self._readings = [_Reading(links) for links in self._links_by_switch()]
        self.outcomes: list[Outcome] = []
        self.decisions = 0
        self._done = 0

    @property
    def now(self) -> float:
        return self.fluid.now

    def at(self, time: float, action: Callable[[], None]) -> None:
        """Do something at a moment: a policy's timer, a failure."""
        heapq.heappush(self._events, (time, next(self._order), action))

    def fail_link(self, a: str, b: str, time: float) -> None:
        """Both directions of a link stop at `time`; the controller moves the reads once it has noticed."""
        self.at(time, lambda: self._set_link(a, b, up=False))
        self.at(time + self._delays.detection, lambda: self._link_detected(a, b, up=False))

    def restore_link(self, a: str, b: str, time: float) -> None:
        """A failed link works again from `time` on."""
        self.at(time, lambda: self._set_link(a, b, up=True))
        self.at(time + self._delays.detection, lambda: self._link_detected(a, b, up=True))

    def run(self, reads: Iterator[Read], number: int, progress: Callable[[int], None] | None = None) -> list[Outcome]:
        """Let the first `number` of `reads` come and end; returns their outcomes in order of arrival.

        Raises Overloaded if reads pile up, or if some never end.
        """
        self._reads = reads
        self._reads_left = number
        self.at(self._delays.poll_interval, self._poll)
        self._next_arrival()
        while self._done < number:
            self._step()
            piled_up = max(self.fluid.running, len(self.outcomes) - self._done)
            if piled_up > self._most_running:
                raise Overloaded(
                    f"after {self.now:.0f} s, {piled_up} flows are running or waiting: {len(self.outcomes)} reads "
                    f"were asked for, {self._done} have ended. The policies leave the network overloaded")
            if progress is not None and self._done % 64 == 0:
                progress(self._done)
        return self.outcomes

    def _step(self) -> None:
        ended = self.fluid.advance(self._events[0][0])
        for flow in ended:
            self._flow_ended(self._running.pop(flow))
        if not ended:
            heapq.heappop(self._events)[2]()

    # --- reads ---

    def _next_arrival(self) -> None:
        if self._reads_left > 0:
            self._reads_left -= 1
            read = next(self._reads)
            self.at(read.arrival, lambda: self._asked(read))

    def _asked(self, read: Read) -> None:
        outcome = Outcome(read)
        self.outcomes.append(outcome)
        self._next_arrival()
        self._decide(outcome)

    def _decide(self, outcome: Outcome) -> None:
        read = outcome.read
        port = FIRST_CLIENT_PORT + self.decisions % CLIENT_PORTS
        replicas = tuple(Replica(host, SERVER_PORT) for host in read.replicas)
        request = SelectionRequest(read.client, replicas, read.size_bits, port)
        try:
            chosen = self.selector.select_parts(request, self.now, self._most_parts)
        except NoPath:
            self.at(self.now + self._delays.poll_interval, lambda: self._decide(outcome))
            return
        self.decisions += 1
        outcome.name = str(self.decisions)
        outcome.sources = tuple(part.selection.replica.host for part in chosen)
        outcome.parts_running = len(chosen)
        outcome.waiting_bits = 0.0 if chosen else read.size_bits
        if self._divides:
            self.selector.read_added(outcome.name, request, self._most_parts, self.now)
            self._asked_for[outcome.name] = outcome
        for number, part in enumerate(chosen):
            name = f"{self.decisions}.{number}"
            running = _Part(name, outcome, part.selection.path, part.size_bits, port, self.now)
            if not running.path.links:
                self._part_ended(running)
                continue
            self.selector.flow_added(name, running.path, part.size_bits, self.now, outcome.name)
            self._parts[name] = running
            self.at(self.now + self._delays.decision, lambda running=running: self._start(running))  # type: ignore[misc]

    def _start(self, part: _Part) -> None:
        if part.size_bits <= part.moved_bits:
            self._flow_ended(part)
            return
        part.flow = self.fluid.start(part.path.links, part.size_bits - part.moved_bits)
        self._running[part.flow] = part
        part.stranded = not all(self._network.has_link(link) for link in part.path.links)

    def _flow_ended(self, part: _Part) -> None:
        self._part_ended(part)
        self.at(self.now + self._delays.notice, lambda: self._noticed(part))

    def _part_ended(self, part: _Part) -> None:
        part.ended = True
        outcome = part.outcome
        outcome.part_ends.append(self.now)
        outcome.parts_running -= 1
        if outcome.parts_running == 0:
            outcome.finished = self.now
            self._done += 1

    def _noticed(self, part: _Part) -> None:
        del self._parts[part.name]
        self.selector.flow_dropped(part.name, self.now)
        if part.outcome.parts_running == 0:
            self.selector.read_ended(part.outcome.name)
            self._asked_for.pop(part.outcome.name, None)
        self._revise()

    # --- reads divided anew ---

    def _revise(self) -> None:
        """Account for what the selector wants to divide anew; the clients do it a little later."""
        if not self._revises:
            return
        for division in self.selector.revise(self.now):
            outcome = self._asked_for[division.read_id]
            outcome.divisions += 1
            opened, parts = [], []
            for number, share in enumerate(division.parts):
                if share.flow_id is None:
                    name = f"{outcome.name}.{outcome.divisions}.{number}"
                    part = _Part(name, outcome, share.selection.path, 0.0, FIRST_CLIENT_PORT, self.now, waits=True)
                    self._parts[name] = part
                    opened.append(name)
                else:
                    part = self._parts[share.flow_id]
                parts.append((part, share.fraction))
            self.selector.read_divided(division, opened, self.now)
            self.at(self.now + self._delays.division,
                    lambda outcome=outcome, parts=parts: self._divide(outcome, parts))      # type: ignore[misc]

    def _divide(self, outcome: Outcome, parts: list[tuple[_Part, float]]) -> None:
        """What the client does when it hears of a division: open new parts, divide all that is left anew."""
        if not math.isnan(outcome.finished):
            for part, _ in parts:
                if part.waits:
                    self._ended_unopened(part)
            return
        parts = [(part, fraction) for part, fraction in parts if not part.ended]
        left_bits, outcome.waiting_bits = outcome.waiting_bits, 0.0
        for part, _ in parts:
            if part.flow is not None:
                del self._running[part.flow]
                part.moved_bits = part.size_bits - self.fluid.cancel(part.flow)
            left_bits += part.size_bits - part.moved_bits
        opened = [part for part, _ in parts if part.waits]
        outcome.parts_running += len(opened)
        outcome.sources += tuple(part.path.nodes[0] for part in opened)
        total = sum(fraction for _, fraction in parts)
        for part, fraction in parts:
            part.size_bits = part.moved_bits + left_bits * fraction / total
            self.selector.flow_resized(part.name, part.size_bits, self.now)
            if part.flow is not None or part.waits:
                part.waits = False
                self._start(part)

    def _ended_unopened(self, part: _Part) -> None:
        """The rest of the read came faster than the division."""
        part.waits, part.ended = False, True
        del self._parts[part.name]
        self.selector.flow_dropped(part.name, self.now)

    # --- counters ---

    def _links_by_switch(self) -> list[list[Link]]:
        """A link is counted where it begins; a host's where it ends, as hosts count nothing."""
        counted: dict[str, list[Link]] = {}
        for link in self.fluid.links:
            counted.setdefault(link[1] if self._network.is_host(link[0]) else link[0], []).append(link)
        return [counted[switch] for switch in sorted(counted)]

    def _poll(self) -> None:
        """Read the counters of all switches, one after the other; the selector hears of them when all are read."""
        flows: list[tuple[str, int, float]] = []
        links: list[tuple[Link, float]] = []
        spread = self._delays.poll_interval * self._delays.poll_spread / len(self._readings)
        for number, reading in enumerate(self._readings):
            self.at(self.now + number * spread,
                    lambda reading=reading: self._read(reading, flows, links))      # type: ignore[misc]
        last = self.now + (len(self._readings) - 1) * spread
        self.at(last + self._delays.poll, lambda: self._measured(flows, links))
        self.at(self.now + self._delays.poll_interval, self._poll)

    def _read(self, reading: _Reading, flows: list[tuple[str, int, float]], links: list[tuple[Link, float]]) -> None:
        """One switch: the flows that enter the network there, and its links."""
        own = set(reading.links)
        parts = [part for part in self._parts.values() if part.flow is not None and part.path.links[0] in own]
        left = self.fluid.bits_left([part.flow for part in parts if part.flow is not None])
        for part, bits_left in zip(parts, left, strict=True):
            bits = part.size_bits - float(bits_left)
            since = part.asked_at if part.last_poll is None else part.last_poll
            flows.append((part.name, int(bits / 8), max(bits - part.last_bits, 0.0) / (self.now - since)))
            part.last_bits, part.last_poll = bits, self.now
        carried = self.fluid.carried_bits()
        for number, link in enumerate(reading.links):
            bits = float(carried[self.fluid.links[link]])
            links.append((link, max(bits - reading.bits[number], 0.0) / (self.now - reading.at)))
            reading.bits[number] = bits
        reading.at = self.now

    def _measured(self, flows: list[tuple[str, int, float]], links: list[tuple[Link, float]]) -> None:
        for name, transferred_bytes, rate_bps in flows:
            self.selector.flow_measured(name, transferred_bytes, rate_bps, self.now)
        for link, rate_bps in links:
            if self._network.has_link(link):
                self.selector.link_measured(link, rate_bps, self.now)
        for part in [part for part in self._running.values() if part.stranded]:
            self._move(part)
        self._revise()

    # --- failures ---

    def _set_link(self, a: str, b: str, up: bool) -> None:
        for link in ((a, b), (b, a)):
            if link not in self._capacities:
                raise InvalidSetting(f"the fabric has no link from {a} to {b}")
            self.fluid.set_capacity(link, self._capacities[link] if up else 0.0)

    def _link_detected(self, a: str, b: str, up: bool) -> None:
        for link in ((a, b), (b, a)):
            if up:
                self._network.add_link(*link, self._capacities[link])
            elif self._network.has_link(link):
                self._network.remove_link(*link)
        for part in list(self._running.values()):
            if not all(self._network.has_link(link) for link in part.path.links):
                self._move(part)

    def _move(self, part: _Part) -> None:
        """Give a part a new path from the same replica, as the flowserver does; stranded until there is one."""
        if part.flow is None:
            return
        source, client = part.path.nodes[0], part.path.nodes[-1]
        left_bits = part.size_bits - part.last_bits
        request = SelectionRequest(client, (Replica(source, SERVER_PORT),), left_bits, part.client_port)
        try:
            path = self.selector.select(request, self.now).path
            self.selector.flow_moved(part.name, path, self.now)
        except NoPath:
            part.stranded = True
            return
        part.stranded = False
        del self._running[part.flow]
        part.moved_bits = part.size_bits - self.fluid.cancel(part.flow)
        part.path = path
        self._start(part)
