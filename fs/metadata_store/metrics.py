"""What a metadata server tells Prometheus."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import Counter, Summary
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from speedwell.fs.metadata_store.ownership import Ownership


class StoreMetrics(Collector):
    """Counts and times requests as they are noted, and reads what the server owns when it is asked."""

    def __init__(self, ownership: Ownership) -> None:
        self._ownership = ownership
        self._seconds = Summary("speedwell_metadata_request_seconds", "Time to answer, by command.", ["command"],
                                registry=None)
        self._refused = Counter("speedwell_metadata_refused", "Requests that ended in an error.", ["command"],
                                registry=None)

    def note(self, command: str, seconds: float, is_refused: bool) -> None:
        self._seconds.labels(command).observe(seconds)
        if is_refused:
            self._refused.labels(command).inc()

    def collect(self) -> Iterator[Metric]:
        yield from self._seconds.collect()
        yield from self._refused.collect()
        yield GaugeMetricFamily("speedwell_metadata_owned_addresses",
                                "Addresses of keys whose records this server has.",
                                value=sum(block.num_addresses for block in self._ownership.owned))
        yield GaugeMetricFamily("speedwell_metadata_members", "Metadata servers that this one knows of.",
                                value=len(self._ownership.members))
