"""Coflow policies on a trace, event by event, where only the racks' ports limit flows.

The very kernels that the controller's policies decide with (`controller/policy/coflows/coflow_kernels.py`) are called
at each arrival of a coflow, when its last flow ends, and if wanted at an interval beside; between, every flow has the
rate that it was given then.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numba import njit

from controller.policy.coflows import checked_kernels as kernels
from controller.policy.coflows.coflow_kernels import Integers, Reals
from controller.policy.coflows.coflow_plus import coflow_plus_order
from sim.coflow_trace import CoflowTrace
from sim.errors import InvalidSetting

DONE_BITS = 1.0


@dataclass
class Switch:
    """Flows as the kernels want them; row f runs from port links[f, 0] to port links[f, 1]."""

    links: Integers
    left: Reals
    first: Integers
    count: Integers
    rows: Integers
    whole: Reals
    load: Reals
    rates: Reals

    @classmethod
    def of(cls, trace: CoflowTrace, port_bps: float) -> "Switch":
        links: list[tuple[int, int]] = []
        left: list[float] = []
        first, count = [], []
        for coflow in trace.coflows:
            first.append(len(left))
            for reducer, bits in coflow.reducers:
                for mapper in coflow.mapper_racks:
                    links.append((mapper, trace.racks + reducer))
                    left.append(bits / len(coflow.mapper_racks))
            count.append(len(left) - first[-1])
        return cls(np.array(links, np.int64), np.array(left), np.array(first), np.array(count),
                   np.arange(len(left)), np.full(2 * trace.racks, port_bps), np.zeros(2 * trace.racks),
                   np.zeros(len(left)))


Decide = Callable[[Switch, Integers], None]


def varys(switch: Switch, active: Integers) -> None:
    """SEBF and MADD over what is left, then flow by flow: see `coflow_comparators.Varys`."""
    s, free, gammas = switch, switch.whole.copy(), np.zeros(len(active))
    kernels.gammas(active, s.first, s.count, s.rows, s.links, s.left, s.whole, s.whole, s.load, gammas)
    order = active[np.argsort(gammas, kind="stable")]
    kernels.scaled(order, s.first, s.count, s.rows, s.links, s.left, free, s.whole, s.load, s.rates)
    kernels.backfill(order, s.first, s.count, s.rows, s.links, free, s.whole, s.rates)


def sincronia(switch: Switch, active: Integers) -> None:
    """The order of `coflow_order.bssi`; rates as for Varys."""
    s, free = switch, switch.whole.copy()
    order = active
    if len(active):
        order = kernels.bssi(active, s.first, s.count, s.rows, s.links, s.left, s.whole, s.load)
    kernels.scaled(order, s.first, s.count, s.rows, s.links, s.left, free, s.whole, s.load, s.rates)
    kernels.backfill(order, s.first, s.count, s.rows, s.links, free, s.whole, s.rates)


def coflow_plus(switch: Switch, active: Integers) -> None:
    """The order of coflow-plus, and strictly by it: a coflow takes all that it can use before the next does."""
    s, free = switch, switch.whole.copy()
    if len(active):
        order = coflow_plus_order(active, s.first, s.count, s.rows, s.links, s.left, s.whole, s.load)
        kernels.fill(order, s.first, s.count, s.rows, s.links, s.left, free, s.whole, s.load, s.rates)


POLICIES: dict[str, Decide] = {"varys": varys, "sincronia": sincronia, "coflow-plus": coflow_plus}


def run(trace: CoflowTrace, port_bps: float, policy: str, interval_seconds: float = np.inf) -> dict[int, float]:
    """Completion times in seconds by coflow number, of decisions at most `interval_seconds` apart.

    Raises InvalidSetting for a policy that is not in `POLICIES`, or an interval that is not positive.
    """
    if not interval_seconds > 0:
        raise InvalidSetting(f"interval_seconds: must be positive, not {interval_seconds!r}")
    if policy not in POLICIES:
        raise InvalidSetting(f"policy: {policy!r} is not one of {', '.join(POLICIES)}")
    decide, switch = POLICIES[policy], Switch.of(trace, port_bps)
    arrivals = np.array([coflow.arrival_seconds for coflow in trace.coflows])
    ends = np.full(len(arrivals), np.nan)
    active = np.zeros(0, np.int64)
    come, now = 0, 0.0
    while come < len(arrivals) or len(active):
        until = now + _next_end(active, switch.first, switch.count, switch.rows, switch.left, switch.rates)
        if len(active):
            until = min(until, now + interval_seconds)
        if come < len(arrivals):
            until = min(until, arrivals[come])
        _move(active, switch.first, switch.count, switch.rows, switch.left, switch.rates, until - now)
        now = until
        ends[active[switch.count[active] == 0]] = now
        active = active[switch.count[active] > 0]
        while come < len(arrivals) and arrivals[come] <= now:
            active = np.append(active, come)
            come += 1
        _clear(active, switch.first, switch.count, switch.rows, switch.rates)
        decide(switch, active)
    return {coflow.number: seconds for coflow, seconds in zip(trace.coflows, (ends - arrivals).tolist(), strict=True)}


@njit(cache=True)
def _next_end(active: Integers, first: Integers, count: Integers, rows: Integers, left: Reals, rates: Reals) -> float:
    """In how many seconds the next coflow ends if rates stay; infinite if none does."""
    soonest = np.inf
    for c in active:
        longest = 0.0
        for i in range(first[c], first[c] + count[c]):
            f = rows[i]
            longest = max(longest, left[f] / rates[f] if rates[f] > 0 else np.inf)
        soonest = min(soonest, longest)
    return soonest


@njit(cache=True)
def _move(active: Integers, first: Integers, count: Integers, rows: Integers, left: Reals, rates: Reals,
          seconds: float) -> None:
    """Let flows run, and take those that have ended off their coflow's rows."""
    for c in active:
        i = first[c]
        while i < first[c] + count[c]:
            f = rows[i]
            left[f] -= rates[f] * seconds
            if left[f] <= DONE_BITS:
                count[c] -= 1
                rows[i] = rows[first[c] + count[c]]
                rows[first[c] + count[c]] = f
            else:
                i += 1


@njit(cache=True)
def _clear(active: Integers, first: Integers, count: Integers, rows: Integers, rates: Reals) -> None:
    for c in active:
        for i in range(first[c], first[c] + count[c]):
            rates[rows[i]] = 0.0
