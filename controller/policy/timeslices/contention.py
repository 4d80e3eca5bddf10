"""Which pairs of hosts need turns: coordination is on demand."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from speedwell.controller.policy.errors import PolicyError
from speedwell.controller.policy.network.graph import Link, Network
from speedwell.controller.policy.timeslices.timeslice_policy import Pair, PinnedPaths


def contended(paths: PinnedPaths, network: Network, pairs: Iterable[Pair],
              lossy: Iterable[Pair] | None = None) -> dict[Pair, bool]:
    """Of the pairs that send and have a path: whether it crosses a link on which their senders could together send
    more than it carries; with `lossy`, such a link of one of these."""
    links_of = {}
    could_send_bps: defaultdict[Link, dict[str, float]] = defaultdict(dict)
    for pair in pairs:
        try:
            links_of[pair] = paths.of(pair)
        except PolicyError:     # not in the network, or not yet
            continue
        bps = paths.carries_bps(pair)
        for link in links_of[pair]:
            could_send_bps[link][pair[0]] = max(bps, could_send_bps[link].get(pair[0], 0.0))
    suspects = could_send_bps.keys() if lossy is None else {link for pair in lossy for link in links_of.get(pair, ())}
    full = {link for link, senders in could_send_bps.items()
            if link in suspects and len(senders) > 1 and sum(senders.values()) > network.capacity_bps(link)}
    return {pair: not full.isdisjoint(links) for pair, links in links_of.items()}
