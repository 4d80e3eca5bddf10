"""The compiled core of the simulator: max-min fair rates, kept up to date event by event.

Every link has a *level*: the rate it gives to the flows it holds back. A flow's rate is the lowest level on
its route, and the link that has it *holds* the flow. Rates are max-min fair exactly if each link's level is
the water level of its capacity over what its flows can use elsewhere: a flow held by another link asks for
that link's level, one held here for all it can get (Bertsekas and Gallager, "Data Networks", section 6.5.2;
as an iteration between links: Charny, Clark and Jain, "Congestion control with explicit rate indication",
ICC 1995). So an event looks again at the links of the flow that came or went, and from there at the links
whose flows got another rate, lowest level first. Levels below the lowest that changes stay as they are.

All flows on one route (the same links) have one rate, and all routes that a link holds have one rate too. So
the work of an event does not depend on how many flows run, and no flow is touched when its rate changes:
a link adds up what a flow it holds has been sent, and a route knows at which sum its next flow ends.
"""

import numpy as np
from numba import njit

from sim.heaps import merge_flows, pop_link, push_link
from sim.state import (
    ENDED,
    ENTRIES,
    EVENTS,
    IN_SWEEP,
    LINK_UPDATES,
    MEMBERS_USED,
    NONE,
    NOT_QUEUED,
    QUEUE_SIZE,
    Integers,
    Reals,
    Records,
    State,
)

SAME_LEVEL = 1e-11          # relative: far above rounding, far below any difference that matters
UNCHANGED = 1e-14           # relative: a level that moved less has not moved
COMPLETION_SECONDS = 1e-9   # completions closer than this are one event
FULL_LINKS_ENTRIES = 8      # entries of routes per link from which a change is taken to reach every link
UPDATES_LIMIT = 10_000      # per link and event; a handful is usual


# ------------------------------------------------------- which routes run over a link


@njit(cache=True)
def _attach(s: State, route: int) -> None:
    for position in range(s.routes[route].length):
        link = s.route_links[route, position]
        size = s.links[link].member_size
        if size == s.links[link].member_room:
            begin, room = s.links[link].member_begin, max(8, 2 * size)
            moved = s.counters[MEMBERS_USED]
            s.counters[MEMBERS_USED] += room
            for i in range(size):
                s.members[moved + i] = s.members[begin + i]
            s.links[link].member_begin = moved
            s.links[link].member_room = room
        s.members[s.links[link].member_begin + size] = route
        s.member_index[route, position] = size
        s.links[link].member_size = size + 1
    s.counters[ENTRIES] += s.routes[route].length


@njit(cache=True)
def _detach(s: State, route: int) -> None:
    for position in range(s.routes[route].length):
        link = s.route_links[route, position]
        s.links[link].member_size -= 1
        size, begin, index = s.links[link].member_size, s.links[link].member_begin, s.member_index[route, position]
        if index < size:
            last = s.members[begin + size]
            s.members[begin + index] = last
            for other in range(s.routes[last].length):
                if s.route_links[last, other] == link:
                    s.member_index[last, other] = index
    s.counters[ENTRIES] -= s.routes[route].length
    s.routes[route].holder = len(s.level) - 1
    s.routes[route].offset = 0.0
    s.routes[route].started = 0.0
    s.routes[route].finish = np.inf


# ------------------------------------------------------- levels


@njit(cache=True)
def _served_now(s: State, link: int) -> float:
    level = s.level[link]
    if level == np.inf:
        return s.links[link].served
    return s.links[link].served + level * (s.clock[0] - s.links[link].served_at)


@njit(cache=True)
def _set_level(s: State, link: int, level: float) -> None:
    s.links[link].served = 0.0 if s.level[link] == np.inf else _served_now(s, link)
    s.links[link].served_at = s.clock[0]
    s.level[link] = level


@njit(cache=True)
def _hold(s: State, route: int, link: int) -> None:
    """Let `link` hold the route from now on."""
    sent = s.routes[route].offset + _served_now(s, s.routes[route].holder)
    s.routes[route].holder = link
    s.routes[route].offset = sent - _served_now(s, link)
    s.routes[route].finish = s.flows[s.routes[route].first_flow].threshold - s.routes[route].offset


@njit(cache=True)
def _water_level(link: int, guess: float, levels: Reals, links: Records, routes: Records,
                 members: Integers) -> tuple[float, bool, float]:
    """(level, whether somebody asks for more than that who is held elsewhere, first finish of those held here).

    Newton's method from `guess`, the level of before: what is asked for in all is a concave function of the
    level, so from the second step on it rises to the root, which is exact after finitely many steps. Usually
    one is enough. The loop has no branches, as no processor could predict them.
    """
    capacity = links[link].capacity
    begin = links[link].member_begin
    end = begin + links[link].member_size
    while True:
        below_bps, weight = 0.0, 0
        highest_below, lowest_above, highest_above = -1.0, np.inf, -1.0
        first_finish = np.inf
        for i in range(begin, end):
            route = members[i]
            holder = routes[route].holder
            count = routes[route].count
            here = holder == link
            wanted = levels[holder]
            below = wanted < guess and not here
            above = not below and not here
            below_bps += wanted * count if below else 0.0
            weight += 0 if below else count
            highest_below = wanted if below and wanted > highest_below else highest_below
            lowest_above = wanted if above and wanted < lowest_above else lowest_above
            highest_above = wanted if above and wanted > highest_above else highest_above
            finish = routes[route].finish if here else np.inf
            first_finish = finish if finish < first_finish else first_finish
        if weight == 0:
            if below_bps <= capacity * (1 + SAME_LEVEL):
                return np.inf, False, np.inf
            guess = highest_below
            continue
        level = max(capacity - below_bps, 0.0) / weight
        settled = highest_below <= level * (1 + UNCHANGED) and level * (1 - UNCHANGED) <= lowest_above
        if settled or level == guess:
            return level, highest_above > level * (1 + SAME_LEVEL), first_finish
        guess = level


@njit(cache=True)
def _claim(s: State, link: int) -> None:
    """Hold every route that gets more than this link's level so far; their links are looked at again."""
    level = s.level[link]
    for i in range(s.links[link].member_begin, s.links[link].member_begin + s.links[link].member_size):
        route = s.members[i]
        holder = s.routes[route].holder
        if holder != link and s.level[holder] > level * (1 + SAME_LEVEL):
            _hold(s, route, link)
            for position in range(s.routes[route].length):
                other = s.route_links[route, position]
                if other != link and s.level[other] >= level * (1 - SAME_LEVEL):
                    push_link(s, other)
        if s.routes[route].holder == link:
            s.links[link].first_finish = min(s.links[link].first_finish, s.routes[route].finish)


@njit(cache=True)
def _push_neighbours(s: State, link: int, lowest: float) -> None:
    """Queue the links from `lowest` up that share a route held by `link`."""
    for i in range(s.links[link].member_begin, s.links[link].member_begin + s.links[link].member_size):
        route = s.members[i]
        if s.routes[route].holder == link:
            for position in range(s.routes[route].length):
                other = s.route_links[route, position]
                if other != link and s.level[other] >= lowest:
                    push_link(s, other)


@njit(cache=True)
def _same(level: float, other: float) -> bool:
    return level == other or (other < np.inf and abs(level - other) <= UNCHANGED * other)


@njit(cache=True)
def _look_again(s: State, link: int) -> tuple[float, float]:
    """Set a link's level to what its flows now ask for; returns (old level, new level)."""
    before = s.level[link]
    level, wanted_more, first_finish = _water_level(link, before, s.level, s.links, s.routes, s.members)
    s.links[link].first_finish = first_finish
    if _same(level, before):
        level = before
    else:
        _set_level(s, link, level)
    if wanted_more:
        _claim(s, link)
    _set_next_completion(s, link)
    return before, level


@njit(cache=True)
def _set_next_completion(s: State, link: int) -> None:
    level, finish = s.level[link], s.links[link].first_finish
    if finish < np.inf and level > 0:
        s.due[link] = s.clock[0] + max(0.0, finish - _served_now(s, link)) / level
    else:
        s.due[link] = np.inf


@njit(cache=True)
def _sort_order(s: State) -> None:
    """Insertion sort: levels keep most of their order from event to event."""
    for i in range(1, len(s.order)):
        link = s.order[i]
        level = s.level[link]
        position = i
        while position > 0 and s.level[s.order[position - 1]] > level:
            s.order[position] = s.order[position - 1]
            position -= 1
        s.order[position] = link


@njit(cache=True)
def _settle(s: State) -> None:
    """Bring the levels of the queued links, and of all that these change, to their fixed point.

    Where flows are many, a change is taken to reach every link above it: these are looked at in one sweep
    in the order of their levels, and only what changes behind the sweep is queued.
    """
    links = len(s.level) - 1
    everywhere = s.counters[ENTRIES] > FULL_LINKS_ENTRIES * links
    floor = np.inf                      # every link from here up is queued or comes in the sweep
    highest = -1.0                      # of the levels set since
    sweep, sweep_end = 0, 0
    updates = 0
    while True:
        while sweep < sweep_end and s.queued[s.order[sweep]] != IN_SWEEP:
            sweep += 1
        if sweep < sweep_end and (s.counters[QUEUE_SIZE] == 0 or s.level[s.order[sweep]] <= s.queue_key[0]):
            link = s.order[sweep]
            s.queued[link] = NOT_QUEUED
        elif s.counters[QUEUE_SIZE] > 0:
            link = pop_link(s)
        else:
            break
        updates += 1
        if updates > UPDATES_LIMIT * links:
            raise RuntimeError("max-min rates did not settle: please report the fabric and the flows")
        before, level = _look_again(s, link)
        if level != before:
            lowest = min(before, level) * (1 - SAME_LEVEL)      # links may share a level
            if everywhere and floor == np.inf:
                floor = lowest
                _sort_order(s)
                sweep_end = _start_sweep(s, floor, link)
            elif not everywhere or lowest < floor or lowest <= highest:
                _push_neighbours(s, link, lowest)
            highest = max(highest, level)
    s.counters[LINK_UPDATES] += updates
    s.counters[EVENTS] += 1


@njit(cache=True)
def _start_sweep(s: State, floor: float, but: int) -> int:
    """Put all links of at least that level into the sweep, those already in the queue aside."""
    for i in range(len(s.order)):
        link = s.order[i]
        waits = s.queued[link] != NOT_QUEUED or s.links[link].member_size == 0
        if not waits and s.level[link] >= floor and link != but:
            s.queued[link] = IN_SWEEP
    return len(s.order)


# ------------------------------------------------------- flows come and go


@njit(cache=True)
def _queue_route(s: State, route: int) -> None:
    for position in range(s.routes[route].length):
        push_link(s, s.route_links[route, position])


@njit(cache=True)
def _join(s: State, flow: int, route: int, size_bits: float) -> None:
    """Put a flow on its route; levels are settled by the caller."""
    sent = s.routes[route].offset + _served_now(s, s.routes[route].holder)
    s.flows[flow].route = route
    s.flows[flow].left = NONE
    s.flows[flow].right = NONE
    s.flows[flow].size = size_bits
    s.flows[flow].threshold = sent + size_bits
    s.routes[route].first_flow = merge_flows(s, s.routes[route].first_flow, flow)
    s.routes[route].finish = s.flows[s.routes[route].first_flow].threshold - s.routes[route].offset
    s.routes[route].started += sent
    s.routes[route].count += 1
    if s.routes[route].count == 1:
        _attach(s, route)
    _queue_route(s, route)


@njit(cache=True)
def _account_departure(s: State, flow: int, route: int, bits: float) -> None:
    for position in range(s.routes[route].length):
        s.links[s.route_links[route, position]].delivered += bits
    s.routes[route].started -= s.flows[flow].threshold - s.flows[flow].size
    s.routes[route].count -= 1


@njit(cache=True)
def _after_departures(s: State, route: int) -> None:
    """Drop flows that are gone from the top of the route's heap, and the route itself if it is empty."""
    if s.routes[route].count == 0:
        s.routes[route].first_flow = NONE
        _queue_route(s, route)
        _detach(s, route)
        return
    top = s.routes[route].first_flow
    while not np.isnan(s.flows[top].finished):
        top = merge_flows(s, s.flows[top].left, s.flows[top].right)
    s.routes[route].first_flow = top
    s.routes[route].finish = s.flows[top].threshold - s.routes[route].offset
    _queue_route(s, route)


@njit(cache=True)
def _end_flows(s: State, route: int, slack_bits: float) -> None:
    """Take off the flows of a route that are done now, give or take `slack_bits`."""
    sent = s.routes[route].offset + _served_now(s, s.routes[route].holder)
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


@njit(cache=True)
def add_flows(s: State, flows: Integers, routes: Integers, sizes_bits: Reals) -> None:
    """Start flows at the current time; rates are settled once for all of them."""
    for i in range(len(flows)):
        _join(s, flows[i], routes[i], sizes_bits[i])
    _settle(s)


@njit(cache=True)
def remove_flow(s: State, flow: int) -> float:
    """Take a running flow off its route; returns the bits it had left."""
    route = s.flows[flow].route
    left = bits_left(s, flow)
    s.flows[flow].finished = np.inf
    _account_departure(s, flow, route, s.flows[flow].size - left)
    _after_departures(s, route)
    _settle(s)
    return left


@njit(cache=True)
def set_capacity(s: State, link: int, capacity_bps: float) -> None:
    """Change a link's capacity (0 for a link that failed) and settle."""
    s.links[link].capacity = capacity_bps
    push_link(s, link)
    _settle(s)


# ------------------------------------------------------- time


@njit(cache=True)
def next_completion(s: State) -> float:
    """When the next flow ends, in seconds; infinity if none will."""
    earliest = np.inf
    for link in range(len(s.due)):
        earliest = s.due[link] if s.due[link] < earliest else earliest
    return earliest


@njit(cache=True)
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


@njit(cache=True)
def _complete_at(s: State, due: float) -> None:
    s.clock[0] = max(due, s.clock[0])
    for link in range(len(s.due)):
        if s.due[link] <= due + COMPLETION_SECONDS:
            served = _served_now(s, link)
            # Sums over the whole run: their rounding grows with them.
            slack = s.level[link] * COMPLETION_SECONDS + 1e-12 * served
            i = s.links[link].member_size - 1
            while i >= 0:               # from the end, as a route that empties is replaced by the last
                route = s.members[s.links[link].member_begin + i]
                if s.routes[route].holder == link and s.routes[route].finish <= served + slack:
                    _end_flows(s, route, slack)
                i -= 1
    _settle(s)


@njit(cache=True)
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
        _settle(s)
    return ended


# ------------------------------------------------------- counters


@njit(cache=True)
def rate(s: State, flow: int) -> float:
    """A running flow's rate in bits per second."""
    return s.level[s.routes[s.flows[flow].route].holder]


@njit(cache=True)
def bits_left(s: State, flow: int) -> float:
    """What a running flow has still to be sent."""
    route = s.flows[flow].route
    return max(0.0, s.flows[flow].threshold - s.routes[route].offset - _served_now(s, s.routes[route].holder))


@njit(cache=True)
def count_links(s: State, bits: Reals) -> None:
    """Write the bits that each link has carried since the start into `bits`."""
    for link in range(len(bits)):
        carried = s.links[link].delivered
        for i in range(s.links[link].member_begin, s.links[link].member_begin + s.links[link].member_size):
            route = s.members[i]
            sent = s.routes[route].offset + _served_now(s, s.routes[route].holder)
            carried += s.routes[route].count * sent - s.routes[route].started
        bits[link] = carried


@njit(cache=True)
def count_flows(s: State, flows: Integers, bits: Reals) -> None:
    """Write what each of the flows has still to be sent into `bits`; 0 for one that has ended."""
    for i in range(len(flows)):
        bits[i] = bits_left(s, flows[i]) if np.isnan(s.flows[flows[i]].finished) else 0.0
