"""Progressive filling as the textbook has it: slow, plain, and independent of the simulator's solver."""

import numpy as np


def max_min_rates(capacities_bps: list[float], routes: list[list[int]]) -> np.ndarray:
    """Max-min fair rates of flows that cross the given links (Bertsekas and Gallager, section 6.5.2)."""
    crosses = np.zeros((len(routes), len(capacities_bps)), bool)
    for flow, links in enumerate(routes):
        crosses[flow, links] = True
    rates = np.zeros(len(routes))
    rising = np.ones(len(routes), bool)
    left = np.array(capacities_bps, float)
    while rising.any():
        weight = crosses[rising].sum(axis=0)
        share = np.full(len(left), np.inf)
        np.divide(left, weight, out=share, where=weight > 0)
        step = share.min()
        rates[rising] += step
        left -= step * weight
        full = share <= step * (1 + 1e-9) + 1e-12
        left[full] = 0.0
        rising &= ~crosses[:, full].any(axis=1)
    return rates
