"""Priority queues in arrays, for compiled code: a binary and a skew heap on the simulator's state."""

from numba import njit

from sim.state import IN_HEAP, NONE, NOT_QUEUED, QUEUE_SIZE, State

# ------------------------------------------------------- links to be looked at, lowest level first


@njit(cache=True)
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


@njit(cache=True)
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


@njit(cache=True)
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
