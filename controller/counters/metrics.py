"""What `/metrics` tells of polling."""

from prometheus_client import CollectorRegistry, Counter, Histogram

from speedwell.controller.rest.metrics import LATENCY_BUCKETS


class PollerMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.round_seconds = Histogram("speedwell_poll_round_seconds", "Duration of one round of polls.",
                                       buckets=LATENCY_BUCKETS, registry=registry)
        self.answer_seconds = Histogram("speedwell_poll_answer_seconds", "Time a switch took for its counters.",
                                        buckets=LATENCY_BUCKETS, registry=registry)
        self.skipped = Counter("speedwell_polls_skipped", "Polls left out: the switch had not answered the last.",
                               registry=registry)
        self.lost = Counter("speedwell_polls_lost", "Polls that were never answered.", registry=registry)
