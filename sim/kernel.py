"""Fluid flows on a network, compiled: flows come and go, time passes, counters are read.

The rates between two events are those of `speedwell.sim.levels`.
"""

import numpy as np

from speedwell.sim.compiled import compiled
from speedwell.sim.heaps import merge_flows, move_held, push_link
from speedwell.sim.levels import served_now, settle
from speedwell.sim.members import attach, count_flows_of, detach
from speedwell.sim.state import DUE_BLOCK, ENDED, NONE, Integers, Reals, State

COMPLETION_SECONDS = 1e-9   # completions closer than this are one event


# ------------------------------------------------------- flows come and go


@compiled
def _queue_route(s: State, route: int) -> None:
    for position in range(s.routes[route].length):
        push_link(s, s.route_links[route, position])


@compiled
def _join(s: State, flow: int, route: int, size_bits: float) -> None:
    """Put a flow on its route; levels are settled by the caller."""
    sent = s.routes[route].offset + served_now(s, s.routes[route].holder)
    s.flows[flow].route = route
    s.flows[flow].left = NONE
    s.flows[flow].right = NONE
    s.flows[flow].size = size_bits
    s.flows[flow].threshold = sent + size_bits
    s.routes[route].first_flow = merge_flows(s, s.routes[route].first_flow, flow)
    s.routes[route].started += sent
    if s.routes[route].count == 0:
        attach(s, route)
    count_flows_of(s, route, 1)
    _set_finish(s, route)
    _queue_route(s, route)


@compiled
def _set_finish(s: State, route: int) -> None:
    """The route's first flow is another."""
    s.routes[route].finish = s.flows[s.routes[route].first_flow].threshold - s.routes[route].offset
    if s.routes[route].holder != len(s.level) - 1:
        move_held(s, s.routes[route].holder, route)


@compiled
def _account_departure(s: State, flow: int, route: int, bits: float) -> None:
    for position in range(s.routes[route].length):
        s.links[s.route_links[route, position]].delivered += bits
    s.routes[route].started -= s.flows[flow].threshold - s.flows[flow].size
    count_flows_of(s, route, -1)


@compiled
def _after_departures(s: State, route: int) -> None:
    """Drop flows that are gone from the top of the route's heap, and the route itself if it is empty."""
    if s.routes[route].count == 0:
        s.routes[route].first_flow = NONE
        _queue_route(s, route)
        detach(s, route)
        return
    top = s.routes[route].first_flow
    while not np.isnan(s.flows[top].finished):
        top = merge_flows(s, s.flows[top].left, s.flows[top].right)
    s.routes[route].first_flow = top
    _set_finish(s, route)
    _queue_route(s, route)


@compiled
def _end_flows(s: State, route: int, slack_bits: float) -> None:
    """Take off the flows of a route that are done now, give or take `slack_bits`."""
    sent = s.routes[route].offset + served_now(s, s.routes[route].holder)
    while s.routes[route].count > 0:
        flow = s.routes[route].first_flow
        if np.isnan(s.flows[flow].finished):
            if s.flows[flow].threshold > sent + slack_bits:
                break
            s.flows[flow].finished = s.clock[0]
            s.ended[s.counters[ENDED]] = flow
            s.counters[ENDED] += 1
            _account_departure(s, flow, route, s.flows[flow].size)
        s.routes[route].first_flow = merge_flows(s, s.flows[flow].left, s.flows[flow].right)
    _after_departures(s, route)


@compiled
def add_flows(s: State, flows: Integers, routes: Integers, sizes_bits: Reals) -> None:
    """Start flows at the current time; rates are settled once for all of them."""
    for i in range(len(flows)):
        _join(s, flows[i], routes[i], sizes_bits[i])
    settle(s)


@compiled
def remove_flow(s: State, flow: int) -> float:
    """Take a running flow off its route; returns the bits it had left."""
    route = s.flows[flow].route
    left = bits_left(s, flow)
    s.flows[flow].finished = np.inf
    _account_departure(s, flow, route, s.flows[flow].size - left)
    _after_departures(s, route)
    settle(s)
    return left


@compiled
def set_capacity(s: State, link: int, capacity_bps: float) -> None:
    """Change a link's capacity (0 for a link that failed) and settle."""
    s.links[link].capacity = capacity_bps
    push_link(s, link)
    settle(s)


# ------------------------------------------------------- time


@compiled
def next_completion(s: State) -> float:
    """When the next flow ends, in seconds; infinity if none will."""
    earliest = np.inf
    for block in range(len(s.block_due)):
        earliest = s.block_due[block] if s.block_due[block] < earliest else earliest
    return earliest


@compiled
def complete(s: State, until: float) -> int:
    """Advance to the next completion if it is due by `until`, else to `until`; returns how many flows ended.

    Which ones stands in the first places of `ended`.
    """
    s.counters[ENDED] = 0
    due = next_completion(s)
    if due > until:
        s.clock[0] = until
        return 0
    _complete_at(s, due)
    return s.counters[ENDED]


@compiled
def _complete_at(s: State, due: float) -> None:
    s.clock[0] = max(due, s.clock[0])
    for block in range(len(s.block_due)):
        if s.block_due[block] <= due + COMPLETION_SECONDS:
            for link in range(block * DUE_BLOCK, min(len(s.due), (block + 1) * DUE_BLOCK)):
                if s.due[link] <= due + COMPLETION_SECONDS:
                    _end_first(s, link)
    settle(s)


@compiled
def _end_first(s: State, link: int) -> None:
    """End what a link holds and is done now."""
    served = served_now(s, link)
    # Sums over the whole run: their rounding grows with them.
    slack = s.level[link] * COMPLETION_SECONDS + 1e-12 * served
    begin = s.links[link].member_begin
    while s.links[link].held_size > 0 and s.routes[s.held[begin]].finish <= served + slack:
        _end_flows(s, s.held[begin], slack)


@compiled
def run_trace(s: State, starts: Reals, routes: Integers, sizes_bits: Reals) -> int:
    """Run flows that start by themselves, in order of `starts`, until all have ended; flow i is row i.

    Returns how many ended: fewer than all if some stand on links without capacity.
    """
    arrived, ended, flows = 0, 0, len(starts)
    while ended < flows:
        start = starts[arrived] if arrived < flows else np.inf
        due = next_completion(s)
        if due <= start:
            if due == np.inf:
                break
            s.counters[ENDED] = 0
            _complete_at(s, due)
            ended += s.counters[ENDED]
            continue
        s.clock[0] = start
        while arrived < flows and starts[arrived] <= start:
            _join(s, arrived, routes[arrived], sizes_bits[arrived])
            arrived += 1
        settle(s)
    return ended


# ------------------------------------------------------- counters


@compiled
def rate(s: State, flow: int) -> float:
    """A running flow's rate in bits per second."""
    return s.level[s.routes[s.flows[flow].route].holder]


@compiled
def bits_left(s: State, flow: int) -> float:
    """What a running flow has still to be sent."""
    route = s.flows[flow].route
    return max(0.0, s.flows[flow].threshold - s.routes[route].offset - served_now(s, s.routes[route].holder))


@compiled
def count_links(s: State, bits: Reals) -> None:
    """Write the bits that each link has carried since the start into `bits`."""
    for link in range(len(bits)):
        carried = s.links[link].delivered
        for i in range(s.links[link].member_begin, s.links[link].member_begin + s.links[link].member_size):
            route = s.members[i]
            sent = s.routes[route].offset + served_now(s, s.routes[route].holder)
            carried += s.routes[route].count * sent - s.routes[route].started
        bits[link] = carried


@compiled
def count_flows(s: State, flows: Integers, bits: Reals) -> None:
    """Write what each of the flows has still to be sent into `bits`; 0 for one that has ended."""
    for i in range(len(flows)):
        bits[i] = bits_left(s, flows[i]) if np.isnan(s.flows[flows[i]].finished) else 0.0


@compiled
def sample_trace(s: State, starts: Reals, routes: Integers, sizes_bits: Reals, interval: float,
                 samples: Reals) -> None:
    """As `run_trace`, but only as long as there are rows in `samples`: each gets what every link has carried until
    its moment, one `interval` of seconds after the row before."""
    arrived, flows = 0, len(starts)
    for number in range(len(samples)):
        until = interval * (number + 1)
        while True:
            start = starts[arrived] if arrived < flows else np.inf
            due = next_completion(s)
            if min(start, due) > until:
                break
            if due <= start:
                s.counters[ENDED] = 0
                _complete_at(s, due)
                continue
            s.clock[0] = start
            while arrived < flows and starts[arrived] <= start:
                _join(s, arrived, routes[arrived], sizes_bits[arrived])
                arrived += 1
            settle(s)
        s.clock[0] = until
        count_links(s, samples[number])
