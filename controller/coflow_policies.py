"""The coflow policies that the controller offers, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from controller.policy.coflow import Coflow, CoflowFlow, CoflowScheduler
from controller.policy.coflow_comparators import Aalo, FairSharing, Rapier, Sincronia, Tailor, Varys
from controller.policy.coflow_plus import CoflowPlus
from controller.policy.mincof import MinCOF
from controller.policy.network import Network

Make = Callable[[Network, float], CoflowScheduler]


def _without_threshold(policy: Callable[[Network], CoflowScheduler]) -> Make:
    return lambda network, threshold_bytes: policy(network)


SCHEDULERS: Mapping[str, Make] = {
    "mincof": MinCOF, "coflow-plus": _without_threshold(CoflowPlus), "varys": _without_threshold(Varys),
    "tailor": _without_threshold(Tailor), "rapier": _without_threshold(Rapier),
    "sincronia": _without_threshold(Sincronia), "aalo": _without_threshold(Aalo),
    "fair": _without_threshold(FairSharing)}
"""Made of the network and the size (bytes) above which MinCOF schedules a coflow; the others have no such size."""


def compile_policy(name: str) -> None:
    """Have everything compiled that the policy `name` computes with. The first time in an installation that takes up
    to ten seconds, and a controller that began with it at its first coflow would answer no switch meanwhile."""
    network = Network()
    for switch in ("leaf0", "leaf1"):
        network.add_switch(switch)
    for host, leaf in (("a", "leaf0"), ("b", "leaf1")):
        network.add_host(host)
        for link in ((host, leaf), (leaf, host)):
            network.add_link(*link, 1e9)
    for link in (("leaf0", "leaf1"), ("leaf1", "leaf0")):
        network.add_link(*link, 1e9)
    flows = tuple(CoflowFlow(number, "a", "b", 1e8) for number in range(2))
    SCHEDULERS[name](network, 0.0).coflow_arrived(Coflow("first", flows, 0.0), 0.0)
