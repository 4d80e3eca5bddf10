"""What the controller does with a coflow policy before the first coflow comes."""

from __future__ import annotations

from speedwell.controller.policy.coflows.coflow import Coflow, CoflowFlow, CoflowScheduler
from speedwell.controller.policy.network.examples import smallest_network
from speedwell.controller.policy.network.graph import Network
from speedwell.controller.policy.registry import POLICIES, Kind


def make_scheduler(name: str, network: Network, threshold_bytes: float) -> CoflowScheduler:
    """`threshold_bytes` is the size above which MinCOF schedules a coflow. Raises UnknownPolicy."""
    scheduler: CoflowScheduler = POLICIES.make(Kind.COFLOW, name, network, threshold_bytes)
    return scheduler


def compile_policy(name: str) -> None:
    """Have everything compiled that the policy `name` computes with. The first time in an installation that takes up
    to ten seconds, and a controller that began with it at its first coflow would answer no switch meanwhile."""
    flows = tuple(CoflowFlow(number, "a", "b", 1e8) for number in range(2))
    make_scheduler(name, smallest_network(), 0.0).coflow_arrived(Coflow("first", flows, 0.0), 0.0)
