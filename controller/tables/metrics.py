"""What `/metrics` tells of the switches' tables."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge


class TableMetrics:
    def __init__(self, registry: CollectorRegistry, full_switches: Callable[[], float]) -> None:
        Gauge("speedwell_full_switches", "Switches that have no space for all entries that they should hold.",
              registry=registry).set_function(full_switches)
        self.stale_entries = Counter("speedwell_stale_entries_removed",
                                     "Entries of single flows in switches that no record owned.", registry=registry)
