"""The scheduler's loop: datagrams of agents in, directives out, and the network as the controller sees it."""

from __future__ import annotations

import logging
import secrets
import select
import socket
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterable

from pydantic import BaseModel, Field, ValidationError

from controller.policy.errors import InvalidNetwork, PolicyError
from controller.policy.network.graph import Network
from controller.timeslices.turns import Sending, TurnKeeper
from controller.validation import reason
from host_agent.channel import MAX_BPS, MAX_DATAGRAM_BYTES, BacklogReport, Registration
from host_agent.errors import InvalidDatagram
from host_agent.session import SchedulerEnd

LOOK_SECONDS = 1.0
"""Between two looks at the controller's network."""
ANSWER_SECONDS = 5.0
BATCH = 256
"""Datagrams that are read before slices have their turn again."""
log = logging.getLogger(__name__)


class _Link(BaseModel, frozen=True):
    source: str
    destination: str
    capacity_bps: float = Field(ge=1, le=MAX_BPS)


class _Answer(BaseModel):
    """What we need of `/v1/network`."""

    links: tuple[_Link, ...]


class NetworkWatch(threading.Thread):
    """Asks the controller again and again; what it said last holds while it is away."""

    def __init__(self, controller_url: str) -> None:
        super().__init__(name="network", daemon=True)
        self._url = f"{controller_url.rstrip('/')}/v1/network"
        self._links: frozenset[_Link] = frozenset()
        self._problem = ""
        self.network = Network()
        """Another object whenever it has changed."""

    @property
    def is_answered(self) -> bool:
        """Whether the controller said it when it was asked last."""
        return bool(self._links) and not self._problem

    def run(self) -> None:
        while True:
            try:
                self._ask()
                if self._problem:
                    log.info("%s says again what the network is", self._url)
                self._problem = ""
            except Exception as error:
                problem = f"{type(error).__name__}: {error}"
                if problem != self._problem:
                    log.warning("%s does not say what the network is: %s", self._url, problem)
                self._problem = problem
            time.sleep(LOOK_SECONDS)

    def _ask(self) -> None:
        with urllib.request.urlopen(self._url, timeout=ANSWER_SECONDS) as answer:
            said = answer.read()
        try:
            links = frozenset(_Answer.model_validate_json(said).links)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "the answer"
            raise InvalidNetwork(f"{where} {reason(first)}") from None
        if links != self._links:
            self.network = network_of((link.source, link.destination, link.capacity_bps) for link in links)
            self._links = links


def network_of(edges: Iterable[tuple[str, str, float]]) -> Network:
    """Hosts are the nodes named by an IPv4 address. Raises InvalidNetwork."""
    network = Network()
    for source, destination, capacity_bps in sorted(edges):
        for node in (source, destination):
            if "." in node:
                network.add_host(node)
            else:
                network.add_switch(node)
        network.add_link(source, destination, capacity_bps)
    return network


class TurnService:
    """`run` until `stop`. Counters are for metrics."""

    def __init__(self, keeper: TurnKeeper, master_key: bytes, slice_seconds: float, address: tuple[str, int],
                 watch: NetworkWatch) -> None:
        """Raises OSError for an address that cannot be had."""
        self.keeper = keeper
        self.watch = watch
        self._network = watch.network
        self._end = SchedulerEnd(master_key, round(slice_seconds * 1e6))
        self._channel = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._channel.bind(address)
        self._places: dict[str, tuple[str, int]] = {}
        self._waking, self._wake = socket.socketpair()
        self._is_stopped = False
        self.counts: Counter[str] = Counter()

    @property
    def address(self) -> tuple[str, int]:
        host, port = self._channel.getsockname()
        return host, port

    @property
    def refused(self) -> Counter[str]:
        """Datagrams, by reason."""
        return self._end.refused

    def stop(self, *_: object) -> None:
        """End `run`, from any thread or a signal's handler."""
        self._is_stopped = True
        self._wake.send(b"x")

    def run(self) -> None:
        """Returns once it is stopped: then leases run out, and everything flows."""
        self.watch.start()
        due = 0.0
        while not self._is_stopped:
            wait = max(0.0, due - time.monotonic())
            readable, _, _ = select.select([self._channel, self._waking], [], [], wait)
            try:
                if self._channel in readable:
                    self._hear()
                if time.monotonic() >= due:
                    self._pass_time()
            except (PolicyError, OSError):
                self.counts["failures"] += 1
                log.exception("a turn failed")
            due = self.keeper.due(time.monotonic())

    def _hear(self) -> None:
        for _ in range(BATCH):
            try:
                datagram, place = self._channel.recvfrom(MAX_DATAGRAM_BYTES + 1)
            except BlockingIOError:
                return
            match self._end.take(datagram):
                case Registration() as registration:
                    if welcome := self._end.welcome(registration, secrets.randbits(63) + 1, time.monotonic()):
                        self._send(welcome, place)
                case BacklogReport() as report:
                    self.counts["reports"] += 1
                    self._places[report.agent] = place
                    self._tell(self.keeper.reported(report, time.monotonic()))

    def _pass_time(self) -> None:
        now = time.monotonic()
        if self.watch.network is not self._network:
            self._network = self.watch.network
            self._tell(self.keeper.network_changed(self._network, now))
        self._tell(self.keeper.pass_time(now))
        for agent in self._places.keys() - set(self.keeper.agents):
            log.warning("agent %s is silent, and forgotten", agent)
            self._end.forget(agent)
            del self._places[agent]

    def _tell(self, sending: Sending) -> None:
        for agent, turns in sending:
            try:
                self._send(self._end.directive(agent, turns), self._places[agent])
                self.counts["directives"] += 1
            except InvalidDatagram as error:
                self.counts["failures"] += 1
                log.warning("%s is not told its turns: %s", agent, error)

    def _send(self, datagram: bytes, place: tuple[str, int]) -> None:
        try:
            self._channel.sendto(datagram, place)
        except OSError:         # an agent that is away: its leases run out, and it registers anew
            self.counts["unsent"] += 1
