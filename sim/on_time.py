"""What no policy can beat at a percentile: a bound that knows the future. Only the simulator may ask it."""

import math
from collections.abc import Iterable, Sequence

from speedwell.sim.workload import Read

_GROUPS = 12
"""Groups of reads of the same hosts that are tried, the largest first."""
_STEPS = 24
"""Halvings of the interval in which the bound lies."""

Job = tuple[float, float]
"""(arrival, seconds of work)"""


def clairvoyant_percentile_seconds(reads: Sequence[Read], host_bps: float, percentile: float = 95.0) -> float:
    """A lower bound on a percentile of these reads' completion times under any policy, one that knows the future
    included.

    Every host has one link of `host_bps` in each direction, and no client holds what it reads. If the percentile is
    t, then a certain number of the reads ends within t of its arrival. So t is at least the least time for which so
    many *can* end in time. How many can is bounded as the mean is (`sim.clairvoyant`): the reads are divided into
    groups, and each group has a cut of the network for itself, which can only help it: the link of one client, or,
    for reads of the same hosts, the links of these hosts as one link as wide as all of them.

    On one link, with as much time for each read as for any other, a set of reads can be in time if it is when served
    in order of arrival (earliest deadline first is optimal, and never pre-empts here). For reads of one size the
    largest such set takes each read that is in time behind those taken before. Where sizes differ, all are taken for
    the smallest of their group, which can only help.

    As many as may be late can be chosen freely, so the bound is further from what can be reached than the mean's: the
    reads of the most wanted files, which make the tail, are left out first.
    """
    needed = math.floor(percentile / 100 * (len(reads) - 1)) + 1
    low = sorted(read.size_bits / host_bps for read in reads)[needed - 1]
    high = low
    while _most_in_time(reads, host_bps, high) < needed:
        low, high = high, 2 * high
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if _most_in_time(reads, host_bps, middle) < needed:
            low = middle
        else:
            high = middle
    return low


def _most_in_time(reads: Sequence[Read], host_bps: float, seconds: float) -> int:
    """At most how many of the reads can end within `seconds` of their arrival.

    All reads start in groups by client. The most wanted groups of hosts are taken out of these, one by one, where
    that lowers the number.
    """
    by_hosts: dict[frozenset[str], list[Read]] = {}
    for read in reads:
        by_hosts.setdefault(frozenset(read.replicas), []).append(read)
    at_clients, at_hosts = list(reads), 0
    by_clients = _in_time_at_clients(at_clients, host_bps, seconds)
    for hosts, group in sorted(by_hosts.items(), key=lambda item: -len(item[1]))[:_GROUPS]:
        of_group = _in_time(_jobs(group, host_bps * len(hosts)), seconds)
        if of_group == len(group):
            continue
        others = [read for read in at_clients if frozenset(read.replicas) != hosts]
        of_others = _in_time_at_clients(others, host_bps, seconds)
        if of_others + of_group < by_clients:
            at_clients, by_clients = others, of_others
            at_hosts += of_group
    return by_clients + at_hosts


def _in_time_at_clients(reads: Iterable[Read], host_bps: float, seconds: float) -> int:
    by_client: dict[str, list[Read]] = {}
    for read in reads:
        by_client.setdefault(read.client, []).append(read)
    return sum(_in_time(_jobs(own, host_bps), seconds) for own in by_client.values())


def _jobs(reads: Sequence[Read], rate_bps: float) -> list[Job]:
    work_seconds = min(read.size_bits for read in reads) / rate_bps
    return sorted((read.arrival, work_seconds) for read in reads)


def _in_time(jobs: Iterable[Job], seconds: float) -> int:
    """How many jobs of one length, in order of arrival, one after the other, end within `seconds` of their arrival
    at most."""
    number, now = 0, -math.inf
    for arrival, work_seconds in jobs:
        end = max(now, arrival) + work_seconds
        if end <= arrival + seconds:
            number, now = number + 1, end
    return number
