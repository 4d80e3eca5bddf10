"""What `/metrics` tells of coflows."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from speedwell.controller.rest.metrics import LATENCY_BUCKETS


class CoflowMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.reports = Counter("speedwell_coflow_reports", "Datagrams with reports, by outcome.", ["outcome"],
                               registry=registry)
        self.arrived = Counter("speedwell_coflows_arrived",
                               "Coflows that were reported for the first time.", registry=registry)
        self.distrusted = Counter("speedwell_coflows_distrusted", "Coflows that moved more than they announced.",
                                  registry=registry)
        self.refused = Counter("speedwell_coflow_flows_refused", "Flows that could not be placed, by problem.",
                               ["problem"], registry=registry)
        self.live = Gauge("speedwell_coflows_live", "Coflows that are live.", registry=registry)
        self.decision_seconds = Histogram("speedwell_coflow_decision_seconds",
                                          "Time from an update to the schedule that it leads to.",
                                          buckets=(0.0001, 0.00025, *LATENCY_BUCKETS), registry=registry)
        self.placement_seconds = Histogram("speedwell_coflow_placement_seconds",
                                           "Time to put a schedule into the switches, confirmed.",
                                           buckets=LATENCY_BUCKETS, registry=registry)
