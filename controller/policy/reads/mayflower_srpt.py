"""mayflower-srpt: Mayflower's selection where the network lets short transfers go first.

Eq. 2 of Mayflower (section 4.2) prices a path for flows that share each link fairly. Where coflows are ordered they
do not: what has least left goes first (shortest remaining processing time, SRPT, to which the coflow policies come
close), and a link is a queue. The two parts of the cost stay, with other terms. For d_j bits of the read and r_f bits
that a flow f on the path has left:

* the read ends when the fullest link of the path has carried what goes before it, and itself:
  max over links of (sum of r_f <= d_j, plus d_j) / capacity;
* each flow with r_f > d_j waits for the read on the slowest link that both take: d_j / capacity.

Traffic that is not a known flow has the last class, and holds nobody up. It decides between paths of equal cost: a
background of b bits per second counts for b / capacity of the time that the read takes on a link. Then come the path
with fewer links, the earlier replica, the earlier path.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from speedwell.controller.policy.compiled import Reals
from speedwell.controller.policy.network.graph import Network, Path
from speedwell.controller.policy.reads.mayflower import Mayflower
from speedwell.controller.policy.reads.selection_request import Replica, Selection, SelectionRequest


class MayflowerSrpt:
    """Decides over the flows that `mayflower` knows. Selecting changes nothing."""

    def __init__(self, network: Network, mayflower: Mayflower) -> None:
        self._network = network
        self._mayflower = mayflower

    def cheapest(self, request: SelectionRequest, paths: Sequence[tuple[Replica, Path]], now: float) -> Selection:
        """The replica and path of least cost; there is at least one. Raises UnknownLink for a path that is gone."""
        index = self._network.link_index
        routes = [[index(link) for link in path.links] for _, path in paths]
        own, others, beside = self._seconds(routes, request.size_bits, now)
        costs = (own + others).tolist()
        least: dict[Replica, float] = {}
        for (replica, _), cost in zip(paths, costs, strict=True):
            least[replica] = min(cost, least.get(replica, math.inf))
        best = min(range(len(paths)),
                   key=lambda number: (costs[number], beside[number], len(routes[number]), number))
        share_bps = request.size_bits / float(own[best]) if own[best] else math.inf
        return Selection(*paths[best], share_bps, costs[best], tuple(least.items()))

    def _seconds(self, routes: Sequence[Sequence[int]], size_bits: float, now: float) -> tuple[Reals, Reals, Reals]:
        """For each route: until the read ends, what others wait for it, and its end if background held it up."""
        links = np.array(sorted({link for route in routes for link in route}), np.int64)
        crosses = np.array([np.isin(links, route) for route in routes])
        left_bits, taken, background_bps, capacities = self._mayflower.queued_on(links, now)
        goes_first = left_bits <= size_bits
        busy = (left_bits[goes_first] @ taken[goes_first] + size_bits) / capacities
        waits = taken[~goes_first] * (size_bits / capacities)
        others = [np.where(each, waits, 0.0).max(axis=1, initial=0.0).sum() for each in crosses]
        pressed = background_bps / capacities * (size_bits / capacities)
        return (np.where(crosses, busy, 0.0).max(axis=1, initial=0.0), np.array(others),
                np.where(crosses, busy + pressed, 0.0).max(axis=1, initial=0.0))
