"""What no policy can beat: a bound that knows the future. Only the simulator may ask it."""

import heapq
import math
from collections.abc import Sequence

from speedwell.sim.workload import Read

_GROUPS = 12
"""Groups of reads of the same hosts that are tried, the largest first: small ones are not what holds reads up."""


def clairvoyant_mean_seconds(reads: list[Read], host_bps: float) -> float:
    """A lower bound on the mean completion time of these reads under any policy, one that knows the future included.

    Every host has one link of `host_bps` in each direction, and no client holds what it reads. The reads are divided
    into groups; for each group the sum of its completion times is bounded as if its reads were alone on one cut of
    the network, which can only help them. So the sum of the groups' bounds is a bound for all, whichever way they are
    divided. Two cuts are used:

    * A client's own link, for the reads of one client. Serving the read with least left first is the best for the
      mean on one link (Schrage, 1968), and nothing else is in the way.
    * The links of the hosts that hold a file, for reads of the same hosts: all bits leave through these. Let M be the
      mean time at which a read's bits come in. No read is faster than its client's link, so its bits take at
      least p = size / `host_bps`, and it ends at M + p / 2 or later. The sum of M over reads, each weighted with what
      it counts for, is least on one link as wide as all of them that serves by weight over size (Goemans, 1997):
      as every read counts for one here, the shortest first, pre-empting.

    All reads start in groups by client. The most wanted groups of hosts are taken out of these, one by one, where
    that raises the bound. It is loose where neither cut is what holds reads up, such as the links between racks and
    pods, and it says nothing of percentiles.
    """
    by_hosts: dict[frozenset[str], list[Read]] = {}
    for read in reads:
        by_hosts.setdefault(frozenset(read.replicas), []).append(read)
    at_clients = list(reads)
    by_clients_seconds, by_hosts_seconds = _all_clients_seconds(reads, host_bps), 0.0
    for hosts, group in sorted(by_hosts.items(), key=lambda item: -len(item[1]))[:_GROUPS]:
        others = [read for read in at_clients if frozenset(read.replicas) != hosts]
        others_seconds, group_seconds = _all_clients_seconds(others, host_bps), _cut_seconds(group, hosts, host_bps)
        if others_seconds + group_seconds > by_clients_seconds:
            at_clients, by_clients_seconds = others, others_seconds
            by_hosts_seconds += group_seconds
    return (by_clients_seconds + by_hosts_seconds) / len(reads)


def _all_clients_seconds(reads: Sequence[Read], client_bps: float) -> float:
    by_client: dict[str, list[Read]] = {}
    for read in reads:
        by_client.setdefault(read.client, []).append(read)
    return math.fsum(seconds for own in by_client.values() for seconds in _shortest_first(own, client_bps))


def _cut_seconds(reads: Sequence[Read], hosts: frozenset[str], host_bps: float) -> float:
    """The least sum of completion times on a cut as wide as these hosts' links."""
    width_bps = host_bps * len(hosts)
    total, now = 0.0, 0.0
    waiting: list[tuple[float, int]] = []       # (size, read), the shortest first
    left = [read.size_bits for read in reads]
    coming = sorted(range(len(reads)), key=lambda number: -reads[number].arrival)
    while waiting or coming:
        if not waiting:
            now = reads[coming[-1]].arrival
        while coming and reads[coming[-1]].arrival <= now:
            number = coming.pop()
            heapq.heappush(waiting, (reads[number].size_bits, number))
        size_bits, number = waiting[0]
        end = now + left[number] / width_bps
        if coming and reads[coming[-1]].arrival < end:
            end = reads[coming[-1]].arrival
            bits = (end - now) * width_bps
        else:
            bits = left[number]
            heapq.heappop(waiting)
        left[number] -= bits
        total += (now + end) / 2 * bits / size_bits         # this piece's part of M
        now = end
    return total + math.fsum(read.size_bits / host_bps / 2 - read.arrival for read in reads)


def _shortest_first(reads: list[Read], rate_bps: float) -> list[float]:
    """Completion times in seconds of one client's reads, served one by one, least remaining first."""
    times: list[float] = []
    waiting: list[list[float]] = []      # [seconds left, arrival]
    now = 0.0
    for read in [*sorted(reads, key=lambda read: read.arrival), None]:
        until = math.inf if read is None else read.arrival
        while waiting and now < until:
            waiting.sort()
            left, arrival = waiting[0]
            if now + left > until:
                waiting[0][0] -= until - now
                break
            now += left
            times.append(now - arrival)
            del waiting[0]
        if read is not None:
            now = until
            waiting.append([read.size_bits / rate_bps, read.arrival])
    return times
