"""Asking the SDN controller where a read should come from, within a bounded time.

The controller may be missing, slow or wrong: then `place` returns None and the caller takes the nearest
replica. Mayflower, section 3.3 (the client contacts the Flowserver before the dataservers).
"""

import contextlib
import http.client
import json
import logging
import socket
import threading
import time
from collections.abc import Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from speedwell.fs import tracing
from speedwell.fs.client.metrics import Metrics
from speedwell.fs.controller import Controller
from speedwell.fs.errors import reason
from speedwell.fs.proto.speedwell_pb2 import Replica

log = logging.getLogger(__name__)

PAUSE_AFTER_FAILURE_SECONDS = 1.5
"""A controller that did not answer is not asked again for so long: else each file would wait for it."""
SEARCH_SECONDS = 6.0
"""How long a client of several controllers looks for the one that leads before it counts them as one that is away."""
SEARCH_STEP_SECONDS, SEARCH_TIMEOUT_SECONDS = 0.2, 0.5

LATE_ANSWER_SECONDS = 2.0
NEWS_SECONDS = 1.0
"""How long the controller may keep a question for news when there is none. It takes one for dead of whom it has not
heard for five times as long."""
NEWS_LATE_SECONDS = 1.0
"""How long after that an answer may come before the controller is taken for dead."""
_WORKERS = 16


@dataclass(frozen=True)
class SteeredRead:
    """Where one stream of a read came from and who chose it; a read of several parts has one for each.

    `chosen_by` is "controller" (the flowserver answered) or "nearest" (no controller configured, range
    too small to steer, or fallback). `path` names the switches and hosts from the replica to the client;
    it is empty when the controller did not choose or the replica is on the client's own host.
    """

    replica_id: str
    replica_host: str
    replica_port: int
    client_port: int
    chosen_by: str
    offset_bytes: int
    size_bytes: int
    part_number: int = 0
    path: tuple[str, ...] = ()
    estimated_bps: float | None = None
    cost_seconds: float | None = None
    replica_policy: str | None = None
    path_policy: str | None = None


class Placement:
    """The controller's answer: the read's address there, and the parts in the order of their offsets.

    Each part is to be reported as ended once, whatever became of it. Thread-safe.
    """

    def __init__(self, read_id: str, parts: Sequence[SteeredRead], steering: "Steering") -> None:
        self.url = f"/v1/reads/{read_id}"
        self.parts = tuple(parts)
        self._steering = steering
        self._running = {part.part_number for part in parts}
        self._lock = threading.Lock()

    def ended(self, part: SteeredRead) -> None:
        """Tell the controller in the background: what the part used is free for others from now on."""
        with self._lock:
            if part.part_number not in self._running:
                return
            self._running.discard(part.part_number)
            last = not self._running
        self._steering.tell_end(self.url if last else f"{self.url}/parts/{part.part_number}")


class FollowedPlacement:
    """The controller's answer for a read that may wait, and that may get parts later. Thread-safe."""

    def __init__(self, read_id: str, revision: int, parts: Sequence[SteeredRead], replicas: Sequence[Replica],
                 client_ports: Sequence[int], steering: "Steering") -> None:
        self.parts = tuple(parts)
        self.url = f"/v1/reads/{read_id}"
        self._revision = revision
        self._replicas = replicas
        self._ports = client_ports
        self._steering = steering
        self._connection = steering.new_connection(NEWS_SECONDS + NEWS_LATE_SECONDS)
        self._ended_parts: set[int] = set()
        self._is_over = False
        self._lock = threading.Lock()

    def news(self) -> list[SteeredRead]:
        """The parts as the controller knows them by now: when there is news, or after NEWS_SECONDS.

        One thread asks. Raises NoNews when the controller has forgotten the read, or does not answer, or after
        `over`.
        """
        try:
            self._connection.request("GET", f"{self.url}?after={self._revision}&wait_seconds={NEWS_SECONDS}")
            response = self._connection.getresponse()
            answer = json.loads(response.read())
            if response.status != 200:
                raise NoNews(f"{response.status} {answer.get('detail', '')}")
            self._revision = max(self._revision, int(answer["revision"]))
            return [_part(part, self._replicas, self._ports, answer) for part in answer["parts"] if not part["ended"]]
        except (OSError, http.client.HTTPException) as error:
            raise NoNews(reason(error)) from None
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise NoNews(f"an answer that makes no sense: {type(error).__name__}: {error}") from None

    def ended(self, part: SteeredRead) -> None:
        """Tell in the background that a part delivers nothing more. With the last one the read ends."""
        with self._lock:
            if self._is_over or part.part_number in self._ended_parts:
                return
            self._ended_parts.add(part.part_number)
        self._steering.tell_end(f"{self.url}/parts/{part.part_number}")

    def over(self) -> None:
        """Tell in the background that the read is over, and wake whoever waits for news. Safe to call again."""
        with self._lock:
            if self._is_over:
                return
            self._is_over = True
        self._steering.tell_end(self.url)
        held = self._connection.sock
        if held is not None:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(held, socket.SHUT_RDWR)  # not SSLSocket's, which lets go of TLS first


class NoNews(Exception):
    """There will be no news of a read from the controller any more."""


class Refused(Exception):
    """The controller answered, but not with a placement."""


class Steering:
    """One controller as the reads of a client see it. Thread-safe.

    `identity` is the directory of the client's. Raises InvalidArgument, IdentityError as `Controller` does.
    """

    def __init__(self, url: str, metrics: Metrics, *, replica_policy: str | None = None,
                 path_policy: str | None = None, timeout_seconds: float = 0.2,
                 identity: Path | str | None = None) -> None:
        self._controller = Controller(url, identity)
        self._url = url
        self._metrics = metrics
        self._policies = {name: value for name, value in (("replica_policy", replica_policy),
                                                          ("path_policy", path_policy)) if value is not None}
        self._timeout_seconds = timeout_seconds
        self._workers = ThreadPoolExecutor(_WORKERS, "steering")
        self._idle: list[http.client.HTTPConnection] = []
        self._running: set[str] = set()     # reads whose end is still to be told
        self._lock = threading.Lock()
        self._ask_again_at = 0.0
        self._closed = False

    def place(self, client_host: str, client_ports: Sequence[int], replicas: Sequence[Replica], offset_bytes: int,
              size_bytes: int, file_id: str, most_parts: int = 1,
              follows: bool = False) -> Placement | FollowedPlacement | None:
        """Have the read placed; None when the controller does not do it within the time allowed.

        There are at most `most_parts` parts at once, each with a port of its own of `client_ports`. `offset_bytes` is
        where the range begins in the file; the parts of the answer are in file offsets. A caller that `follows` can
        do with a FollowedPlacement; it is what the controller's policy says.
        """
        if not self._controller.is_known:
            return None
        if self._closed or time.monotonic() < self._ask_again_at:
            self._metrics.add(controller_fallbacks=1)
            return None
        body = {"client": client_host, "client_ports": list(client_ports), "size_bytes": size_bytes,
                "file_id": file_id, "most_parts": most_parts, "follows": follows, **self._policies,
                "replicas": [{"host": replica.host, "port": replica.port} for replica in replicas]}
        asked, door = _Question(), self._controller.door
        began = time.monotonic()
        try:
            answer = self._wait(self._workers.submit(tracing.carried(self._post), body, asked), asked)
            placement: Placement | FollowedPlacement | None
            if follows and answer.get("revision") is not None:
                placement = self._followed(answer, replicas, client_ports)
            else:
                parts = _parts(answer, replicas, client_ports, offset_bytes, size_bytes)
                placement = Placement(str(answer["id"]), parts, self)
        except (FutureTimeout, OSError, http.client.HTTPException, RuntimeError) as error:
            log.warning("reading without the controller: %s did not answer: %s", self._url,
                        # a time-out says nothing
                        reason(error) if str(error) else f"nothing within {self._timeout_seconds:g} s")
            self._pause(door, is_silent=isinstance(error, FutureTimeout))
            placement = None
        except Refused as error:
            log.warning("the controller did not place a read: %s", error)
            placement = None
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            log.warning("the controller's answer makes no sense: %s: %s", type(error).__name__, error)
            placement = None
        if placement is not None:
            self._began(placement.url)
        self._metrics.add(controller_requests=1, controller_seconds=time.monotonic() - began,
                          controller_fallbacks=0 if placement else 1)
        return placement

    def _pause(self, door: Any, *, is_silent: bool) -> None:
        """Ask no controller for a while; of several, until another one is found to lead. No read waits meanwhile."""
        self._controller.left(door, is_silent=is_silent)
        now = time.monotonic()
        with self._lock:
            if self._closed or now < self._ask_again_at:
                return
            self._ask_again_at = pause_ends_at = now + PAUSE_AFTER_FAILURE_SECONDS
            if len(self._controller) > 1:
                self._ask_again_at = now + SEARCH_SECONDS   # before the search, which may be done at once
                self._workers.submit(self._search, door, pause_ends_at)

    def _search(self, former: Any, pause_ends_at: float) -> None:
        while not self._closed and time.monotonic() < self._ask_again_at:
            if self._controller.find_leader(SEARCH_TIMEOUT_SECONDS):
                self._ask_again_at = pause_ends_at if self._controller.door is former else 0.0
                return
            time.sleep(SEARCH_STEP_SECONDS)

    def _followed(self, answer: dict[str, Any], replicas: Sequence[Replica],
                  client_ports: Sequence[int]) -> FollowedPlacement:
        parts = [_part(part, replicas, client_ports, answer) for part in answer["parts"]]
        return FollowedPlacement(str(answer["id"]), int(answer["revision"]), parts, replicas, client_ports, self)

    def new_connection(self, timeout_seconds: float) -> http.client.HTTPConnection:
        """A connection to the controller for the caller alone."""
        return self._controller.connect(timeout_seconds)

    def tell_end(self, target: str) -> None:
        """Delete a read or a part of one, in the background."""
        with self._lock:
            self._running.discard(target)
            if not self._closed:
                self._workers.submit(tracing.carried(self._delete), target)

    def close(self) -> None:
        """End the reads that still run, deliver what is still to be told and close the connections."""
        with self._lock:
            self._closed = True
            while self._running:
                self._workers.submit(self._delete, self._running.pop())
        self._workers.shutdown(wait=True)
        for connection in self._idle:
            connection.close()

    # ------------------------------------------------------------------ private

    def _began(self, target: str) -> None:
        with self._lock:
            if not self._closed:
                self._running.add(target)
                return
        self._delete(target)    # closed while it was placed: nobody else ends it

    def _post(self, body: dict[str, Any], asked: "_Question") -> dict[str, Any]:
        status, answer = self._request("POST", "/v1/reads", json.dumps(body).encode())
        if status != 201:
            raise Refused(f"{status} {answer.get('title', '')}: {answer.get('detail', '')}")
        if not asked.answered() and "id" in answer:
            self._delete(f"/v1/reads/{answer['id']}")  # nobody waits for it any more
        return answer

    def _delete(self, target: str) -> None:
        try:
            self._request("DELETE", target, None)
        except (OSError, http.client.HTTPException, ValueError, Refused) as error:
            log.debug("%s could not be ended at the controller: %s", target, error)

    def _request(self, method: str, target: str, body: bytes | None) -> tuple[int, dict[str, Any]]:
        headers = {"Content-Type": "application/json"} if body is not None else {}
        connection, used = self._connection()
        while True:
            try:
                connection.request(method, target, body, headers)
                response = connection.getresponse()
                text = response.read()
                break
            except (ConnectionError, http.client.BadStatusLine):
                connection.close()
                if not used:
                    raise
                # A kept connection that the controller closed meanwhile says nothing about the controller.
                connection, used = self.new_connection(LATE_ANSWER_SECONDS), False
            except BaseException:
                connection.close()
                raise
        with self._lock:
            self._idle.append(connection)
        answer = json.loads(text) if text else {}
        if not isinstance(answer, dict):
            raise Refused("its answer is not a JSON object")
        return response.status, answer

    def _connection(self) -> tuple[http.client.HTTPConnection, bool]:
        with self._lock:
            if self._idle:
                return self._idle.pop(), True
        return self.new_connection(LATE_ANSWER_SECONDS), False

    def _wait(self, answer: "Future[dict[str, Any]]", asked: "_Question") -> dict[str, Any]:
        try:
            return answer.result(self._timeout_seconds)
        except FutureTimeout:
            if answer.done() or not asked.abandon():
                return answer.result()  # it came at the last moment
            raise FutureTimeout from None


class _Question:
    """Who came first: the answer, or the end of the asker's patience."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._state = "open"

    def answered(self) -> bool:
        """Whether somebody still waits."""
        with self._lock:
            if self._state == "open":
                self._state = "answered"
            return self._state == "answered"

    def abandon(self) -> bool:
        """Stop waiting; False if the answer was first."""
        with self._lock:
            if self._state == "open":
                self._state = "abandoned"
            return self._state == "abandoned"


def _parts(answer: dict[str, Any], replicas: Sequence[Replica], client_ports: Sequence[int], offset_bytes: int,
           size_bytes: int) -> list[SteeredRead]:
    """Check the answer against the question. Raises KeyError, TypeError or ValueError if it does not fit."""
    parts: list[SteeredRead] = []
    reached = 0
    free_ports = set(client_ports)
    for number, given in sorted(enumerate(answer["parts"]), key=lambda numbered: int(numbered[1]["offset_bytes"])):
        part = _part({"number": number, **given}, replicas, free_ports, answer, offset_bytes)
        if part.offset_bytes != offset_bytes + reached or part.size_bytes <= 0:
            raise ValueError(f"parts do not cover the range in order: {answer['parts']!r}")
        free_ports.discard(part.client_port)
        parts.append(part)
        reached += part.size_bytes
    if reached != size_bytes:
        raise ValueError(f"the parts cover {reached} of {size_bytes} bytes")
    return parts


def _part(given: dict[str, Any], replicas: Sequence[Replica], client_ports: Collection[int], answer: dict[str, Any],
          offset_bytes: int = 0) -> SteeredRead:
    """One part of an answer. Raises KeyError, TypeError or ValueError if it does not fit the question."""
    address = str(given["replica"]["host"]), int(given["replica"]["port"])
    replica = next((replica for replica in replicas if (replica.host, replica.port) == address), None)
    client_port = int(given["client_port"])
    if replica is None or client_port not in client_ports:
        raise ValueError(f"a part is not between what was offered: {given!r}")
    return SteeredRead(
        replica_id=replica.dataserver_id, replica_host=replica.host, replica_port=replica.port,
        client_port=client_port, chosen_by="controller", offset_bytes=offset_bytes + int(given["offset_bytes"]),
        size_bytes=int(given["size_bytes"]), part_number=int(given["number"]),
        path=tuple(str(name) for name in given.get("path_names") or given.get("path") or ()),
        estimated_bps=given.get("estimated_bps"), cost_seconds=given.get("cost_seconds"),
        replica_policy=answer.get("replica_policy"), path_policy=answer.get("path_policy"))
