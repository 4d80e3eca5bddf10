"""What `/metrics` tells, in Prometheus' terms. Each application makes its own group on the shared registry."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, disable_created_metrics

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


class MonitorMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.round_seconds = Histogram("speedwell_poll_round_seconds", "Duration of one round of polls.",
                                       buckets=LATENCY_BUCKETS, registry=registry)
        self.answer_seconds = Histogram("speedwell_poll_answer_seconds", "Time a switch took for its counters.",
                                        buckets=LATENCY_BUCKETS, registry=registry)
        self.skipped = Counter("speedwell_polls_skipped", "Polls left out: the switch had not answered the last.",
                               registry=registry)
        self.lost = Counter("speedwell_polls_lost", "Polls that were never answered.", registry=registry)


class CoflowMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.reports = Counter("speedwell_coflow_reports", "Datagrams, by what was made of them.", ["outcome"],
                               registry=registry)
        self.arrived = Counter("speedwell_coflows_arrived", "Coflows that were first heard of.", registry=registry)
        self.distrusted = Counter("speedwell_coflows_distrusted", "Coflows that moved more than they announced.",
                                  registry=registry)
        self.refused = Counter("speedwell_coflow_flows_refused", "Flows that could not be placed, by problem.",
                               ["problem"], registry=registry)
        self.live = Gauge("speedwell_coflows_live", "Coflows that are live.", registry=registry)
        self.decision_seconds = Histogram("speedwell_coflow_decision_seconds", "Time a report took to be taken in.",
                                          buckets=(0.0001, 0.00025, *LATENCY_BUCKETS), registry=registry)
        self.placement_seconds = Histogram("speedwell_coflow_placement_seconds",
                                           "Time to put a schedule into the switches, confirmed.",
                                           buckets=LATENCY_BUCKETS, registry=registry)


class FlowserverMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.reads = Counter("speedwell_reads", "Reads placed, by policy.", ["replica_policy", "path_policy"],
                             registry=registry)
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
        self.stale_entries = Counter("speedwell_stale_entries_removed", "Entries in switches that no read owned.",
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
