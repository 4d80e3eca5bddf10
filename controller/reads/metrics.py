"""What `/metrics` tells of reads."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from speedwell.controller.rest.metrics import LATENCY_BUCKETS


class ReadMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.reads = Counter("speedwell_reads", "Reads placed, by policy.", ["replica_policy", "path_policy"],
                             registry=registry)
        self.transfers = Counter("speedwell_transfers", "Flows of placements that were given a path.",
                                 registry=registry)
        self.in_flight = Gauge("speedwell_reads_in_flight", "Reads that have not ended.", registry=registry)
        self.local_parts = Counter("speedwell_local_parts", "Parts served by the client's own host.",
                                   registry=registry)
        self.refused = Counter("speedwell_reads_refused", "Reads that were not placed, by kind of problem.",
                               ["problem"], registry=registry)
        self.installs_refused = Counter("speedwell_installs_refused", "Entries that a switch did not confirm.",
                                        ["problem"], registry=registry)
        self.parts_ended = Counter("speedwell_parts_ended", "Parts of reads that ended, and why.", ["reason"],
                                   registry=registry)
        self.reroutes = Counter("speedwell_reroutes", "Running parts that were given another path.", ["result"],
                                registry=registry)
        self.waiting_reads = Counter("speedwell_reads_waited", "Reads that had to wait for their first part.",
                                     registry=registry)
        self.divisions = Counter("speedwell_divisions", "Reads in flight that were started or divided anew.",
                                 registry=registry)
        self.unfollowed = Counter("speedwell_reads_unfollowed", "Reads whose clients did not ask for news any more.",
                                  registry=registry)
        self.decision_seconds = Histogram("speedwell_decision_seconds", "Time a replica and path selection took.",
                                          buckets=(0.0001, 0.00025, *LATENCY_BUCKETS), registry=registry)
        self.placement_seconds = Histogram("speedwell_placement_seconds",
                                           "Time to place a read, with the switches' confirmation.",
                                           buckets=LATENCY_BUCKETS, registry=registry)
