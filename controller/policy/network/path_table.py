"""MinCOF's data structure *Path*: what the Scheduled queue of every link has still to give.

The paper keeps one entry for each pair of leaf and spine, and asks for PathRem(i, j, p, h): what is left from host i
to host j by path p, h being the hash table. Here h has an entry for each directed link of the network, so that hosts'
own links and any other fabric count alike, and PathRem is the least along the path.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from speedwell.controller.policy.network.graph import Network
from speedwell.controller.policy.network.maxmin import RELATIVE_TOLERANCE


class PathTable:
    """What is left on each link, in bits per second.

    A link from a switch to a switch is sliced into queues, of which the schedule may give away `scheduled_share`; a
    host's link is not.
    """

    def __init__(self, network: Network, scheduled_share: float = 1.0) -> None:
        self._whole_bps = network.capacities_bps()
        self._left_bps = list(self._whole_bps)
        if scheduled_share < 1:
            for link in network.links:
                if not (network.is_host(link[0]) or network.is_host(link[1])):
                    self._left_bps[network.link_index(link)] *= scheduled_share

    def path_rem(self, links: Sequence[int]) -> float:
        """PathRem(i, j, p, h), the path given as the indices of its links; below 0 where more was given away."""
        return min(self._left_bps[link] for link in links)

    def whole_bps(self, link: int) -> float:
        """A link's capacity."""
        return self._whole_bps[link]

    def is_full(self, link: int) -> bool:
        return self._left_bps[link] <= RELATIVE_TOLERANCE * self._whole_bps[link]

    def left_part(self, link: int) -> float:
        """What is left, as a part of the whole link."""
        return self._left_bps[link] / self._whole_bps[link]

    def reserve(self, links: Iterable[int], rate_bps: float) -> None:
        """Update PathRem with a flow's rate; a negative rate gives back."""
        for link in links:
            self._left_bps[link] -= rate_bps

    def gamma(self, bits_on: Mapping[int, float]) -> float:
        """Eq. 1: the seconds that a coflow takes, which has so many bits on each link; infinite if one is full.

        The paper's maximum is over pairs of hosts i, j and paths p, of d_ij / PathRem(i, j, p, h). Pairs that share
        a link share what is left of it: here d counts all that the coflow has on a link, so that the rates which
        follow fit. Where no two pairs share a link, the two are the same.
        """
        longest, left_bps, whole_bps = 0.0, self._left_bps, self._whole_bps
        for link, bits in bits_on.items():
            if bits > 0:
                left = left_bps[link]
                if left <= RELATIVE_TOLERANCE * whole_bps[link]:
                    return float("inf")
                if bits / left > longest:
                    longest = bits / left
        return longest

    def headroom(self, rate_on: Mapping[int, float]) -> float:
        """By which factor rates, given by link, can grow beyond what was taken for them; 0 if a link is full."""
        least = float("inf")
        for link, rate_bps in rate_on.items():
            if rate_bps > 0:
                if self.is_full(link):
                    return 0.0
                least = min(least, self._left_bps[link] / rate_bps)
        return least if least < float("inf") else 0.0
