"""Max-min fair rates, kept up to date event by event (compiled).

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

from speedwell.sim.compiled import compiled
from speedwell.sim.heaps import drop_held, pop_link, push_link, set_due
from speedwell.sim.members import change_holder
from speedwell.sim.state import (
    ENTRIES,
    EVENTS,
    IN_SWEEP,
    LINK_UPDATES,
    NOT_QUEUED,
    QUEUE_SIZE,
    Integers,
    Reals,
    Records,
    State,
)

SAME_LEVEL = 1e-11          # relative: far above rounding, far below any difference that matters
UNCHANGED = 1e-14           # relative: a level that moved less has not moved
FULL_LINKS_ENTRIES = 8      # entries of routes per link from which a change is taken to reach every link
UPDATES_LIMIT = 10_000      # per link and event; a handful is usual


@compiled
def served_now(s: State, link: int) -> float:
    level = s.level[link]
    if level == np.inf:
        return s.links[link].served
    return s.links[link].served + level * (s.clock[0] - s.links[link].served_at)


@compiled
def _set_level(s: State, link: int, level: float) -> None:
    s.links[link].served = 0.0 if s.level[link] == np.inf else served_now(s, link)
    s.links[link].served_at = s.clock[0]
    s.level[link] = level


@compiled
def _hold(s: State, route: int, link: int) -> None:
    """Let `link` hold the route from now on."""
    before = s.routes[route].holder
    if before != len(s.level) - 1:
        drop_held(s, before, route)
    sent = s.routes[route].offset + served_now(s, before)
    s.routes[route].offset = sent - served_now(s, link)
    s.routes[route].finish = s.flows[s.routes[route].first_flow].threshold - s.routes[route].offset
    change_holder(s, route, link)


@compiled
def _water_level(link: int, guess: float, levels: Reals, links: Records, holders: Integers,
                 holder_flows: Integers) -> tuple[float, bool]:
    """(level, whether somebody asks for more than that who is held elsewhere).

    Newton's method from `guess`, the level of before: what is asked for in all is a concave function of the
    level, so from the second step on it rises to the root, which is exact after finitely many steps. Usually
    one is enough. The loop has no branches, as no processor could predict them.
    """
    capacity, held_flows = links[link].capacity, links[link].held_flows
    begin = links[link].member_begin
    end = begin + links[link].holders_size
    while True:
        below_bps, weight = 0.0, held_flows
        highest_below, lowest_above, highest_above = -1.0, np.inf, -1.0
        for i in range(begin, end):
            wanted = levels[holders[i]]
            flows = holder_flows[i]
            below = wanted < guess
            below_bps += wanted * flows if below else 0.0
            weight += 0 if below else flows
            highest_below = wanted if below and wanted > highest_below else highest_below
            lowest_above = lowest_above if below or wanted > lowest_above else wanted
            highest_above = highest_above if below or wanted < highest_above else wanted
        if weight == 0:
            if below_bps <= capacity * (1 + SAME_LEVEL):
                return np.inf, False
            guess = highest_below
            continue
        level = max(capacity - below_bps, 0.0) / weight
        settled = highest_below <= level * (1 + UNCHANGED) and level * (1 - UNCHANGED) <= lowest_above
        if settled or level == guess:
            return level, highest_above > level * (1 + SAME_LEVEL)
        guess = level


@compiled
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


@compiled
def _push_neighbours(s: State, link: int, lowest: float) -> None:
    """Queue the links from `lowest` up that share a route held by `link`."""
    for i in range(s.links[link].member_begin, s.links[link].member_begin + s.links[link].held_size):
        route = s.held[i]
        for position in range(s.routes[route].length):
            other = s.route_links[route, position]
            if other != link and s.level[other] >= lowest:
                push_link(s, other)


@compiled
def _same(level: float, other: float) -> bool:
    return level == other or (other < np.inf and abs(level - other) <= UNCHANGED * other)


@compiled
def _look_again(s: State, link: int) -> tuple[float, float]:
    """Set a link's level to what its flows now ask for; returns (old level, new level)."""
    before = s.level[link]
    level, wanted_more = _water_level(link, before, s.level, s.links, s.holders, s.holder_flows)
    if _same(level, before):
        level = before
    else:
        _set_level(s, link, level)
    if wanted_more:
        _claim(s, link)
    _set_next_completion(s, link)
    return before, level


@compiled
def _set_next_completion(s: State, link: int) -> None:
    level, due = s.level[link], np.inf
    if s.links[link].held_size > 0 and level > 0:
        finish = s.routes[s.held[s.links[link].member_begin]].finish
        due = s.clock[0] + max(0.0, finish - served_now(s, link)) / level
    set_due(s, link, due)


@compiled
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


@compiled
def settle(s: State) -> None:
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


@compiled
def _start_sweep(s: State, floor: float, but: int) -> int:
    """Put all links of at least that level into the sweep, those already in the queue aside."""
    for i in range(len(s.order)):
        link = s.order[i]
        waits = s.queued[link] != NOT_QUEUED or s.links[link].member_size == 0
        if not waits and s.level[link] >= floor and link != but:
            s.queued[link] = IN_SWEEP
    return len(s.order)
