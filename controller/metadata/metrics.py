"""What `/metrics` tells of metadata servers."""

from prometheus_client import CollectorRegistry, Counter, Gauge


class MetadataMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.servers = Gauge("speedwell_metadata_servers", "Metadata servers that have joined.", registry=registry)
        self.silent = Gauge("speedwell_metadata_servers_silent", "Those that have not announced themselves for "
                            "seconds.", registry=registry)
        self.moving = Gauge("speedwell_metadata_blocks_moving", "Blocks on their way to another server.",
                            registry=registry)
        self.refused = Counter("speedwell_metadata_servers_refused", "Requests to join or leave that were refused.",
                               registry=registry)
