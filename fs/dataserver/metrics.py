"""What a dataserver tells Prometheus: its requests, the bytes of files in both directions, its disk."""

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from google.protobuf.message import Message
from prometheus_client import Counter, Summary
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from speedwell.fs.dataserver.admission import Door
from speedwell.fs.dataserver.disk.store import FileStore
from speedwell.fs.dataserver.replication.lease import Lease
from speedwell.fs.dataserver.server import DataServer
from speedwell.fs.errors import StorageFailed
from speedwell.fs.proto.speedwell_pb2 import DataRequest
from speedwell.fs.wire.channel import Channel


class MeasuredDataServer(DataServer):
    """Counts and times what it answers. A client on the same host that reads the files itself counts as sent to."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._seconds = Summary("speedwell_dataserver_request_seconds", "Time to answer, by operation.",
                                ["operation"], registry=None)
        self._sent = Counter("speedwell_dataserver_sent_bytes",
                             "Bytes of files sent to clients and other dataservers.",
                             registry=None)
        self._received = Counter("speedwell_dataserver_received_bytes",
                                 "Announced by appends and changes, from clients and other dataservers.",
                                 registry=None)

    @property
    def collectors(self) -> tuple[Collector, ...]:
        return self._seconds, self._sent, self._received

    def serve_request(self, channel: Channel, request: Message) -> None:
        assert isinstance(request, DataRequest)
        operation = request.WhichOneof("operation") or "none"
        began = time.perf_counter()
        try:
            super().serve_request(channel, request)
        finally:
            self._seconds.labels(operation).observe(time.perf_counter() - began)
            self._received.inc(request.append.length + sum(each.length for each in request.write.ranges))

    def note_sent(self, count_bytes: int) -> None:
        self._sent.inc(count_bytes)


class StateMetrics(Collector):
    """Reads disk and lease whenever Prometheus asks."""

    def __init__(self, store: FileStore, lease: Lease, door: Door) -> None:
        self._store = store
        self._lease = lease
        self._door = door

    def collect(self) -> Iterator[Metric]:
        yield CounterMetricFamily("speedwell_dataserver_refused",
                                  "Requests without a good token, or that name a foreign server.",
                                  value=self._door.refused)
        yield GaugeMetricFamily("speedwell_dataserver_lease_seconds",
                                "For how long it may order appends without hearing from the nameserver.",
                                value=self._lease.left_seconds)
        capacity = GaugeMetricFamily("speedwell_disk_capacity_bytes", "Size of the disk below each --directory.",
                                     labels=["directory"])
        available = GaugeMetricFamily("speedwell_disk_available_bytes",
                                      "Space on that disk for new files.", labels=["directory"])
        failed = GaugeMetricFamily("speedwell_disk_failed",
                                   "1 if the directory is not used and its replicas are made elsewhere.",
                                   labels=["directory"])
        with contextlib.suppress(StorageFailed):
            for use in self._store.directories.uses():
                failed.add_metric([use.path], bool(use.failure))
                if not use.failure:
                    capacity.add_metric([use.path], use.capacity_bytes)
                    available.add_metric([use.path], use.available_bytes)
        yield from (capacity, available, failed)
