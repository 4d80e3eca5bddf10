"""Routes and rates of coflows, over arrays (compiled); orders are those of `coflow_order`.

Nothing here looks whether an index is one of its array, so nothing but `checked_kernels` may call it.

Flow f runs over the links in row f of `links`, -1 after the last; `left` holds what flows have to send, `free` what
links can still give. The flows of coflow c are `flows[first[c] : first[c] + count[c]]`. `load` is scratch: zeros, one
for each link, before and after each call. Any units will do, as long as `free` is `left`'s unit per unit of time.

A change here must not call into another module: numba's cache looks at this file alone.
"""

import numpy as np

from speedwell.controller.policy.compiled import Integers, Reals
from speedwell.controller.policy.compiled import compiled_for_threads as compiled

FULL = 1e-9
"""Less than this part of a link is rounding, not bandwidth."""


@compiled
def add_load(c: int, first: Integers, count: Integers, flows: Integers, links: Integers, left: Reals, load: Reals,
             ) -> None:
    """Add what coflow c has on each link to `load`."""
    for i in range(first[c], first[c] + count[c]):
        f = flows[i]
        for position in range(links.shape[1]):
            if links[f, position] < 0:
                break
            load[links[f, position]] += left[f]


@compiled
def drain(c: int, first: Integers, count: Integers, flows: Integers, links: Integers, free: Reals, whole: Reals,
          load: Reals) -> float:
    """Gamma of the coflow whose load this is, infinite if it needs a full link; `load` is zero again afterwards."""
    longest = 0.0
    for i in range(first[c], first[c] + count[c]):
        f = flows[i]
        for position in range(links.shape[1]):
            link = links[f, position]
            if link < 0:
                break
            if load[link] > 0:
                is_full = free[link] <= FULL * whole[link]
                longest = max(longest, np.inf if is_full else load[link] / free[link])
                load[link] = 0.0
    return longest


@compiled
def gammas(coflows: Integers, first: Integers, count: Integers, flows: Integers, links: Integers, left: Reals,
           free: Reals, whole: Reals, load: Reals, out: Reals) -> None:
    """The bottleneck of each coflow on what is `free`: its time if it had that for itself."""
    for number in range(len(coflows)):
        c = coflows[number]
        add_load(c, first, count, flows, links, left, load)
        out[number] = drain(c, first, count, flows, links, free, whole, load)


@compiled
def scaled(order: Integers, first: Integers, count: Integers, flows: Integers, links: Integers, left: Reals,
           free: Reals, whole: Reals, load: Reals, rates: Reals) -> None:
    """In order, each flow gets in addition that part of its rate in an empty network which its links still have free.

    This is MADD as Varys' scheduler has it in its code: a coflow that finds a link full goes on with its other flows.
    """
    used = np.zeros(len(free))
    for c in order:
        add_load(c, first, count, flows, links, left, load)
        seconds = drain(c, first, count, flows, links, whole, whole, load)
        if seconds == 0.0:
            continue
        for i in range(first[c], first[c] + count[c]):
            f = flows[i]
            part = 1.0
            for position in range(links.shape[1]):
                link = links[f, position]
                if link < 0:
                    break
                part = min(part, free[link] / whole[link])
            if part > FULL:
                more = part * left[f] / seconds
                rates[f] += more
                for position in range(links.shape[1]):
                    if links[f, position] < 0:
                        break
                    used[links[f, position]] += more
        for i in range(first[c], first[c] + count[c]):
            f = flows[i]
            for position in range(links.shape[1]):
                link = links[f, position]
                if link < 0:
                    break
                free[link] = max(free[link] - used[link], 0.0)
                used[link] = 0.0


@compiled
def backfill(order: Integers, first: Integers, count: Integers, flows: Integers, links: Integers, free: Reals,
             whole: Reals, rates: Reals) -> None:
    """Flow by flow, in order: each gets all that its links have left."""
    for c in order:
        for i in range(first[c], first[c] + count[c]):
            f = flows[i]
            more = np.inf
            for position in range(links.shape[1]):
                link = links[f, position]
                if link < 0:
                    break
                more = min(more, free[link] if free[link] > FULL * whole[link] else 0.0)
            if 0.0 < more < np.inf:
                rates[f] += more
                for position in range(links.shape[1]):
                    if links[f, position] < 0:
                        break
                    free[links[f, position]] -= more


@compiled
def fill(order: Integers, first: Integers, count: Integers, flows: Integers, links: Integers, left: Reals,
         free: Reals, whole: Reals, load: Reals, rates: Reals) -> None:
    """In order, each coflow takes all that it can use: no link is left free that one of its flows could use.

    Its flows rise together, each in proportion to what it has left, so that they would end together; when a link is
    full, its flows stay as they are and the others go on rising. Those of the longest link are the first to stop, at
    the rates of MADD.
    """
    rising, own = np.empty(len(links), np.int64), np.empty(len(whole), np.int64)
    for c in order:
        still, used, level = 0, 0, 0.0
        for i in range(first[c], first[c] + count[c]):
            f = flows[i]
            if left[f] > 0 and not _on_a_full_link(f, links, free, whole):
                rising[still] = f
                still += 1
                for link in links[f]:
                    if link < 0:
                        break
                    if load[link] == 0.0:
                        own[used] = link
                        used += 1
                    load[link] += left[f]
        while still > 0:
            step = np.inf
            for link in own[:used]:
                if load[link] > 0 and free[link] > FULL * whole[link]:
                    step = min(step, free[link] / load[link])
            if step == np.inf:      # what still rises uses no link, or too little of one to be told from nothing
                break
            level += step
            for link in own[:used]:
                if free[link] > FULL * whole[link]:
                    free[link] = max(free[link] - step * load[link], 0.0)
            kept = 0
            for k in range(still):
                f = rising[k]
                if not _on_a_full_link(f, links, free, whole):
                    rising[kept] = f
                    kept += 1
                    continue
                rates[f] += level * left[f]
                for link in links[f]:
                    if link < 0:
                        break
                    load[link] -= left[f]
            if kept == still:       # capacities too small for floating point
                break
            still = kept
        for link in own[:used]:
            load[link] = 0.0


@compiled
def _on_a_full_link(f: int, links: Integers, free: Reals, whole: Reals) -> bool:
    for link in links[f]:
        if link < 0:
            break
        if free[link] <= FULL * whole[link]:
            return True
    return False


@compiled
def route(order: Integers, first: Integers, count: Integers, flows: Integers, left: Reals, ends: Integers,
          pair: Integers, pair_first: Integers, pair_paths: Integers, inner: Integers, whole: Reals, worth: float,
          chosen: Integers, load: Reals) -> int:
    """Give the flows of each coflow, in order, paths on which what was placed before and they themselves end soonest.

    Flow f leaves and enters by the links `ends[f]`; between, it may take the paths numbered from
    `pair_first[pair[f]]`, `pair_paths[pair[f]]` of them, with the links in `inner`. `chosen[f]` is one of these
    numbers, -1 for a flow that is new. A coflow whose flows all have a path keeps them, unless the new ones let it
    end sooner by the part `worth`. `load` is scratch: zeros before, what links have to send afterwards. Returns how
    many flows were moved, new ones not counted.
    """
    moved = 0
    width = inner.shape[1]
    candidate = np.empty(len(chosen), np.int64)
    for c in order:
        begin, end = first[c], first[c] + count[c]
        is_new = False
        before, after = 0.0, 0.0
        for i in range(begin, end):
            f = flows[i]
            load[ends[f, 0]] += left[f]
            load[ends[f, 1]] += left[f]
            if chosen[f] < 0:
                is_new = True
            else:
                for position in range(width):
                    if inner[chosen[f], position] >= 0:
                        load[inner[chosen[f], position]] += left[f]
        for i in range(begin, end):
            f = flows[i]
            before = max(before, load[ends[f, 0]] / whole[ends[f, 0]], load[ends[f, 1]] / whole[ends[f, 1]])
        fabric = 0.0
        for i in range(begin, end):
            f = flows[i]
            if chosen[f] >= 0:
                for position in range(width):
                    link = inner[chosen[f], position]
                    if link >= 0:
                        fabric = max(fabric, load[link] / whole[link])
        if not is_new and fabric <= before * (1 + worth):
            continue                    # its hosts hold it up: no path can help
        for i in range(begin, end):
            f = flows[i]
            if chosen[f] >= 0:
                for position in range(width):
                    if inner[chosen[f], position] >= 0:
                        load[inner[chosen[f], position]] -= left[f]
        after = 0.0
        largest_first = np.argsort(-left[flows[begin:end]])
        for k in largest_first:
            f = flows[begin + k]
            best, least = -1, np.inf
            for path in range(pair_first[pair[f]], pair_first[pair[f]] + pair_paths[pair[f]]):
                seconds = 0.0
                for position in range(width):
                    if inner[path, position] >= 0:
                        seconds = max(seconds, (load[inner[path, position]] + left[f]) / whole[inner[path, position]])
                if seconds < least or (seconds == least and path == chosen[f]):
                    best, least = path, seconds
            candidate[f] = best
            if best >= 0:
                after = max(after, least)
                for position in range(width):
                    if inner[best, position] >= 0:
                        load[inner[best, position]] += left[f]
        keep = not is_new and max(after, before) > max(fabric, before) * (1 - worth)
        for i in range(begin, end):
            f = flows[i]
            if keep:
                for position in range(width):
                    if candidate[f] >= 0 and inner[candidate[f], position] >= 0:
                        load[inner[candidate[f], position]] -= left[f]
                for position in range(width):
                    if inner[chosen[f], position] >= 0:
                        load[inner[chosen[f], position]] += left[f]
            elif candidate[f] >= 0:
                if chosen[f] >= 0 and chosen[f] != candidate[f]:
                    moved += 1
                chosen[f] = candidate[f]
    return moved
