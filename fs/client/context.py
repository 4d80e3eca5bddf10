"""What the readers and appenders of one client share."""

from fs.client.metadata import MetadataClient
from fs.client.metrics import Metrics


class ClientContext:
    """Metadata, connections, steering and counters of one client."""

    def __init__(self, metadata: MetadataClient, *, controller: str | None, local_host: str | None,
                 replica_policy: str | None, path_policy: str | None, steer_min_bytes: int,
                 controller_timeout_seconds: float) -> None:
        self.metadata = metadata
        self.metrics = Metrics()

    def close(self) -> None:
        """Close all connections."""
