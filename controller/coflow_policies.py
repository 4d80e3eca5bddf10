"""The coflow policies that the controller offers, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from controller.policy.coflow import CoflowScheduler
from controller.policy.mincof import MinCOF
from controller.policy.network import Network

SCHEDULERS: Mapping[str, Callable[[Network, float], CoflowScheduler]] = {
    "mincof": MinCOF,
}
"""Made of the network and the size (bytes) above which a coflow is scheduled; policies without one leave it out."""
