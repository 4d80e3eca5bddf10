"""Asking the SDN controller where a large new file's replicas should go, within a bounded time.

Callers wait outside the nameserver's guard. One thread asks for all that wait at the same time, in one request. The
controller may be missing, slow or wrong: then there is no advice, nobody asks for a while, and the caller places by
racks (Sinbad, SIGCOMM 2013, section 5: placement must not depend on the network's state being known).
"""

import contextlib
import http.client
import ipaddress
import json
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from speedwell.fs import tracing
from speedwell.fs.controller import Controller
from speedwell.fs.nameserver.replicas.placement import Candidate

log = logging.getLogger(__name__)

WAIT_SECONDS = 0.05
"""How long a create waits for advice at most."""
PAUSE_AFTER_FAILURE_SECONDS = 1.5
"""A controller that did not answer is not asked again for so long: else each create would wait for it."""
MAX_FILES = 64
"""In one request; so many wait at most."""
MAX_BACKGROUND_FILES = 16
"""Of them those that nobody waits for."""


@dataclass(slots=True)
class Question:
    """Where the replicas of a file go. `answered` is set with an answer, and without one; `outcome` is how it is
    counted then, unless it `is_late`: that was counted."""

    body: dict[str, Any]
    candidates: list[dict[str, Any]]
    by_host: dict[str, Candidate]
    answered: threading.Event = field(default_factory=threading.Event)
    hosts: list[str] | None = None
    outcome: str = "failed"
    is_late: bool = False
    traceparent: str = field(default_factory=tracing.current)

    @property
    def chosen(self) -> list[Candidate] | None:
        """The candidates to take, the primary first; None if there is no advice, or none that makes sense."""
        hosts = self.hosts
        if hosts is None or not set(hosts) <= self.by_host.keys() or len(set(hosts)) != self.body["replicas"]:
            return None
        return [self.by_host[host] for host in hosts]


class PlacementAdvice:
    """Callable from any thread. `counts` has how many files the "controller" placed, and how many it did not because
    it was "late", "failed" or "refused" them, or was not asked for a "pause" or because it was "busy"."""

    def __init__(self, controller_url: str, wait_seconds: float = WAIT_SECONDS,
                 identity: Path | None = None) -> None:
        """A create waits for `wait_seconds` at most. `identity` is the nameserver's. Raises InvalidArgument,
        IdentityError as `Controller` does."""
        self._wait_seconds = wait_seconds
        self._controller = Controller(controller_url, identity)
        self._waiting: deque[Question] = deque()
        self._changed = threading.Condition()
        self._paused_until = 0.0
        self._connection: http.client.HTTPConnection | None = None
        self._is_closed = False
        self.counts: Counter[str] = Counter()
        self._thread = threading.Thread(target=self._ask_all, name="placement advice", daemon=True)
        self._thread.start()

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()

    def destinations(self, candidates: Sequence[Candidate], replication: int, writer_host: str,
                     size_bytes: int) -> list[Candidate] | None:
        """The candidates to take for a file, the primary first; None if there is no advice."""
        question = self.ask(candidates, replication, writer_host, size_bytes)
        if question is None:
            return None
        if not question.answered.wait(self._wait_seconds) and self._give_up(question):
            return None
        return question.chosen

    def _give_up(self, question: Question) -> bool:
        """False if it was answered in the last moment."""
        with self._changed:
            if question.answered.is_set():
                return False
            question.is_late = True
            self.counts["late"] += 1
        self._pause("it took too long")
        return True

    def ask(self, candidates: Sequence[Candidate], replication: int, writer_host: str, size_bytes: int,
            in_background: bool = False) -> Question | None:
        """A question that will be answered; None if there will be no advice. What asks `in_background` leaves room
        for those that wait."""
        if not self._controller.is_known:
            return None
        by_host: dict[str, Candidate] = {}
        for candidate in candidates:
            known = by_host.get(candidate.host)
            if known is None or (candidate.free_bytes or 0) > (known.free_bytes or 0):
                by_host[candidate.host] = candidate
        if not _is_ipv4(writer_host) or replication > len(by_host) or not all(map(_is_ipv4, by_host)):
            return None
        question = Question(_file(by_host.values(), replication, writer_host, size_bytes),
                            _candidates(by_host.values()), by_host)
        with self._changed:
            if time.monotonic() < self._paused_until:
                self.counts["pause"] += 1
                return None
            if len(self._waiting) >= (MAX_BACKGROUND_FILES if in_background else MAX_FILES):
                self.counts["busy"] += 1
                return None
            self._waiting.append(question)
            self._changed.notify()
        return question

    # ------------------------------------------------------------------ private

    def _ask_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_closed)
                if self._is_closed:
                    self._disconnect()
                    return
                questions = [question for question in self._waiting if not question.is_late]
                self._waiting.clear()
            if not questions:
                continue
            try:
                with tracing.Within(questions[0].traceparent):     # of one where there are several
                    self._answer(questions)
            except (OSError, http.client.HTTPException, KeyError, TypeError, ValueError) as error:
                self._disconnect()
                self._pause(str(error) or type(error).__name__)
            with self._changed:
                self.counts.update(question.outcome for question in questions if not question.is_late)
                for question in questions:
                    question.answered.set()

    def _answer(self, questions: Sequence[Question]) -> None:
        if self._connection is None:
            self._connection = self._controller.connect(self._wait_seconds)
        # Creates at the same time mostly have the same candidates: said once, they are checked once.
        shared = questions[0].candidates
        body = json.dumps({"candidates": shared, "files": [
            question.body if question.candidates == shared else {**question.body, "candidates": question.candidates}
            for question in questions]})
        self._connection.request("POST", "/v1/placements", body, {"Content-Type": "application/json"})
        response = self._connection.getresponse()
        content = response.read()
        if response.status != 200:
            raise ValueError(f"{response.status} {content[:200].decode(errors='replace')}")
        for question, placement in zip(questions, json.loads(content)["placements"], strict=True):
            if placement["refused"] is None:
                question.hosts = [str(destination["host"]) for destination in placement["destinations"]]
                question.outcome = "controller"
            else:
                question.outcome = "refused"

    def _pause(self, problem: str) -> None:
        with self._changed:
            if time.monotonic() < self._paused_until:
                return
            self._paused_until = time.monotonic() + PAUSE_AFTER_FAILURE_SECONDS
        log.warning("the controller does not say where replicas should go: %s; they are placed by racks for %g s",
                    problem, PAUSE_AFTER_FAILURE_SECONDS)

    def _disconnect(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(OSError):
                self._connection.close()
            self._connection = None


def _file(candidates: Iterable[Candidate], replication: int, writer_host: str, size_bytes: int) -> dict[str, Any]:
    racks = len({candidate.rack for candidate in candidates})
    return {"writer": writer_host, "size_bytes": size_bytes, "replicas": replication,
            "least_racks": min(2, replication, racks)}


def _candidates(candidates: Iterable[Candidate]) -> list[dict[str, Any]]:
    return [{"host": candidate.host, "rack": candidate.rack, "free_bytes": candidate.free_bytes,
             "disk_bps": 8.0 * candidate.disk_left_bytes or None} for candidate in candidates]


def _is_ipv4(host: str) -> bool:
    try:
        ipaddress.IPv4Address(host)
    except ValueError:
        return False
    return True
