"""The classes of traffic between switches, each with its share of a port (MinCOF, section III-B)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class QueueClass:
    """One queue of every port: `number` is its number in the switch and the traffic class of its packets, `share`
    the part of the port's rate that it has for certain. What a queue leaves, the others may take."""

    number: int
    name: str
    share: float
    precedence: int = 0
    """Of what is left by the shares, a queue takes all it wants before those with a higher number; equals share."""


BEST_EFFORT = QueueClass(0, "best-effort", 0.30)
SCHEDULED = QueueClass(1, "scheduled", 0.50)
STARVED = QueueClass(2, "starved", 0.20)
MINCOF_QUEUES = (BEST_EFFORT, SCHEDULED, STARVED)
"""Fig. 1 (d) of the paper. Number 0 takes what has no label, no class, or a class without a queue."""
PRIORITIES, LEAST_SHARE = 8, 0.02
PRIORITY_QUEUES = (QueueClass(0, "best-effort", LEAST_SHARE, PRIORITIES - 1), *(
    QueueClass(PRIORITIES - 1 - priority, f"priority-{priority}", LEAST_SHARE, priority)
    for priority in range(PRIORITIES - 2, -1, -1)))
"""For policies that rank flows and give no rates: a class for each priority, served in order. The last priority is
best effort. The small share keeps TCP alive where a flow has to wait."""
SLICES: dict[str, tuple[QueueClass, ...]] = {"none": (), "mincof": MINCOF_QUEUES, "priorities": PRIORITY_QUEUES}


def class_of_priority(priority: int) -> int:
    """The traffic class of a priority: 0, which is served first, has the highest."""
    return PRIORITIES - 1 - min(max(priority, 0), PRIORITIES - 1)


def priority_of_class(number: int) -> int:
    """The priority at hosts of packets of a traffic class."""
    return PRIORITIES - 1 - number
