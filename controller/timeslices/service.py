"""The scheduler's loop: datagrams of agents in, directives out, and the network as the controller sees it."""

from __future__ import annotations

import json
import logging
import secrets
import select
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any, TypeVar

from pydantic import BaseModel, Field, ValidationError

from speedwell.controller.policy.errors import InvalidNetwork, PolicyError
from speedwell.controller.policy.network.graph import Network, Path
from speedwell.controller.policy.timeslices.timeslice_policy import Pair
from speedwell.controller.timeslices.turns import Sending, TurnKeeper, later
from speedwell.controller.validation import reason
from speedwell.fs.controller import Controller
from speedwell.host_agent.channel import MAX_BPS, MAX_DATAGRAM_BYTES, BacklogReport, Registration
from speedwell.host_agent.errors import InvalidDatagram
from speedwell.host_agent.session import SchedulerEnd

LOOK_SECONDS, ORDER_SECONDS, LEAST_SECONDS = 1.0, 0.25, 0.05
"""Between two looks at the controller's network, and where new pairs cannot wait so long."""
MAX_PAIRS = 4096
"""That the controller pins at once."""
ANSWER_SECONDS = 5.0
MAX_TURNS = 256
"""Of which the controller is told."""
BATCH = 256
"""Datagrams that are read before slices have their turn again."""
log = logging.getLogger(__name__)


class _Link(BaseModel, frozen=True):
    source: str
    destination: str
    capacity_bps: float = Field(ge=1, le=MAX_BPS)


class _Network(BaseModel):
    """What we need of `/v1/network`."""

    links: tuple[_Link, ...]


class _Pin(BaseModel):
    source: str
    destination: str
    path: tuple[str, ...] = Field(min_length=3)
    rank: int | None = None


class _Pins(BaseModel):
    """What we need of `/v1/timeslices/pairs`."""

    pairs: tuple[_Pin, ...]


_Said = TypeVar("_Said", bound=BaseModel)


class NetworkWatch(threading.Thread):
    """Asks the controller again and again; what it said last holds while it is away."""

    def __init__(self, controller: Controller) -> None:
        super().__init__(name="network", daemon=True)
        self._url = controller.url
        self._connection = controller.connect(ANSWER_SECONDS)
        self._links: frozenset[_Link] = frozenset()
        self._problem = ""
        self._wanted: frozenset[Pair] = frozenset()
        self._is_wanted_anew = threading.Event()
        self.network = Network()
        """Another object whenever it has changed."""
        self.paths: dict[Pair, Path] = {}
        """On which the network keeps pairs; another object whenever it has changed."""
        self.ranks: dict[Pair, int] = {}
        """Of pairs that serve coflows, in which order; another object whenever it has changed."""
        self._network_due = 0.0
        self.turns: dict[str, Any] | None = None
        """Who has turns, which the controller is told now and then."""

    @property
    def is_answered(self) -> bool:
        """Whether the controller said it when it was asked last."""
        return bool(self._links) and not self._problem

    def pin(self, pairs: frozenset[Pair]) -> None:
        """Ask for the paths of these pairs: at once if there are new ones among them."""
        is_new = not pairs <= self._wanted | self.paths.keys()
        self._wanted = pairs
        if is_new:
            self._is_wanted_anew.set()

    def run(self) -> None:
        while True:
            try:
                if time.monotonic() >= self._network_due:
                    self._ask_for_network()
                    self._network_due = time.monotonic() + LOOK_SECONDS
                self._ask_for_paths()
                self._tell_turns()
                if self._problem:
                    log.info("%s says again what the network is", self._url)
                self._problem = ""
            except Exception as error:
                problem = f"{type(error).__name__}: {error}"
                if problem != self._problem:
                    log.warning("%s does not say what the network is: %s", self._url, problem)
                self._problem = problem
            time.sleep(LEAST_SECONDS)
            self._is_wanted_anew.wait(ORDER_SECONDS - LEAST_SECONDS)

    def _ask_for_paths(self) -> None:
        self._is_wanted_anew.clear()
        if not self._wanted and not self.paths:
            return
        wanted = {"pairs": [{"source": source, "destination": destination}
                            for source, destination in sorted(self._wanted)[:MAX_PAIRS]]}
        said = self._ask("/v1/timeslices/pairs", _Pins, json.dumps(wanted).encode())
        paths = {(each.source, each.destination): Path(each.path) for each in said.pairs}
        if paths != self.paths:
            self.paths = paths
        self.ranks = {(each.source, each.destination): each.rank for each in said.pairs if each.rank is not None}

    def _tell_turns(self) -> None:
        """A controller that does not want to know is none that does not say what the network is."""
        turns, self.turns = self.turns, None
        if turns is not None:
            self._request("PUT", "/v1/timeslices/turns", json.dumps(turns).encode())

    def _request(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        try:
            self._connection.request(method, path, body, {"Content-Type": "application/json"})
            answer = self._connection.getresponse()
            return answer.status, answer.read()
        except BaseException:
            self._connection.close()
            raise

    def _ask(self, path: str, kind: type[_Said], body: bytes | None = None) -> _Said:
        status, said = self._request("GET" if body is None else "POST", path, body)
        if status != HTTPStatus.OK:
            raise InvalidNetwork(f"{status} {said.decode(errors='replace')}")
        try:
            return kind.model_validate_json(said)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "the answer"
            raise InvalidNetwork(f"{where} {reason(first)}") from None

    def _ask_for_network(self) -> None:
        links = frozenset(self._ask("/v1/network", _Network).links)
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
        self._network, self._paths = watch.network, watch.paths
        self._end = SchedulerEnd(master_key, round(slice_seconds * 1e6))
        self._channel = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._channel.bind(address)
        self._places: dict[str, tuple[str, int]] = {}
        self._waking, self._wake = socket.socketpair()
        self._is_stopped = False
        self._told_at = 0.0
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
        due = passed_at = 0.0
        while not self._is_stopped:
            wait = max(0.0, due - time.monotonic())
            readable, _, _ = select.select([self._channel, self._waking], [], [], wait)
            try:
                if self._channel in readable:
                    self._hear()
                if (now := time.monotonic()) >= due:
                    passed_at = now
                    self._pass_time()
            except (PolicyError, OSError):
                self.counts["failures"] += 1
                log.exception("a turn failed")
            due = self.keeper.due(passed_at)    # not from now: agents that report more often would put it off

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
                    now = time.monotonic()
                    self._tell(self.keeper.reported(report, now), now)

    def _pass_time(self) -> None:
        now = time.monotonic()
        if self.watch.network is not self._network:
            self._network = self.watch.network
            self._tell(self.keeper.network_changed(self._network, now), now)
        if self.watch.paths is not self._paths:
            self._paths = self.watch.paths
            self._tell(self.keeper.pinned(self._paths, now), now)
        self.keeper.ranked(self.watch.ranks)
        self.watch.pin(self.keeper.pairs)
        if now - self._told_at >= LOOK_SECONDS:
            self._told_at = now
            self.watch.turns = self.keeper.state(now, MAX_TURNS)
        self._tell(self.keeper.pass_time(now), now)
        for agent in self._places.keys() - set(self.keeper.agents):
            log.warning("agent %s is silent, and forgotten", agent)
            self._end.forget(agent)
            del self._places[agent]

    def _tell(self, sending: Sending, decided_at: float) -> None:
        for agent, turns in sending:
            passed = round((time.monotonic() - decided_at) * 1e6)
            try:
                self._send(self._end.directive(agent, [later(each, passed) for each in turns]), self._places[agent])
                self.counts["directives"] += 1
            except InvalidDatagram as error:
                self.counts["failures"] += 1
                log.warning("%s is not told its turns: %s", agent, error)

    def _send(self, datagram: bytes, place: tuple[str, int]) -> None:
        try:
            self._channel.sendto(datagram, place)
        except OSError:         # an agent that is away: its leases run out, and it registers anew
            self.counts["unsent"] += 1
