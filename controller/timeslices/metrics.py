"""What the scheduler tells Prometheus."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from speedwell.controller.timeslices.service import TurnService

_COUNTERS = {"reports": "Of agents.", "directives": "Sent to agents.",
             "unsent": "Datagrams that could not be sent.", "failures": "Turns that failed."}


class SchedulerMetrics(Collector):
    """Reads the scheduler when it is asked."""

    def __init__(self, service: TurnService) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        service = self._service
        for name, text in _COUNTERS.items():
            yield CounterMetricFamily(f"speedwell_timeslices_{name}", text, value=service.counts[name])
        refused = CounterMetricFamily("speedwell_timeslices_refused",
                                      "Datagrams that were refused, by reason.", labels=["reason"])
        for reason, count in list(service.refused.items()):
            refused.add_metric([reason], count)
        yield refused
        destinations = GaugeMetricFamily("speedwell_timeslices_destinations",
                                         "Destinations to which an agent has turns now.", labels=["agent"])
        for agent in tuple(service.keeper.agents):
            destinations.add_metric([agent], len(service.keeper.coordinated.get(agent, ())))
        yield destinations
        yield GaugeMetricFamily("speedwell_timeslices_agents", "Agents that report.", value=len(destinations.samples))
        yield GaugeMetricFamily("speedwell_timeslices_standing_by", "Whether another scheduler gives turns.",
                                value=service.stands_by)
        yield GaugeMetricFamily("speedwell_timeslices_senders", "Hosts that have turns now.",
                                value=len(service.keeper.coordinated))
        yield GaugeMetricFamily("speedwell_timeslices_pinned", "Pairs that the network keeps on one path each.",
                                value=len(service.watch.paths))
        yield GaugeMetricFamily("speedwell_timeslices_hosts",
                                "Hosts of the network that the controller described last.",
                                value=len(service.watch.network.hosts))
        yield GaugeMetricFamily("speedwell_timeslices_controller_up", "Whether the controller describes the network.",
                                value=service.watch.is_answered)
