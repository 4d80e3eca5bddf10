"""What `/metrics` tells of the switches' tables."""

from prometheus_client import CollectorRegistry, Counter


class TableMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.stale_entries = Counter("speedwell_stale_entries_removed",
                                     "Entries of single flows in switches that no record owned.", registry=registry)
