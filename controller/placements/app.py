"""Chooses where the replicas of new files go (Sinbad), by what the switches measure. `/v1/placements` is in `api`."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from random import Random

from ryu.controller.handler import set_ev_cls

from controller.application import Application
from controller.counters.measurements import Measurements, fresh_rate
from controller.counters.poller import EventMeasured
from controller.loops import in_turns
from controller.placements.api import PlacementsApi
from controller.placements.book import Expected, PlacementBook
from controller.placements.metrics import PlacementMetrics
from controller.policy.errors import ImpossiblePlacement
from controller.policy.placements.sinbad import Placement, PlacementRequest, Sinbad
from controller.rest import RestApplication
from controller.services import Services
from controller.topology.state import NetworkState


class Placements(Application):
    """Feeds Sinbad with measurements, and asks it. Reads `Measurements`."""

    def __init__(self, services: Services) -> None:
        super().__init__(services)
        self._state = services.get(NetworkState)
        self._measurements = services.get(Measurements)
        rest = services.get(RestApplication)
        self._metrics = PlacementMetrics(rest.metrics)
        self._metrics.expected.set_function(lambda: len(self.expected()))
        self._policy = Sinbad(self._state.network, Random())
        self._book = PlacementBook()
        rest.register(PlacementsApi(self, self._state))

    def place(self, requests: Sequence[PlacementRequest]) -> list[Expected | ImpossiblePlacement]:
        """Choose the destinations of files, smallest first, and expect their transfers; in the order of `requests`.

        Raises TooManyPlacements.
        """
        begin = time.monotonic()
        self._book.end_those_over(begin)
        self._book.require_space(len(requests))
        ids = [secrets.token_hex(8) for _ in requests]
        outcomes = self._policy.place_batch(list(zip(ids, requests, strict=True)), begin)
        answer: list[Expected | ImpossiblePlacement] = []
        for placement_id, request in zip(ids, requests, strict=True):
            outcome = outcomes[placement_id]
            if isinstance(outcome, Placement):
                answer.append(expected := Expected(placement_id, request, outcome, begin))
                self._book.add(expected)
                self._metrics.placed.inc()
            else:
                answer.append(outcome)
                self._metrics.refused.labels(outcome.constraint).inc()
        self._metrics.decision_seconds.observe(time.monotonic() - begin)
        return answer

    def end(self, placement_id: str) -> None:
        """A transfer is over, or will not be: it is expected no more. Raises UnknownPlacement."""
        self._book.end_those_over(time.monotonic())
        self._book.remove(placement_id)
        self._policy.transfer_ended(placement_id)

    def expected(self) -> Sequence[Expected]:
        """The placements whose transfers are expected to run now."""
        self._book.end_those_over(time.monotonic())
        return list(self._book)

    @set_ev_cls(EventMeasured)
    def measured(self, event: EventMeasured) -> None:
        for links in in_turns(list(self._state.network.links)):
            for link in links:
                measured = fresh_rate(self._state, self._measurements, link, event.began_at)
                if measured is not None:
                    self._policy.link_measured(link, *measured)
