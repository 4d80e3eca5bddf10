"""What `/metrics` tells, in Prometheus' terms. Each room has a group of its own on the shared registry."""

from prometheus_client import CollectorRegistry, Counter, ProcessCollector, disable_created_metrics

LATENCY_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.015, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)

# A second series for each counter, saying when it was created: of no use here and half of the page.
disable_created_metrics()  # type: ignore[no-untyped-call]


def new_registry() -> CollectorRegistry:
    """A registry with the process's own memory, CPU and file figures."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    return registry


class HttpMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests = Counter("speedwell_http_requests", "Answers, by route and status.",
                                ["method", "route", "status"], registry=registry)
        self._children: dict[tuple[str, str, int], Counter] = {}

    def answered(self, method: str, route: str, status: int) -> None:
        child = self._children.get((method, route, status))
        if child is None:       # finding it takes as long as all the rest
            child = self._children[method, route, status] = self.requests.labels(method, route, status)
        child.inc()
