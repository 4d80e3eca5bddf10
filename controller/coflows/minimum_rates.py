"""The least that a meter lets pass, and what flows that wait may take by it. No Ryu, no sockets.

A policy lets flows wait by a rate of 0, or has rates for almost nothing. Below some rate TCP stands still and does
not recover when its turn comes, so a meter lets a little pass (`least_bps`). Many flows that wait would take a good
part of their host's link by that, and no queue there protects the others: together they get at most what the Starved
queue would give them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from speedwell.controller.policy.coflows.coflow import Assignment, ServiceClass
from speedwell.controller.policy.coflows.mincof import STARVED_SHARE
from speedwell.controller.policy.network.five_tuple import FiveTuple
from speedwell.controller.policy.network.graph import Network

Assignments = Mapping[FiveTuple, Assignment]


def with_minimum_rates(assignments: Assignments, network: Network, least_bps: float) -> dict[FiveTuple, Assignment]:
    """The assignments with rates in bits per second that meters are set to.

    A flow below `least_bps` gets that, or less where the flows below it would together take more than the Starved
    queue's part of a host's link, but never less than its own rate. One that waits is of the starved.
    """
    slow = {flow: _host_links(network, flow) for flow, assignment in assignments.items()
            if assignment.rate_bps is not None and assignment.rate_bps < least_bps}
    flows_on = Counter(link for links in slow.values() for link in links)
    capacities_bps = network.capacities_bps()
    result = dict(assignments)
    for flow, links in slow.items():
        rate_bps = assignments[flow].rate_bps or 0.0
        share_bps = min((STARVED_SHARE * capacities_bps[link] / flows_on[link] for link in links), default=least_bps)
        result[flow] = replace(
            assignments[flow], rate_bps=max(rate_bps, min(least_bps, share_bps)),
            service_class=assignments[flow].service_class if rate_bps > 0 else ServiceClass.STARVED)
    return result


def _host_links(network: Network, flow: FiveTuple) -> tuple[int, ...]:
    """The links of the two hosts that a flow uses, by their indices; none if there is no path."""
    paths = network.shortest_path_links(flow.source, flow.destination)
    return (paths[0][0], paths[0][-1]) if paths else ()
