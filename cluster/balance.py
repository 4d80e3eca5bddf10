"""What evening out the disks will move, as the nameserver decides it."""

from collections.abc import Iterable, Mapping

from speedwell.fs.nameserver.replicas.recovery_plan import BALANCED_WITHIN, overfull
from speedwell.fs.proto.speedwell_pb2 import DataserverStatus


def to_move(statuses: Iterable[DataserverStatus]) -> dict[str, int]:
    """By dataserver, about how many bytes it is to give (positive) or take (negative) until its disk is as full as
    the mean; empty if nothing is to move."""
    disks = {index: status for index, status in enumerate(statuses)
             if status.server.alive and not status.draining and status.capacity_bytes}
    used = {index: 1 - status.available_bytes / status.capacity_bytes for index, status in disks.items()}
    givers, takers = overfull(used, BALANCED_WITHIN)
    if not givers or not takers:
        return {}
    mean = sum(used.values()) / len(used)
    return {disks[index].server.dataserver_id: round((used[index] - mean) * disks[index].capacity_bytes)
            for index in sorted(givers | takers)}


def given(moves: Mapping[str, int]) -> int:
    """The bytes that move in all."""
    return sum(count for count in moves.values() if count > 0)
