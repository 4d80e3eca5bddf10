"""The coflow policies that the controller offers, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from controller.policy.coflow import CoflowScheduler
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
