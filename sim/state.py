"""The simulator's state: arrays in one named tuple, because compiled code wants them so.

Links, routes and flows are numbered. A route's links stand in `route_links[route, :length]`, the routes that
run over a link in `members[begin : begin + size]` of that link. The same places of `held` have the routes that
the link holds back, as a heap by `finish`, and those of `holders` and `holder_flows` which other links hold back
how many of its flows. Time is in seconds, sizes in bits, rates in bits per second.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

NONE = -1
DUE_BLOCK = 32

Integers = npt.NDArray[np.int32]
Reals = npt.NDArray[np.float64]
Records = npt.NDArray[np.void]

# values of State.queued
NOT_QUEUED, IN_HEAP, IN_SWEEP = range(3)

# indices of State.counters
QUEUE_SIZE, MEMBERS_USED, ENTRIES, EVENTS, LINK_UPDATES, ENDED = range(6)

LINK = np.dtype([
    ("capacity", np.float64),
    ("served", np.float64),         # bits sent to a flow that the link holds all the time, as of `served_at`
    ("served_at", np.float64),
    ("delivered", np.float64),      # bits of flows that have left the link
    ("member_begin", np.int32),
    ("member_size", np.int32),
    ("member_room", np.int32),
    ("held_size", np.int32),        # routes that it holds
    ("held_flows", np.int32),       # flows on these
    ("holders_size", np.int32),     # other links that hold some of its flows
], align=True)

ROUTE = np.dtype([
    ("offset", np.float64),         # bits sent to each flow of the route = offset + `served` of its holder
    ("finish", np.float64),         # its holder's `served` at which the route's next flow ends
    ("started", np.float64),        # sum over its running flows of the bits sent to the route when they started
    ("count", np.int32),            # flows that run
    ("holder", np.int32),           # the link whose level is the route's rate
    ("held_index", np.int32),       # where it stands among the routes that its holder holds
    ("first_flow", np.int32),
    ("length", np.int32),
], align=True)

FLOW = np.dtype([
    ("threshold", np.float64),      # bits sent to the route at which the flow ends
    ("size", np.float64),
    ("finished", np.float64),       # when it ended; not a number while it runs, infinite if it was taken off
    ("route", np.int32),
    ("left", np.int32),
    ("right", np.int32),
], align=True)


class State(NamedTuple):
    """Per-link arrays have one row more: a link that does not exist, of infinite level, holds new routes."""

    counters: npt.NDArray[np.int64]
    clock: Reals
    level: Reals          # rate of the flows that a link holds; infinite if it holds none
    due: Reals            # when the next of the flows that a link holds ends
    block_due: Reals      # the earliest of each DUE_BLOCK links
    queued: npt.NDArray[np.int8]            # whether a link waits to be looked at, and where
    order: Integers            # all links by level as of the last event that reached all of them
    links: Records
    routes: Records
    flows: Records
    route_links: Integers
    member_index: Integers     # where the route stands among the members of each of its links
    members: Integers
    held: Integers
    holders: Integers
    holder_flows: Integers
    queue: Integers
    queue_key: Reals
    ended: Integers            # flows that ended in the last event, `counters[ENDED]` of them


def new_state(capacities_bps: npt.ArrayLike, routes: int, longest_route: int, flows: int) -> State:
    """An idle network with room for `routes` routes of at most `longest_route` links, and `flows` flows."""
    capacities = np.append(np.asarray(capacities_bps, np.float64), np.inf)
    rows = len(capacities)
    links = np.zeros(rows, LINK)
    links["capacity"] = capacities
    room = _members_room(routes, longest_route, rows)
    return State(
        counters=np.zeros(6, np.int64), clock=np.zeros(1), level=np.full(rows, np.inf), due=np.full(rows, np.inf),
        block_due=np.full(-(-rows // DUE_BLOCK), np.inf),
        queued=np.zeros(rows, np.int8), order=np.arange(rows, dtype=np.int32), links=links,
        routes=_new_routes(routes, rows), flows=_new_flows(flows),
        route_links=np.zeros((routes, longest_route), np.int32),
        member_index=np.zeros((routes, longest_route), np.int32),
        members=np.zeros(room, np.int32), held=np.zeros(room, np.int32),
        holders=np.zeros(room, np.int32), holder_flows=np.zeros(room, np.int32),
        queue=np.zeros(rows, np.int32), queue_key=np.zeros(rows), ended=np.zeros(flows, np.int32),
    )


def with_room(s: State, routes: int, flows: int) -> State:
    """The same state with room for at least so many routes and flows; what grows at least doubles."""
    if len(s.routes) < routes:
        more = max(routes, 2 * len(s.routes)) - len(s.routes)
        width, rows = s.route_links.shape[1], len(s.level)
        room = _members_room(len(s.routes) + more, width, rows)
        nothing = np.zeros((more, width), np.int32)
        s = s._replace(routes=np.concatenate((s.routes, _new_routes(more, rows))),
                       members=_lengthened(s.members, room), held=_lengthened(s.held, room),
                       holders=_lengthened(s.holders, room), holder_flows=_lengthened(s.holder_flows, room),
                       route_links=np.concatenate((s.route_links, nothing)),
                       member_index=np.concatenate((s.member_index, nothing)))
    if len(s.flows) < flows:
        more = max(flows, 2 * len(s.flows)) - len(s.flows)
        s = s._replace(flows=np.concatenate((s.flows, _new_flows(more))),
                       ended=np.zeros(len(s.flows) + more, np.int32))
    return s


def _lengthened(array: Integers, length: int) -> Integers:
    longer = np.zeros(length, np.int32)
    longer[: len(array)] = array
    return longer


def _new_routes(number: int, link_rows: int) -> Records:
    routes = np.zeros(number, ROUTE)
    routes["holder"] = link_rows - 1
    routes["finish"] = np.inf
    routes["first_flow"] = NONE
    return routes


def _new_flows(number: int) -> Records:
    flows = np.zeros(number, FLOW)
    flows["finished"] = np.nan
    flows["left"] = flows["right"] = NONE
    return flows


def _members_room(routes: int, longest_route: int, links: int) -> int:
    """Segments double when they are full and leave their old place unused: at most 4 times what is in use."""
    return 4 * routes * longest_route + 16 * links
