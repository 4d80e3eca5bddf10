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

from speedwell.controller.policy.network.graph import Path
from speedwell.controller.policy.reads import queue_kernels
from speedwell.controller.policy.reads.mayflower import Mayflower
from speedwell.controller.policy.reads.selection_request import Replica, Selection, SelectionRequest


class MayflowerSrpt:
    """Decides over the flows that `mayflower` knows. Selecting changes nothing."""

    def __init__(self, mayflower: Mayflower) -> None:
        self._mayflower = mayflower

    def select_replica_and_path(
        self, request: SelectionRequest, now: float, paths: Sequence[tuple[Replica, Path]] | None = None
    ) -> Selection:
        """As `Mayflower.select_replica_and_path`."""
        candidates = self._mayflower.candidates(request, paths)
        table = self._mayflower.table
        best, seconds, costs = queue_kernels.cheapest(
            table.flows, table.links, table.members, candidates.rows, float(request.size_bits), now,
            table.stamps(len(candidates.rows)), table.new_shares)
        return candidates.selection(best, request.size_bits / seconds if seconds else math.inf, float(costs[best]),
                                    costs)
