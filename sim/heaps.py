"""Priority queues in arrays, for compiled code: two binary heaps and a skew heap on the simulator's state."""

import numpy as np

from speedwell.sim.compiled import compiled
from speedwell.sim.state import DUE_BLOCK, IN_HEAP, NONE, NOT_QUEUED, QUEUE_SIZE, State

# ------------------------------------------------------- links to be looked at, lowest level first


@compiled
def push_link(s: State, link: int) -> None:
    """Queue a link at its current level; one that waits already stays where it is."""
    if s.queued[link] != NOT_QUEUED:
        return
    s.queued[link] = IN_HEAP
    key = s.level[link]
    position = s.counters[QUEUE_SIZE]
    s.counters[QUEUE_SIZE] += 1
    while position > 0:
        above = (position - 1) >> 1
        if s.queue_key[above] <= key:
            break
        s.queue_key[position] = s.queue_key[above]
        s.queue[position] = s.queue[above]
        position = above
    s.queue_key[position] = key
    s.queue[position] = link


@compiled
def pop_link(s: State) -> int:
    """The queued link of the lowest level."""
    least = s.queue[0]
    s.queued[least] = NOT_QUEUED
    s.counters[QUEUE_SIZE] -= 1
    size = s.counters[QUEUE_SIZE]
    key, link = s.queue_key[size], s.queue[size]
    position = 0
    while True:
        below = 2 * position + 1
        if below >= size:
            break
        if below + 1 < size and s.queue_key[below + 1] < s.queue_key[below]:
            below += 1
        if key <= s.queue_key[below]:
            break
        s.queue_key[position] = s.queue_key[below]
        s.queue[position] = s.queue[below]
        position = below
    s.queue_key[position] = key
    s.queue[position] = link
    return least


# ------------------------------------------------------- flows of one route by threshold: a skew heap


@compiled
def merge_flows(s: State, a: int, b: int) -> int:
    """Merge two skew heaps top-down; returns the root."""
    if a == NONE:
        return b
    if b == NONE:
        return a
    if s.flows[b].threshold < s.flows[a].threshold:
        a, b = b, a
    root = a
    while True:
        # `a` keeps its place; its right child is merged with `b` and becomes the left one
        rest = s.flows[a].right
        s.flows[a].right = s.flows[a].left
        if rest == NONE:
            s.flows[a].left = b
            return root
        if s.flows[b].threshold < s.flows[rest].threshold:
            rest, b = b, rest
        s.flows[a].left = rest
        a = rest


# ------------------------------------------------------- routes that a link holds, by finish


@compiled
def add_held(s: State, link: int, route: int) -> None:
    position = s.links[link].held_size
    s.links[link].held_size = position + 1
    _raise_held(s, s.links[link].member_begin, position, route)


@compiled
def drop_held(s: State, link: int, route: int) -> None:
    s.links[link].held_size -= 1
    begin, size, position = s.links[link].member_begin, s.links[link].held_size, s.routes[route].held_index
    if position < size:
        _lower_held(s, begin, size, position, s.held[begin + size])
        moved = s.held[begin + position]
        _raise_held(s, begin, position, moved)


@compiled
def move_held(s: State, link: int, route: int) -> None:
    """The route's finish is another."""
    begin = s.links[link].member_begin
    _lower_held(s, begin, s.links[link].held_size, s.routes[route].held_index, route)
    position = s.routes[route].held_index
    _raise_held(s, begin, position, route)


@compiled
def _raise_held(s: State, begin: int, position: int, route: int) -> None:
    finish = s.routes[route].finish
    while position > 0:
        above = (position - 1) >> 1
        other = s.held[begin + above]
        if s.routes[other].finish <= finish:
            break
        s.held[begin + position] = other
        s.routes[other].held_index = position
        position = above
    s.held[begin + position] = route
    s.routes[route].held_index = position


@compiled
def _lower_held(s: State, begin: int, size: int, position: int, route: int) -> None:
    finish = s.routes[route].finish
    while True:
        below = 2 * position + 1
        if below >= size:
            break
        other = s.held[begin + below]
        if below + 1 < size and s.routes[s.held[begin + below + 1]].finish < s.routes[other].finish:
            below += 1
            other = s.held[begin + below]
        if finish <= s.routes[other].finish:
            break
        s.held[begin + position] = other
        s.routes[other].held_index = position
        position = below
    s.held[begin + position] = route
    s.routes[route].held_index = position


# ------------------------------------------------------- when links have their next completion


@compiled
def set_due(s: State, link: int, due: float) -> None:
    before = s.due[link]
    s.due[link] = due
    block = link // DUE_BLOCK
    if due <= s.block_due[block]:
        s.block_due[block] = due
    elif before == s.block_due[block]:
        earliest = np.inf
        for other in range(block * DUE_BLOCK, min(len(s.due), (block + 1) * DUE_BLOCK)):
            earliest = s.due[other] if s.due[other] < earliest else earliest
        s.block_due[block] = earliest
