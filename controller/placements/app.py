"""Chooses where the replicas of new files go: a policy, by what is measured. `/v1/placements` is in `api`.

A placement is expected for its duration. When an application reports flows along its chain, they are told to whoever
models flows, and the placement is over with the last of them; what never comes expires.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Sequence
from random import Random

from ryu.controller.handler import set_ev_cls

from speedwell.controller.application import Application
from speedwell.controller.counters.host_heartbeats import EventHostCounted, HostRates, RefusedHeartbeat
from speedwell.controller.counters.measurements import Measurements, fresh_rate
from speedwell.controller.counters.poller import EventMeasured
from speedwell.controller.loops import Turns, in_turns
from speedwell.controller.placements.api import PlacementsApi
from speedwell.controller.placements.book import Expected, PlacementBook
from speedwell.controller.placements.metrics import PlacementMetrics
from speedwell.controller.policy.errors import ImpossiblePlacement
from speedwell.controller.policy.network.five_tuple import TCP, FiveTuple
from speedwell.controller.policy.placements.request import (
    FollowsFlows,
    Placement,
    PlacementPolicy,
    PlacementRequest,
    place_in_turn,
)
from speedwell.controller.policy.placements.sinbad import MeasuredBy
from speedwell.controller.policy.registry import POLICIES, Kind
from speedwell.controller.rest import RestApplication
from speedwell.controller.services import Services
from speedwell.controller.tables.events import EventFlowsReported
from speedwell.controller.tables.transfers import Transfers
from speedwell.controller.topology.state import NetworkState


class Placements(Application):
    """Feeds the policy with measurements, and asks it. Reads `Measurements`, tells `Transfers`."""

    def __init__(self, services: Services) -> None:
        super().__init__(services)
        self._state = services.get(NetworkState)
        self._measurements = services.get(Measurements)
        rest = services.get(RestApplication)
        self._metrics = PlacementMetrics(rest.metrics)
        self._metrics.expected.set_function(lambda: len(self.expected()))
        self._by_hosts = self._state.settings.placement_measurements == "heartbeats"
        self._policy: PlacementPolicy = POLICIES.make(
            Kind.PLACEMENT, self._state.settings.placement_policy, self._state.network, Random(),
            MeasuredBy.HOSTS if self._by_hosts else MeasuredBy.SWITCHES)
        self._host_rates = HostRates(self._state)
        self._book = PlacementBook()
        self._awaited = 0     # files of requests that are being placed
        self._decides_at: float | None = None
        """The time of one decision after the other, as long as the policy is told nothing else between them: what it
        computes for one serves the next."""
        rest.register(PlacementsApi(self, self._state))

    def start(self) -> None:
        self.transfers = self.services.get(Transfers)
        super().start()

    def place(self, requests: Sequence[PlacementRequest]) -> list[Expected | ImpossiblePlacement]:
        """Choose the destinations of files, smallest first, and expect their transfers; in the order of `requests`.
        Other green threads run between two choices, each of which takes milliseconds where candidates are many.

        Raises TooManyPlacements.
        """
        begin = time.monotonic()
        self._book.end_those_over(begin)
        self._book.require_space(self._awaited + len(requests))
        self._awaited += len(requests)
        try:
            self._tell_of_flows(math.inf)
            return self._place(requests)
        finally:
            self._awaited -= len(requests)
            self._metrics.decision_seconds.observe(time.monotonic() - begin)

    def _place(self, requests: Sequence[PlacementRequest]) -> list[Expected | ImpossiblePlacement]:
        wanted = {secrets.token_hex(8): request for request in requests}
        answers: dict[object, Expected | ImpossiblePlacement] = {}
        turns = Turns()
        for placement_id, outcome in place_in_turn(self._policy, list(wanted.items()), self._clock):
            if isinstance(outcome, Placement):
                expected = Expected(str(placement_id), wanted[str(placement_id)], outcome, time.monotonic())
                self._book.add(expected)
                self._metrics.placed.inc()
                answers[placement_id] = expected
            else:
                answers[placement_id] = outcome
                self._metrics.refused.labels(outcome.constraint).inc()
            turns.others()
        return [answers[placement_id] for placement_id in wanted]

    def _clock(self) -> float:
        if self._decides_at is None:
            self._decides_at = time.monotonic()
        return self._decides_at

    def _tell_of_flows(self, counted_since: float) -> None:
        self._decides_at = None
        if isinstance(self._policy, FollowsFlows):
            self._policy.flows_told(self.transfers.known(counted_since), time.monotonic())

    def end(self, placement_id: str) -> None:
        """A transfer is over, or will not be: it is expected no more. Raises UnknownPlacement."""
        self._book.end_those_over(time.monotonic())
        self._end(placement_id)

    def _end(self, placement_id: str) -> None:
        self._decides_at = None
        for flow in self._book.remove(placement_id).flows:
            self.transfers.ended(flow)
        self._policy.transfer_ended(placement_id)

    def expected(self) -> Sequence[Expected]:
        """The placements whose transfers are expected to run now."""
        self._book.end_those_over(time.monotonic())
        return list(self._book)

    @set_ev_cls(EventFlowsReported)
    def flows_reported(self, event: EventFlowsReported) -> None:
        """Flows of applications began or ended: some are what placements expect."""
        for flow, size_bytes in event.flows:
            if not size_bytes:
                if self._book.flow_rests(flow, time.monotonic()):
                    self._flow_ended(flow)
            elif flow.protocol == TCP and not self._book.flow_goes_on(flow, size_bytes):
                self._flow_ended(flow)
                self._flow_began(flow, size_bytes)

    def _flow_began(self, flow: FiveTuple, size_bytes: int) -> None:
        expected = self._book.whose(flow, size_bytes)
        if expected is None:
            return
        whole_bytes = max(size_bytes, expected.owed_bytes((flow.source, flow.destination)))
        if self.transfers.began(flow, whole_bytes, expected.id):
            self._book.flow_began(flow, size_bytes, expected)
            self._metrics.flows.inc()

    def _flow_ended(self, flow: FiveTuple) -> None:
        expected = self._book.flow_ended(flow)
        if expected is not None:
            self.transfers.ended(flow)
            if expected.is_done:
                self._end(expected.id)

    @set_ev_cls(EventMeasured)
    def measured(self, event: EventMeasured) -> None:
        for flow in self._book.rested(time.monotonic()):
            self._flow_ended(flow)
        self._tell_of_flows(event.began_at)
        if self._by_hosts:
            return
        for link in in_turns(list(self._state.network.links)):
            self._decides_at = None
            measured = fresh_rate(self._state, self._measurements, link, event.began_at)
            if measured is not None:
                self._policy.link_measured(link, *measured)

    @set_ev_cls(EventHostCounted)
    def host_counted(self, event: EventHostCounted) -> None:
        """A host's heartbeat came, which is of use where hosts measure."""
        if not self._by_hosts:
            return
        try:
            rates = self._host_rates.take(event.counted, time.time())
        except RefusedHeartbeat as error:
            self._metrics.heartbeats.labels(error.reason).inc()
            return
        self._metrics.heartbeats.labels("taken").inc()
        self._decides_at = None
        for link, rate_bps in rates.items():
            self._policy.link_measured(link, rate_bps, time.monotonic())
