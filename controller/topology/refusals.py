"""What was refused because it cannot be who it says it is: counted, and logged now and then."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily

LOG_EVERY_SECONDS = 10.0


class Refusals:
    """Counts by what was refused and why; both are a few words known beforehand. `now` is in seconds."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self._told_at: dict[tuple[str, str], float] = {}

    def count(self, what: str, why: str, now: float, number: int = 1) -> bool:
        """Count `number` refusals; True if it is time to log one of this kind."""
        self.counts[what, why] += number
        last = self._told_at.get((what, why))
        if last is not None and now - last < LOG_EVERY_SECONDS:
            return False
        self._told_at[what, why] = now
        return True


class RefusalsCollector:
    """Shows counts by what was refused and why as `speedwell_refused_total`. Registers itself."""

    def __init__(self, registry: CollectorRegistry, *counts: Counter[tuple[str, str]]) -> None:
        self._counts = counts
        registry.register(self)

    def collect(self) -> Iterator[CounterMetricFamily]:
        family = CounterMetricFamily("speedwell_refused", "What was refused at the network's edge, and why.",
                                     labels=["what", "why"])
        for counts in self._counts:
            for labels, number in sorted(counts.items()):
                family.add_metric(list(labels), number)
        yield family
