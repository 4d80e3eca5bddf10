"""What `/metrics` tells of placements."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from speedwell.controller.rest.metrics import LATENCY_BUCKETS


class PlacementMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.placed = Counter("speedwell_placements", "Files whose replicas were placed.", registry=registry)
        self.refused = Counter("speedwell_placements_refused", "Files that no choice of candidates suits, by the "
                               "constraint that fails.", ["constraint"], registry=registry)
        self.expected = Gauge("speedwell_placements_expected", "Placements whose transfer is expected to run.",
                              registry=registry)
        self.heartbeats = Counter("speedwell_host_heartbeats", "Heartbeats of hosts, by what came of them: taken, or "
                                  "why not.", ["outcome"], registry=registry)
        self.flows = Counter("speedwell_placement_flows", "Reported flows that carry a placement's bytes.",
                             registry=registry)
        self.decision_seconds = Histogram("speedwell_placement_decision_seconds", "Time to place the files of one "
                                          "request.", buckets=LATENCY_BUCKETS, registry=registry)
