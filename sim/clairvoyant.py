"""What no policy can beat: a bound that knows the future. Only the simulator may ask it."""

import math
from statistics import fmean

from sim.workload import Read


def clairvoyant_mean_seconds(reads: list[Read], client_bps: float) -> float:
    """A lower bound on the mean completion time of these reads under any policy, one that knows the future included.

    Every bit comes in over its client's link of `client_bps`; with nothing else in the way, serving the read
    with least left first is the best for the mean (Schrage, 1968).
    """
    by_client: dict[str, list[Read]] = {}
    for read in reads:
        by_client.setdefault(read.client, []).append(read)
    return fmean(seconds for own in by_client.values() for seconds in _shortest_first(own, client_bps))


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
