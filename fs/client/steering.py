"""Choosing where a read comes from: by the controller, or the nearest replica when there is none."""

from dataclasses import dataclass


@dataclass(frozen=True)
class SteeredRead:
    """Where one stream of a read came from and who chose it.

    `chosen_by` is "controller" (the flowserver answered) or "nearest" (no controller configured, range
    too small to steer, or fallback). `path` names the switches and hosts from the replica to the client;
    it is empty when the controller did not choose or the replica is on the client's own host.
    """

    replica_id: str
    replica_host: str
    replica_port: int
    client_port: int
    chosen_by: str
    offset_bytes: int
    size_bytes: int
    path: tuple[str, ...] = ()
    estimated_bps: float | None = None
    cost_seconds: float | None = None
    replica_policy: str | None = None
    path_policy: str | None = None
