"""Which routes run over a link, and which links hold their flows back (compiled)."""

import numpy as np

from speedwell.sim.compiled import compiled
from speedwell.sim.heaps import add_held, drop_held
from speedwell.sim.state import ENTRIES, MEMBERS_USED, State


@compiled
def attach(s: State, route: int) -> None:
    """Enter a route, which nobody holds yet, with its links."""
    for position in range(s.routes[route].length):
        link = s.route_links[route, position]
        size = s.links[link].member_size
        if size == s.links[link].member_room:
            _make_room(s, link)
        s.members[s.links[link].member_begin + size] = route
        s.member_index[route, position] = size
        s.links[link].member_size = size + 1
    s.counters[ENTRIES] += s.routes[route].length


@compiled
def _make_room(s: State, link: int) -> None:
    begin, room = s.links[link].member_begin, max(8, 2 * s.links[link].member_room)
    moved = s.counters[MEMBERS_USED]
    s.counters[MEMBERS_USED] += room
    for i in range(s.links[link].member_size):
        s.members[moved + i] = s.members[begin + i]
    for i in range(s.links[link].held_size):
        s.held[moved + i] = s.held[begin + i]
    for i in range(s.links[link].holders_size):
        s.holders[moved + i] = s.holders[begin + i]
        s.holder_flows[moved + i] = s.holder_flows[begin + i]
    s.links[link].member_begin = moved
    s.links[link].member_room = room


@compiled
def detach(s: State, route: int) -> None:
    """Take a route without flows off its links."""
    holder, nobody = s.routes[route].holder, len(s.level) - 1
    if holder != nobody:
        drop_held(s, holder, route)
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
    s.routes[route].holder = nobody
    s.routes[route].offset = 0.0
    s.routes[route].started = 0.0
    s.routes[route].finish = np.inf


@compiled
def count_flows_of(s: State, route: int, flows: int) -> None:
    """So many flows more on the route (fewer if negative): tell its links."""
    holder = s.routes[route].holder
    s.routes[route].count += flows
    for position in range(s.routes[route].length):
        _count_held(s, s.route_links[route, position], holder, flows)


@compiled
def change_holder(s: State, route: int, link: int) -> None:
    """Let `link` hold the route, whose `finish` is set already."""
    before, flows = s.routes[route].holder, s.routes[route].count
    s.routes[route].holder = link
    for position in range(s.routes[route].length):
        other = s.route_links[route, position]
        _count_held(s, other, before, -flows)
        _count_held(s, other, link, flows)
    add_held(s, link, route)


@compiled
def _count_held(s: State, link: int, holder: int, flows: int) -> None:
    """So many flows more of `link` are held by `holder`."""
    if holder == link:
        s.links[link].held_flows += flows
        return
    begin, size = s.links[link].member_begin, s.links[link].holders_size
    for i in range(begin, begin + size):
        if s.holders[i] == holder:
            s.holder_flows[i] += flows
            if s.holder_flows[i] == 0:
                last = begin + size - 1
                s.holders[i] = s.holders[last]
                s.holder_flows[i] = s.holder_flows[last]
                s.links[link].holders_size = size - 1
            return
    s.holders[begin + size] = holder
    s.holder_flows[begin + size] = flows
    s.links[link].holders_size = size + 1
