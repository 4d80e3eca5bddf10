"""Classes of traffic that keep a policy's priorities and change as little as TCP lets them.

A packet that is sent in a better class than the ones before it overtakes those that still wait. TCP takes that for
loss, sends again what is not lost, and slows down. In a worse class it comes after them, as it should. So a flow
falls as soon as the priorities ask for it, and rises only where too few of them are told apart.
"""

from collections.abc import Hashable, Mapping
from typing import TypeVar

from speedwell.controller.policy.network.traffic_classes import PRIORITIES

FEW = 4
"""So many priorities have a class of their own at all times: what runs is told from what comes next."""
LAST = PRIORITIES - 1
"""Shared by all to which no other class is left."""

Flow = TypeVar("Flow", bound=Hashable)


def steady_classes(wanted: Mapping[Flow, int], before: Mapping[Flow, int]) -> dict[Flow, int]:
    """The class of each flow of `wanted`, which has their priorities; `before` has the classes that flows had.

    0 is served first. Flows of one priority share a class.
    """
    had: dict[int, int] = {}
    for flow, priority in wanted.items():
        had[priority] = max(had.get(priority, 0), before.get(flow, 0))
    steady: dict[int, int] = {}
    worst = -1
    for priority in sorted(had):
        worst = steady[priority] = min(max(priority, had[priority], worst + 1), LAST)
    if sum(each < LAST for each in steady.values()) < min(FEW, sum(each < LAST for each in had)):
        return dict(wanted)
    return {flow: steady[priority] for flow, priority in wanted.items()}
