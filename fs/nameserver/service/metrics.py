"""What a nameserver tells Prometheus: its requests, and, while it leads, the namespace and the dataservers."""

import time
from collections.abc import Iterator
from functools import cache

from prometheus_client import Counter, Summary
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from speedwell.fs.errors import SpeedwellError
from speedwell.fs.identity.bundle import Peer
from speedwell.fs.nameserver.service.dispatch import Requests
from speedwell.fs.proto.speedwell_pb2 import DataserverStatus, StatisticsReply, StatisticsRequest
from speedwell.fs.rates import REQUESTS_PER_SECOND

_OF_ALL = {"files": "Files.", "directories": "Directories.", "capacity_bytes": "Of all disks.",
           "available_bytes": "Of all disks, for new files.",
           "unwritable_files": "With fewer live replicas than a change needs.",
           "warnings": "What an operator has to decide: `speedwell status` says what.",
           "awaited_inventories": "Dataservers without which nothing is deleted."}
_OF_ONE = {"alive": "Whether it is heard from.", "draining": "Whether it is being emptied.",
           "capacity_bytes": "Of its disk.", "available_bytes": "Of its disk, for new files.",
           "replicas": "That files have on it.", "heartbeat_age_seconds": "Since it was last heard."}


class MeasuredRequests(Requests):
    """Counts and times what it answers."""

    def __init__(self, requests_per_second: float = REQUESTS_PER_SECOND) -> None:
        super().__init__(requests_per_second=requests_per_second)
        self.delayed = Counter("speedwell_nameserver_delayed",
                               "Requests that waited because their sender made too many.",
                               registry=None)
        self.seconds = Summary("speedwell_nameserver_request_seconds", "Time to answer, by request.", ["request"],
                               registry=None)
        self.refused = Counter("speedwell_nameserver_refused", "Requests that ended in an error, by its name.",
                               ["request", "error"], registry=None)
        self._refused = cache(self.refused.labels)
        self._seconds = {name: self.seconds.labels(name) for name in (*self.names, "unknown")}

    def pace(self, who: str) -> float:
        wait_seconds = super().pace(who)
        if wait_seconds:
            self.delayed.inc()
        return wait_seconds

    def answer(self, name: str, data: bytes, sender: Peer | None = None) -> bytes:
        known = name if name in self._seconds else "unknown"
        began = time.perf_counter()
        try:
            return super().answer(name, data, sender)
        except SpeedwellError as error:
            self._refused(known, type(error).__name__).inc()
            raise
        finally:
            self._seconds[known].observe(time.perf_counter() - began)


class NamespaceMetrics(Collector):
    """Asks the nameserver for its statistics whenever Prometheus asks."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests

    def collect(self) -> Iterator[Metric]:
        try:
            reply = Requests.answer(self._requests, "Statistics", StatisticsRequest().SerializeToString())
        except SpeedwellError:
            reply = None
        yield GaugeMetricFamily("speedwell_nameserver_leading", "Whether this nameserver leads.",
                                value=reply is not None)
        if reply is not None:
            statistics = StatisticsReply.FromString(reply)
            yield from _of_all(statistics)
            yield from _of_each(statistics)


def _of_all(statistics: StatisticsReply) -> Iterator[Metric]:
    values = {"unwritable_files": statistics.unwritable, "warnings": len(statistics.warnings),
              "awaited_inventories": len(statistics.awaited_inventories)}
    for name, text in _OF_ALL.items():
        value = values[name] if name in values else getattr(statistics, name)
        yield GaugeMetricFamily(f"speedwell_{name}", text, value=value)
    placed = GaugeMetricFamily("speedwell_placements_by_controller",
                               "Large files, by whether and why not the controller placed them.",
                               labels=["outcome"])
    for outcome, count in statistics.placed_by_controller.items():
        placed.add_metric([outcome], count)
    yield placed


def _of_each(statistics: StatisticsReply) -> Iterator[Metric]:
    for name, text in _OF_ONE.items():
        family = GaugeMetricFamily(f"speedwell_dataserver_{name}", text, labels=["dataserver"])
        for status in statistics.dataservers:
            family.add_metric([status.server.dataserver_id], _value(status, name))
        yield family


def _value(status: DataserverStatus, name: str) -> float:
    if name == "alive":
        return float(status.server.alive)
    if name == "heartbeat_age_seconds":
        return status.last_heartbeat_seconds_ago
    return float(getattr(status, name))
