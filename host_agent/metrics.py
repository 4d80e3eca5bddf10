"""What an agent tells Prometheus."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from speedwell.host_agent.agent import Agent

_COUNTERS = {"packets": "Packets that were held, however shortly.", "directives": "Directives believed.",
             "marks": "Connections' classes set.", "paces": "Senders' paces set.",
             "too_many_destinations": "Turns for destinations beyond those that the agent has queues for.",
             "turns": "Turns of the loop.", "failures": "Failures of the loop and of commands."}


class AgentMetrics(Collector):
    """Reads the agent when it is asked."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def collect(self) -> Iterator[Metric]:
        agent = self._agent
        for name, text in _COUNTERS.items():
            yield CounterMetricFamily(f"speedwell_agent_{name}", text, value=agent.counts[name])
        yield CounterMetricFamily("speedwell_agent_late_seconds",
                                  "How much later than planned the loop woke up, summed.",
                                  value=agent.late_seconds)
        yield CounterMetricFamily("speedwell_agent_guardian_deaths", "Guardians that had to be replaced.",
                                  value=agent.guardian_deaths)
        refused = CounterMetricFamily("speedwell_agent_refused",
                                      "Datagrams that were refused, by reason.", labels=["reason"])
        for reason, count in list(agent.refused.items()):
            refused.add_metric([reason], count)
        yield refused
        yield GaugeMetricFamily("speedwell_agent_registered", "Whether a scheduler has welcomed it.",
                                value=agent.is_registered)
        yield GaugeMetricFamily("speedwell_agent_destinations",
                                "Destinations that have turns, or had them lately.", value=agent.destinations)
        yield GaugeMetricFamily("speedwell_agent_held_bytes",
                                "Bytes of packets that wait for their turn.", value=agent.held_bytes)
