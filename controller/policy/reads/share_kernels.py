"""Mayflower's shares, over arrays (compiled). `mayflower.py` says what they mean; names are its.

Flow f has its state in row f of `flows` and runs over the links in row f of `routes`, -1 after the last. The flows on
link l, in the order in which they came, are the `count` in `members` from `first` on, where it has `room`; its
background is one more flow. All of them are in `ascending` from `first` on too, ascending by bandwidth and those that
are equal in the order in which they came, with their bandwidths beside in `bandwidths`. Whoever changes one marks the
link as stale; demand and share are then computed when next asked for.

Every sum is taken in the order in which a plain reading of the paper takes it, so that results do not depend on how
they are computed. A change here must not call into another module: numba's cache looks at this file alone.
"""

import numpy as np

from speedwell.controller.policy.compiled import Integers, Reals, Records, compiled

RELATIVE_TOLERANCE = 1e-9
"""As in `maxmin.py`."""

FLOW = np.dtype([("bandwidth", "f8"), ("remaining", "f8"), ("settled_at", "f8"), ("frozen_until", "f8"),
                 ("frozen", "?"), ("measured", "f8"), ("since", "f8"), ("counted", "f8"), ("order", "i8"),
                 ("mark", "i8"), ("place", "i8")], align=True)
LINK = np.dtype([("capacity", "f8"), ("demand", "f8"), ("share", "f8"), ("departed", "f8"), ("measured_at", "f8"),
                 ("background_demand", "f8"), ("first", "i8"), ("room", "i8"), ("count", "i8"),
                 ("background", "i8"), ("stale", "?"), ("local", "i8")], align=True)


@compiled
def remaining_at(flows: Records, routes: Integers, f: int, now: float) -> float:
    if routes[f, 0] < 0:
        return 0.0
    return float(max(flows[f].remaining - flows[f].bandwidth * (now - flows[f].settled_at), 0.0))


@compiled
def place_of(flows: Records, ascending: Integers, bandwidths: Reals, begin: int, end: int, bandwidth: float,
             order: int) -> int:
    """Where a flow of this bandwidth and order is among those in between, or would be."""
    while begin < end:
        middle = (begin + end) // 2
        if bandwidths[middle] < bandwidth or (
                bandwidths[middle] == bandwidth and flows[ascending[middle]].order < order):
            begin = middle + 1
        else:
            end = middle
    return begin


@compiled
def insert(flows: Records, links: Records, ascending: Integers, bandwidths: Reals, link: int, f: int,
           others: int) -> None:
    """Put a flow among so many others on a link."""
    first = links[link].first
    place = place_of(flows, ascending, bandwidths, first, first + others, flows[f].bandwidth, flows[f].order)
    for index in range(first + others, place, -1):
        ascending[index], bandwidths[index] = ascending[index - 1], bandwidths[index - 1]
    ascending[place], bandwidths[place] = f, flows[f].bandwidth
    links[link].stale = True


@compiled
def change_bandwidth(flows: Records, links: Records, ascending: Integers, bandwidths: Reals, routes: Integers, f: int,
                     bandwidth: float) -> None:
    former, order = flows[f].bandwidth, flows[f].order
    flows[f].bandwidth = bandwidth
    if bandwidth == former:
        return
    step = 1 if bandwidth > former else -1
    for link in routes[f]:
        if link < 0:
            break
        first, last = links[link].first, links[link].first + links[link].count
        place = place_of(flows, ascending, bandwidths, first, last, former, order)
        while first <= place + step <= last and (bandwidths[place + step] - bandwidth) * step <= 0:
            other = ascending[place + step]
            if bandwidths[place + step] == bandwidth and (flows[other].order - order) * step > 0:
                break
            ascending[place], bandwidths[place] = other, bandwidths[place + step]
            place += step
        ascending[place], bandwidths[place] = f, bandwidth
        links[link].stale = True


@compiled
def set_bandwidth(flows: Records, links: Records, ascending: Integers, bandwidths: Reals, routes: Integers, f: int,
                  bandwidth: float, now: float) -> None:
    """SETBW."""
    left = remaining_at(flows, routes, f, now)
    flows[f].remaining = left
    flows[f].settled_at = now
    flows[f].frozen = True
    flows[f].frozen_until = now + left / bandwidth
    change_bandwidth(flows, links, ascending, bandwidths, routes, f, bandwidth)


@compiled
def refresh(links: Records, bandwidths: Reals, link: int) -> None:
    row = bandwidths[links[link].first:links[link].first + links[link].count + 1]
    demand = 0.0
    for bandwidth in row:
        demand += bandwidth
    left, sharing = links[link].capacity, len(row) + 1
    for bandwidth in row:
        if bandwidth * sharing > left:
            break
        left -= bandwidth
        sharing -= 1
    links[link].demand = demand
    links[link].share = left / sharing
    links[link].stale = False


@compiled
def share_of_new_flow(links: Records, bandwidths: Reals, route: Integers) -> float:
    """MAXMINSHARE."""
    share = np.inf
    for link in route:
        if link < 0:
            break
        if links[link].stale:
            refresh(links, bandwidths, link)
        share = min(share, links[link].share)
    return share


@compiled
def spare(links: Records, bandwidths: Reals, link: int) -> float:
    """Capacity that nobody on a link asks for."""
    if links[link].stale:
        refresh(links, bandwidths, link)
    left = links[link].capacity - links[link].demand
    return left if left > RELATIVE_TOLERANCE * links[link].capacity else 0.0


@compiled
def reductions(flows: Records, links: Records, ascending: Integers, bandwidths: Reals, route: Integers,
               share: float, stamp: int, losing: Integers, new_shares: Reals) -> int:
    """NEWBANDWIDTH along a path: fills in who loses bandwidth to a new flow of this share, and what they have then
    at the tightest of their links. Returns how many; `stamp` was never used before."""
    found = 0
    for link in route:
        if link < 0:
            break
        if links[link].stale:
            refresh(links, bandwidths, link)
        excess = links[link].demand + share - links[link].capacity
        if excess <= RELATIVE_TOLERANCE * links[link].capacity:
            continue
        end = links[link].count + 1
        row = ascending[links[link].first:links[link].first + end]
        above, level, begin = 0.0, 0.0, end
        while begin > 0:
            bandwidth = bandwidths[links[link].first + begin - 1]
            if begin < end and bandwidth <= level:
                break
            begin -= 1
            above += bandwidth
            level = (above - excess) / (end - begin)
        for index in range(end - 1, begin - 1, -1):
            f = row[index]
            if flows[f].mark != stamp:
                flows[f].mark, flows[f].place = stamp, found
                losing[found], new_shares[found] = f, level
                found += 1
            elif level < new_shares[flows[f].place]:
                new_shares[flows[f].place] = level
    return found


@compiled
def cheapest(flows: Records, links: Records, members: Integers, ascending: Integers, bandwidths: Reals,
             routes: Integers, candidates: Integers, size: float, now: float, stamp: int, losing: Integers,
             new_shares: Reals) -> tuple[int, float, float, Reals]:
    """The candidate of least cost (Eq. 2): its number, its cost, the new flow's share, and the costs of all.

    Widest first: once the size over the share alone exceeds the best cost, no later candidate can win, and that is
    the cost which is given for it.
    """
    shares = np.empty(len(candidates), np.float64)
    for order in range(len(candidates)):
        shares[order] = -share_of_new_flow(links, bandwidths, candidates[order])
    costs = size / -shares
    best, best_cost, best_share, best_length = -1, np.inf, 0.0, 0
    for order in np.argsort(shares, kind="mergesort"):
        share, route = -shares[order], candidates[order]
        if best >= 0 and size / share > best_cost:
            break
        stamp += 1
        found = reductions(flows, links, ascending, bandwidths, route, share, stamp, losing, new_shares)
        for index in range(found):
            f = losing[index]
            costs[order] += remaining_at(flows, routes, f, now) * (1 / new_shares[index] - 1 / flows[f].bandwidth)
        cost, length = costs[order], (route >= 0).sum()
        if best < 0 or cost < best_cost or (cost == best_cost and (
                length < best_length or (length == best_length and order < best))):
            best, best_cost, best_share, best_length = order, cost, share, length
    return best, best_cost, best_share, costs


@compiled
def share_with(flows: Records, links: Records, members: Integers, ascending: Integers, bandwidths: Reals,
               routes: Integers, f: int, now: float, stamp: int, losing: Integers, new_shares: Reals) -> None:
    """Give flow f its share on its path, and those it meets what they have then. `members` has room for it."""
    route = routes[f]
    share = share_of_new_flow(links, bandwidths, route)
    found = reductions(flows, links, ascending, bandwidths, route, share, stamp, losing, new_shares)
    for index in range(found):
        set_bandwidth(flows, links, ascending, bandwidths, routes, losing[index], new_shares[index], now)
    for link in route:
        if link < 0:
            break
        members[links[link].first + links[link].count] = f
        links[link].count += 1
        insert(flows, links, ascending, bandwidths, link, f, links[link].count)
    set_bandwidth(flows, links, ascending, bandwidths, routes, f, share, now)


@compiled
def remove_flow(flows: Records, links: Records, members: Integers, ascending: Integers, bandwidths: Reals,
                routes: Integers, f: int) -> None:
    """Take a flow off its links."""
    for link in routes[f]:
        if link < 0:
            break
        first, last = links[link].first, links[link].first + links[link].count
        place = first
        while members[place] != f:
            place += 1
        members[place:last - 1] = members[place + 1:last]
        place = place_of(flows, ascending, bandwidths, first, last, flows[f].bandwidth, flows[f].order)
        ascending[place:last] = ascending[place + 1:last + 1]
        bandwidths[place:last] = bandwidths[place + 1:last + 1]
        links[link].count -= 1
        links[link].stale = True


@compiled
def flows_measured(flows: Records, links: Records, members: Integers, ascending: Integers, bandwidths: Reals,
                   routes: Integers, measured: Integers, readings: Reals, now: float) -> None:
    """Counters of flows, a row each of size, bits counted and rate (NaN: none is known yet), and UPDATEBW: a measured
    rate counts unless its flow is in the update-freeze state."""
    for number in range(len(measured)):
        f, size, counted, rate = measured[number], readings[number, 0], readings[number, 1], readings[number, 2]
        flows[f].remaining = max(size - counted, 0.0)
        flows[f].settled_at = now
        flows[f].counted = counted
        if rate != rate:
            continue
        flows[f].measured = rate
        if not flows[f].frozen or now > flows[f].frozen_until:
            flows[f].frozen = False
            change_bandwidth(flows, links, ascending, bandwidths, routes, f, rate)


@compiled
def flow_left(flows: Records, links: Records, members: Integers, ascending: Integers, bandwidths: Reals,
              routes: Integers, f: int, now: float) -> None:
    """Take a flow off its links, which remember what it moved since they were measured."""
    remove_flow(flows, links, members, ascending, bandwidths, routes, f)
    for link in routes[f]:
        if link < 0:
            break
        if links[link].measured_at == links[link].measured_at:
            links[link].departed += flows[f].bandwidth * (now - max(links[link].measured_at, flows[f].since))


@compiled
def link_measured(flows: Records, links: Records, members: Integers, ascending: Integers, bandwidths: Reals,
                  routes: Integers, link: int, rate: float, now: float) -> None:
    """What the known flows do not explain of a measured rate is background. A flow of which no rate is known moved
    what it was thought to move, or what was counted if that is more."""
    measured_at = links[link].measured_at
    interval = now - measured_at if measured_at == measured_at else 0.0
    explained = links[link].departed / interval if interval > 0 else 0.0
    first = links[link].first
    for index in range(links[link].count):
        f = members[first + index]
        if flows[f].measured == flows[f].measured:
            explained += flows[f].measured
        else:
            part = min((now - flows[f].since) / interval, 1.0) if interval > 0 else 1.0
            counted = flows[f].counted / interval if interval > 0 else 0.0
            explained += max(flows[f].bandwidth * part, counted)
    links[link].background_demand = max(rate - explained, 0.0)
    change_bandwidth(flows, links, ascending, bandwidths, routes, links[link].background,
                     links[link].background_demand)
    links[link].departed = 0.0
    links[link].measured_at = now


@compiled
def flows_with_room(flows: Records, links: Records, members: Integers, ascending: Integers, bandwidths: Reals,
                    routes: Integers, left_links: Integers, stamp: int) -> tuple[Integers, Reals, Reals, Integers]:
    """The flows on some links that have room on every link they cross, and what `progressive_filling.raised` needs of
    them (see `room_of`).

    A background wants no more than was measured: as if it crossed one more link with that to spare.
    """
    able = np.empty(len(flows), np.int64)
    found = 0
    for link in left_links:
        if link < 0:
            break
        if spare(links, bandwidths, link) == 0.0:
            continue
        first = links[link].first
        for index in range(links[link].count):
            f = members[first + index]
            if flows[f].mark == stamp:
                continue
            flows[f].mark = stamp
            has_room = True
            for step in range(routes.shape[1]):
                crossed = routes[f, step]
                if crossed < 0:
                    break
                if links[crossed].stale:
                    refresh(links, bandwidths, crossed)
                # As `spare`, which takes ten times as long to call.
                if links[crossed].capacity - links[crossed].demand <= RELATIVE_TOLERANCE * links[crossed].capacity:
                    has_room = False
                    break
            if has_room:
                able[found] = f
                found += 1
    for link in left_links:
        if link < 0:
            break
        background = links[link].background
        unmet = links[link].background_demand - flows[background].bandwidth
        if unmet > 0 and spare(links, bandwidths, link) > 0:
            able[found] = background
            found += 1
    return able[:found], *room_of(flows, links, bandwidths, routes, able[:found])


@compiled
def room_of(flows: Records, links: Records, bandwidths: Reals, routes: Integers,
            able: Integers) -> tuple[Reals, Reals, Integers]:
    """What these flows have, what is to spare on each link that any of them crosses, and which of these links each
    crosses."""
    width = routes.shape[1]
    spares = np.empty(len(able) * (width + 1), np.float64)
    crossed = np.full((len(able), width + 1), -1, np.int64)
    numbered = np.empty(len(able) * width, np.int64)
    shares = np.empty(len(able), np.float64)
    count, numbered_count = 0, 0
    for number in range(len(able)):
        f = able[number]
        shares[number] = flows[f].bandwidth
        for step in range(width):
            link = routes[f, step]
            if link < 0:
                break
            if links[link].local < 0:
                links[link].local = count
                numbered[numbered_count] = link
                numbered_count += 1
                spares[count] = spare(links, bandwidths, link)
                count += 1
            crossed[number, step] = links[link].local
        link = routes[f, 0]
        if links[link].background == f:
            spares[count] = links[link].background_demand - flows[f].bandwidth
            crossed[number, 1] = count
            count += 1
    for index in range(numbered_count):
        links[numbered[index]].local = -1
    return shares, spares[:count], crossed


@compiled
def raise_to(flows: Records, links: Records, members: Integers, ascending: Integers, bandwidths: Reals,
             routes: Integers, able: Integers, shares: Reals, now: float) -> None:
    """Give flows these shares where they are more than what they have."""
    for number in range(len(able)):
        if shares[number] > flows[able[number]].bandwidth:
            set_bandwidth(flows, links, ascending, bandwidths, routes, able[number], shares[number], now)


@compiled
def restore(flows: Records, links: Records, members: Integers, ascending: Integers, bandwidths: Reals,
            routes: Integers, rows: Integers, before: Records) -> None:
    """Give flows on links the state that they had before."""
    for number in range(len(rows)):
        change_bandwidth(flows, links, ascending, bandwidths, routes, rows[number], before[number].bandwidth)
        flows[rows[number]] = before[number]
