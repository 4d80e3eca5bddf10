"""Sinbad-R: Sinbad's load-aware placement turned round for reads (Mayflower, section 6.2).

Sinbad (Chowdhury et al., "Leveraging endpoint flexibility in data-intensive clusters", SIGCOMM 2013; see
`controller/policy/placements/sinbad.py`) sees the load of the hosts' links only, and takes what the hosts below a
switch send as the load of the links above it. It picks the machine whose bottleneck has most bandwidth left. Two
things differ for reads:

1. The links that count face the core: those that data takes from the replica up to where it turns.
2. If the client shares a pod with any replica, only the replicas in that pod are considered.

What was placed counts until the next measurement, as in Sinbad's own code for HDFS. `sinbad-r-estimate` counts it as
Sinbad's paper does, for as long as the transfer is expected to take; `sinbad-r-measured` is one that nobody tells of
the transfers placed: it has measurements only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random

from speedwell.controller.policy.network.graph import Link, Network, Path
from speedwell.controller.policy.network.link_estimate import LinkEstimates
from speedwell.controller.policy.network.tiers import Tiers
from speedwell.controller.policy.reads.selection_request import Replica, SelectionRequest


class SinbadR:
    """The replica whose bottleneck towards the core has most bandwidth left; ties at random."""

    def __init__(self, network: Network, generator: Random) -> None:
        self._network = network
        self._generator = generator
        self._tiers = Tiers(network)
        self._estimates = LinkEstimates(network)

    def choose(self, request: SelectionRequest, reachable: Sequence[Replica], now: float) -> Replica:
        pod = self._tiers.pod_of(request.client)
        in_pod = [replica for replica in reachable if replica.host in pod]
        residuals = [
            (self._residual_bps(replica.host, request.client, now), replica) for replica in in_pod or reachable
        ]
        best = max(residual for residual, _ in residuals)
        return self._generator.choice([replica for residual, replica in residuals if residual == best])

    def link_measured(self, link: Link, rate_bps: float, now: float) -> None:
        """Take in the rate of a link; only what hosts send matters."""
        if self._network.is_host(link[0]):
            self._estimates.of(link).measured(rate_bps, now)

    def flow_added(self, path: Path, size_bits: float, now: float) -> None:
        """Count a new transfer before the counters show it, so that requests do not all go the same way."""
        if path.links and self._network.has_link(path.links[0]):
            link = path.links[0]
            estimate = self._estimates.of(link)
            estimate.placed_until_measured(size_bits, self._network.capacity_bps(link), now)

    def _residual_bps(self, replica: str, client: str, now: float) -> float:
        """Bandwidth left at the tightest rung between the replica and where its data turns to the client."""
        return min((rung.capacity_bps - self._estimates.expected_bps(rung.host_links(self._network, down=False), now)
                    for rung in self._tiers.rungs_apart(replica, client)), default=math.inf)


class SinbadREstimate(SinbadR):
    """With the paper's estimate of what was placed (section 5.2): D = S / (Cap - v), where a disk is no slower."""

    def flow_added(self, path: Path, size_bits: float, now: float) -> None:
        if path.links and self._network.has_link(path.links[0]):
            link = path.links[0]
            estimate = self._estimates.of(link)
            rate_bps = self._network.capacity_bps(link) - estimate.expected_bps(now)
            if rate_bps > 0:
                estimate.placed_for_duration(None, rate_bps, size_bits / rate_bps, now)
