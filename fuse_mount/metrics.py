"""What a mount tells Prometheus: its requests, what its client did, whether a nameserver answers it."""

import errno
import os
from collections.abc import Callable, Iterator
from itertools import accumulate
from pathlib import Path

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from speedwell.fs.client import Client
from speedwell.fs.client.names.nameservers import leads, parse_addresses
from speedwell.fs.errors import NotAuthenticated, SpeedwellError
from speedwell.fuse_mount.measures import BOUNDS_SECONDS, Measures

NAMESERVER_SECONDS = 1.0
_BOUNDS = (*map(str, BOUNDS_SECONDS), "+Inf")
_OF_CLIENT = {
    "bytes_read": ("client_read_bytes", "From dataservers."),
    "bytes_appended": ("client_appended_bytes", "To dataservers."),
    "bytes_written": ("client_changed_bytes", "To dataservers, in changes other than appends."),
    "steered_reads": ("client_steered_reads", "Streams that the controller placed."),
    "nearest_reads": ("client_nearest_reads", "Streams from the nearest replica."),
    "controller_fallbacks": ("client_controller_fallbacks", "Streams that the controller was to place, and did not."),
    "replica_failures": ("client_replica_failures", "Replicas that did not serve, or stopped in the middle."),
    "replicas_dropped": ("client_replicas_dropped", "Replicas that did not take an append or a change."),
    "cache_hits": ("client_cache_hits", "Blocks that came from the cache on the local disk."),
    "cache_misses": ("client_cache_misses", "Blocks that were fetched for the cache."),
    "cache_damaged": ("client_cache_damaged_blocks", "Cached blocks that differed from their sum."),
    "cache_failures": ("client_cache_failures", "Blocks that the cache could not read, write or remove."),
    "damaged_blocks": ("client_damaged_blocks", "Received blocks that differed from their sum."),
}


class MountMetrics(Collector):
    """Reads the mount when it is asked."""

    def __init__(self, mountpoint: str, nameserver: str, measures: Measures, client: Client,
                 open_files: Callable[[], int], identity: Path | None = None) -> None:
        """`identity` is the directory of the mount's, where it is not known of the nameserver."""
        self._about = {"mountpoint": os.fsencode(mountpoint).decode("utf-8", "backslashreplace"),
                       "nameserver": nameserver}
        self._measures = measures
        self._client = client
        self._open_files = open_files
        self._identity = identity

    def collect(self) -> Iterator[Metric]:
        yield InfoMetricFamily("speedwell_mount", "What is mounted where.", value=self._about)
        yield GaugeMetricFamily("speedwell_mount_nameserver_up", "Whether a nameserver answers this mount.",
                                value=_answers(self._about["nameserver"], self._identity))
        yield GaugeMetricFamily("speedwell_mount_open_files", "Descriptors of files that programs have open.",
                                value=self._open_files())
        yield from self._requests()
        done = self._client.metrics.snapshot()
        for counter, (name, text) in _OF_CLIENT.items():
            yield CounterMetricFamily(f"speedwell_{name}", text, value=done[counter])

    def _requests(self) -> Iterator[Metric]:
        seconds = HistogramMetricFamily("speedwell_mount_request_seconds", "Time to answer, by operation.",
                                        labels=["operation"])
        for operation, done in self._measures.operations().items():
            seconds.add_metric([operation], list(zip(_BOUNDS, accumulate(done.buckets), strict=True)), done.seconds)
        yield seconds
        for name, count in zip(("read", "written"), self._measures.moved_bytes(), strict=True):
            yield CounterMetricFamily(f"speedwell_mount_{name}_bytes", "By requests of the kernel, after its cache.",
                                      value=count)
        errors = CounterMetricFamily("speedwell_mount_errors", "Requests that ended in an error, by its errno.",
                                     labels=["operation", "error"])
        for (operation, number), count in self._measures.errors().items():
            errors.add_metric([operation, errno.errorcode.get(number, "unknown")], count)
        yield errors
        under_way = self._measures.under_way_seconds()
        yield GaugeMetricFamily("speedwell_mount_requests_under_way",
                                "Requests without an answer yet, except those that wait for a lock.",
                                value=len(under_way))
        yield GaugeMetricFamily("speedwell_mount_oldest_request_seconds",
                                "Age of the oldest request without an answer.",
                                value=max(under_way, default=0))


def _answers(nameserver: str, identity: Path | None) -> bool:
    for address in parse_addresses(nameserver):
        try:
            if leads(address, NAMESERVER_SECONDS, identity):
                return True
        except NotAuthenticated:
            continue
        except SpeedwellError:
            return True     # it says that it cannot answer yet
    return False
