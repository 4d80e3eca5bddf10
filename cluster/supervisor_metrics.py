"""What a supervisor tells Prometheus."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from speedwell.cluster.supervision import Supervision


class SupervisorMetrics(Collector):
    """Which processes run, and how often each was started again."""

    def __init__(self, supervision: Supervision) -> None:
        self._supervision = supervision

    def collect(self) -> Iterator[Metric]:
        up = GaugeMetricFamily("speedwell_process_up", "Whether the process runs.", labels=["name"])
        restarts = CounterMetricFamily("speedwell_process_restarts",
                                       "How often the supervisor restarted the process.", labels=["name"])
        for name, is_up, count in self._supervision.state():
            up.add_metric([name], is_up)
            restarts.add_metric([name], count)
        yield up
        yield restarts
