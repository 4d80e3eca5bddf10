"""What `speedwell-certificates` tells Prometheus: until when certificates are good, and whether they are renewed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from prometheus_client import Counter
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from speedwell.fs.errors import IdentityError
from speedwell.fs.identity import keeper


class CertificateMetrics(Collector):
    """Of the identities in `directory`; reads them whenever Prometheus asks."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._trouble = ""
        self._requests = Counter("speedwell_certificates_requests", "Requests of other machines, by status.",
                                 ["request", "status"], registry=None)

    def note_trouble(self, trouble: str) -> None:
        """What keeps certificates from being renewed; empty: nothing does."""
        self._trouble = trouble

    def note_answer(self, request: str, status: int) -> None:
        self._requests.labels(request, status).inc()

    def collect(self) -> Iterator[Metric]:
        yield from self._requests.collect()
        yield GaugeMetricFamily("speedwell_certificates_renewal_failing",
                                "1 if the last renewal failed; the log says why.",
                                value=bool(self._trouble))
        ends = GaugeMetricFamily("speedwell_certificate_end_timestamp_seconds",
                                 "When each certificate that this process renews ends.", labels=["name"])
        with suppress(IdentityError, OSError, ValueError, TypeError):   # which the other one says
            for each in keeper.kept(self._directory):
                ends.add_metric([each.name], each.expires_at)
        yield ends
