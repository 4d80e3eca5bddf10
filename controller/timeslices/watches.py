"""What the scheduler of turns asks the controller, in threads of their own: the network, paths, and ranked flows."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Any, TypeVar

from pydantic import BaseModel, Field, ValidationError

from speedwell.coflow.report import Flow
from speedwell.controller.policy.errors import InvalidNetwork
from speedwell.controller.policy.network.graph import Network, Path
from speedwell.controller.policy.timeslices.timeslice_policy import Pair
from speedwell.controller.validation import reason
from speedwell.fs.controller import Controller
from speedwell.host_agent.channel import MAX_BPS, PRIORITIES, FlowClass

LOOK_SECONDS, ORDER_SECONDS, LEAST_SECONDS = 1.0, 0.25, 0.05
"""Between two looks at the controller's network, where new pairs cannot wait so long, and between any two questions
that bring no news."""
MAX_PAIRS = 4096
"""That the controller pins at once."""
ANSWER_SECONDS, CLASSES_SECONDS = 5.0, 5.0
"""For an answer; and how long the controller may wait for news of classes."""
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


class _Class(BaseModel):
    source: str
    destination: str
    protocol: int
    source_port: int
    destination_port: int
    priority: int = Field(ge=0, lt=PRIORITIES)
    pacing_bps: int = Field(default=0, ge=0, le=MAX_BPS)


class _Classes(BaseModel):
    """What we need of `/v1/timeslices/classes`."""

    revision: int
    flows: tuple[_Class, ...]


_Said = TypeVar("_Said", bound=BaseModel)


class _Questions:
    """What one thread asks the controller."""

    def __init__(self, controller: Controller, answer_seconds: float) -> None:
        self._connection = controller.connect(answer_seconds)

    def request(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        """Raises OSError, http.client.HTTPException."""
        try:
            self._connection.request(method, path, body, {"Content-Type": "application/json"})
            answer = self._connection.getresponse()
            return answer.status, answer.read()
        except BaseException:
            self._connection.close()
            raise

    def ask(self, path: str, kind: type[_Said], body: bytes | None = None) -> _Said:
        """Raises InvalidNetwork for any other answer, and what `request` raises."""
        status, said = self.request("GET" if body is None else "POST", path, body)
        if status != HTTPStatus.OK:
            raise InvalidNetwork(f"{status} {said.decode(errors='replace')}")
        try:
            return kind.model_validate_json(said)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "the answer"
            raise InvalidNetwork(f"{where} {reason(first)}") from None


class ClassWatch(threading.Thread):
    """Waits for the controller to rank flows anew; what it said last holds while it is away."""

    def __init__(self, controller: Controller, has_news: Callable[[], object]) -> None:
        super().__init__(name="classes", daemon=True)
        self._questions = _Questions(controller, ANSWER_SECONDS + CLASSES_SECONDS)
        self._has_news = has_news
        self._problem = ""
        self.classes: dict[Flow, FlowClass] = {}
        """Another object whenever it has changed."""

    def run(self) -> None:
        revision = -1
        while True:
            try:
                after = f"?after={revision}&wait_seconds={CLASSES_SECONDS}" if revision >= 0 else ""
                said = self._questions.ask(f"/v1/timeslices/classes{after}", _Classes)
                if said.revision != revision:
                    revision = said.revision
                    flows = ((Flow(each.source, each.destination, each.source_port, each.destination_port,
                                   each.protocol), each) for each in said.flows)
                    self.classes = {flow: FlowClass(flow, each.priority, each.pacing_bps) for flow, each in flows}
                    self._has_news()
                else:       # a controller for which too many wait answers at once
                    time.sleep(LEAST_SECONDS)
                self._problem = ""
            except Exception as error:
                problem = f"{type(error).__name__}: {error}"
                if problem != self._problem:
                    log.warning("the controller does not say which flows go first: %s", problem)
                self._problem = problem
                time.sleep(LOOK_SECONDS)


class NetworkWatch(threading.Thread):
    """Asks the controller again and again; what it said last holds while it is away."""

    def __init__(self, controller: Controller) -> None:
        super().__init__(name="network", daemon=True)
        self._url = controller.url
        self._questions = _Questions(controller, ANSWER_SECONDS)
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
                    log.info("%s tells the network's links again", self._url)
                self._problem = ""
            except Exception as error:
                problem = f"{type(error).__name__}: {error}"
                if problem != self._problem:
                    log.warning("%s does not tell the network's links: %s", self._url, problem)
                self._problem = problem
            time.sleep(LEAST_SECONDS)
            self._is_wanted_anew.wait(ORDER_SECONDS - LEAST_SECONDS)

    def _ask_for_paths(self) -> None:
        self._is_wanted_anew.clear()
        if not self._wanted and not self.paths:
            return
        wanted = {"pairs": [{"source": source, "destination": destination}
                            for source, destination in sorted(self._wanted)[:MAX_PAIRS]]}
        said = self._questions.ask("/v1/timeslices/pairs", _Pins, json.dumps(wanted).encode())
        paths = {(each.source, each.destination): Path(each.path) for each in said.pairs}
        if paths != self.paths:
            self.paths = paths
        self.ranks = {(each.source, each.destination): each.rank for each in said.pairs if each.rank is not None}

    def _tell_turns(self) -> None:
        """A controller that does not want to know is none that does not say what the network is."""
        turns, self.turns = self.turns, None
        if turns is not None:
            self._questions.request("PUT", "/v1/timeslices/turns", json.dumps(turns).encode())

    def _ask_for_network(self) -> None:
        links = frozenset(self._questions.ask("/v1/network", _Network).links)
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
