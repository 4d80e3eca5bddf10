"""All shortest paths to one switch as numbered in-trees, without listing a single path.

In tree t every switch has at most one next hop, so whatever carries t on its way needs no other state than t. Sets of
trees are bits of integers: one AND says which trees lead over a link, and a whole fat-tree of k = 16 takes a
millisecond for each destination.

A switch picks its next hop in tree t by one digit of t: with next hops w0 .. wr-1 it is the one of number
(t // stride) mod radix mod r. The stride is the span (stride times radix) of the next hops, so that the digits nearer
to the destination run through all their values within one value of this one; radices are powers of two, so that all
strides divide one another. Hence each path of a switch has its tree, and switches whose ways look alike number them
alike, whatever the destination.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise

from speedwell.controller.policy.network.graph import Link

MAX_CHOICES = 256
"""Trees for one destination at most; where a switch has more paths, they are a part of them, spread over all its next
hops."""

Neighbours = Callable[[str], Sequence[str]]


class PathTrees:
    """The trees to one destination. `ways` of a switch are trees that lead along different paths, one for each."""

    def __init__(self, destination: str, after: Neighbours, before: Neighbours, live: Collection[Link]) -> None:
        """`after` and `before` give the switches that links lead to and come from, in a fixed order. Those of these
        links that are not `live` are down for now."""
        self.destination = destination
        self.distance = {destination: 0}
        self.order = [destination]
        """Switches, nearest first."""
        for node in self.order:
            for neighbour in before(node):
                if neighbour not in self.distance:
                    self.distance[neighbour] = self.distance[node] + 1
                    self.order.append(neighbour)
        span, self.ways = {destination: 1}, {destination: 1}
        digits: dict[str, tuple[int, int, list[str]]] = {}
        for node in self.order[1:]:
            nearer = [n for n in after(node) if self.distance.get(n, -1) == self.distance[node] - 1][:MAX_CHOICES]
            radix = 1 << (len(nearer) - 1).bit_length()
            stride = min(max(span[n] for n in nearer), MAX_CHOICES // radix)
            span[node] = stride * radix
            digits[node] = stride, radix, nearer
            self.ways[node] = 0
            for number, neighbour in enumerate(nearer):
                self.ways[node] |= _ways_by(self.ways[neighbour], span[neighbour], number, stride)
        self.count = max(span.values())
        self.hops: dict[str, dict[str, int]] = {destination: {}}
        """For each switch the trees that go on to each of its neighbours."""
        self.before: dict[str, list[str]] = {node: [] for node in self.order}
        for node, (stride, radix, nearer) in digits.items():
            masks = _digit_masks(stride, radix, len(nearer), self.count)
            self.hops[node] = dict(zip(nearer, masks, strict=True))
            for neighbour in nearer:
                self.before[neighbour].append(node)
        self._whole = (1 << self.count) - 1
        self._live = {destination: self._whole}
        for node in self.order[1:]:
            self._live[node] = self._look(node, live)

    def _look(self, node: str, live: Collection[Link]) -> int:
        """The trees that lead from a switch to the destination over live links, as its neighbours have them."""
        trees = 0
        for neighbour, mask in self.hops[node].items():
            if (node, neighbour) in live:
                trees |= mask & self._live[neighbour]
        return trees

    def links_changed(self, changed: Iterable[Link], live: Collection[Link]) -> set[str]:
        """Links went or came back. Returns the switches whose choices are other ones now."""
        dirty: dict[int, set[str]] = {}
        for source, neighbour in changed:
            if neighbour in self.hops.get(source, ()):
                dirty.setdefault(self.distance[source], set()).add(source)
        different: set[str] = set()
        while dirty:
            distance = min(dirty)
            for node in dirty.pop(distance):
                trees = self._look(node, live)
                if trees != self._live[node]:
                    self._live[node] = trees
                    different.add(node)
                    dirty.setdefault(distance + 1, set()).update(self.before[node])
        return different

    def is_outdated_by(self, link: Link) -> bool:
        """Whether a link that these trees do not know makes paths that are shorter, or as short as theirs."""
        far = len(self.distance) + 1
        return self.distance.get(link[0], far) > self.distance.get(link[1], far)

    def choices(self, source: str) -> int:
        """The trees that lead from a switch along different shortest paths over live links: a bit for each."""
        return self.ways.get(source, 0) & self._live.get(source, 0)

    def choices_by_hop(self, source: str) -> Iterator[tuple[str, int]]:
        """`choices`, by the neighbour they begin with."""
        choices = self.choices(source)
        for neighbour, mask in self.hops.get(source, {}).items():
            if by_hop := choices & mask:
                yield neighbour, by_hop

    def choice_of(self, nodes: Sequence[str]) -> int | None:
        """The tree that leads along a path, live or not; None if it is not one of the paths."""
        if nodes[-1] != self.destination:
            return None
        trees = self.ways.get(nodes[0], 0)
        for node, neighbour in pairwise(nodes):
            trees &= self.hops.get(node, {}).get(neighbour, 0)
        return trees.bit_length() - 1 if trees else None

    def arrivals(self, sources: Collection[str]) -> dict[str, int]:
        """For each switch the trees by which packets of `sources` reach it, the destination included."""
        arriving: dict[str, int] = {}
        for node in reversed(self.order):
            trees = arriving.get(node, 0) | (self.ways[node] if node in sources else 0)
            if trees:
                for neighbour, mask in self.hops[node].items():
                    if carried := trees & mask:
                        arriving[neighbour] = arriving.get(neighbour, 0) | carried
        return arriving

    def agrees_with(self, hops: Mapping[str, Mapping[int, str]]) -> bool:
        """Whether next hops, given by switch and tree, are those of these trees."""
        return all(self.hops.get(node, {}).get(neighbour, 0) >> tree & 1
                   for node, by_tree in hops.items() for tree, neighbour in by_tree.items())


@lru_cache(maxsize=65536)
def bits_of(mask: int) -> tuple[int, ...]:
    """The numbers of the bits that are set."""
    numbers = []
    while mask:
        lowest = mask & -mask
        numbers.append(lowest.bit_length() - 1)
        mask ^= lowest
    return tuple(numbers)


def _ways_by(ways: int, span: int, number: int, stride: int) -> int:
    """A next hop's ways, as trees of the switch before it: those where its digit is `number`."""
    if span <= stride:
        return ways << number * stride
    window = (1 << stride) - 1 << number * stride
    return _repeated(ways, span, number * stride + stride) & window


def _repeated(mask: int, period: int, count: int) -> int:
    result = 0
    for start in range(0, count, period):
        result |= mask << start
    return result & (1 << count) - 1


@lru_cache(maxsize=4096)
def _digit_masks(stride: int, radix: int, hops: int, count: int) -> tuple[int, ...]:
    """For each of `hops` next hops the trees below `count` that pick it."""
    one = (1 << stride) - 1
    masks = []
    for number in range(hops):
        period = 0
        for digit in range(number, radix, hops):
            period |= one << digit * stride
        masks.append(_repeated(period, stride * radix, count))
    return tuple(masks)
