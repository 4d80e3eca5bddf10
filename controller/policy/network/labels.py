"""Which MPLS labels stand for which paths, kept while links go and come.

A label is the number of a block plus the number of a tree (`path_trees`): transit switches need nothing but static
entries label -> port, and the paths from a switch to many destinations differ in their blocks alone.

Each destination has a home block, made of all links that are known, whether they are up or down: a link that goes or
comes back changes the choices that switches have, and no label. Sources that have lost all shortest paths of home
share one detour block, made of the links that live, until one of their own is back. A block that is made anew,
because a link was found, replaces its predecessor; blocks that ended give their labels back, and these are taken
last. So however often links fail, a destination has two blocks at most.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain

from speedwell.controller.policy.errors import LabelsExhausted, UnknownPath
from speedwell.controller.policy.network.graph import Link, Path
from speedwell.controller.policy.network.path_trees import MAX_CHOICES, PathTrees, bits_of

FIRST_LABEL = 16
"""Labels 0 to 15 are reserved (RFC 3032, section 2.1)."""
LAST_LABEL = 2**20 - 1
MAX_BITS = (MAX_CHOICES - 1).bit_length()
LINKS_REMEMBERED = 4096
"""Of links that are down, so many are known at most; those that went first are forgotten first."""


@dataclass(slots=True, eq=False)
class LabelBlock:
    """The labels of one destination's trees: `base` plus the number of the tree, in the lowest `bits` bits."""

    base: int
    bits: int
    trees: PathTrees
    sources: frozenset[str]
    arrivals: dict[str, int] = field(default_factory=dict)
    """For each switch the trees with which packets reach it."""

    @property
    def destination(self) -> str:
        return self.trees.destination

    @property
    def labels(self) -> range:
        return range(self.base, self.base + (1 << self.bits))


@dataclass(frozen=True, slots=True)
class InheritedBlock:
    """A block as switches hold it from before: `hops` by switch and tree, without those of links that are down."""

    destination: str
    base: int
    bits: int
    hops: Mapping[str, Mapping[int, str]]


@dataclass(slots=True)
class LabelChanges:
    """What a look at one destination changed."""

    destination: str
    sources: set[str]
    """Edge switches whose choices may be other ones."""
    made: list[LabelBlock] = field(default_factory=list)
    """Blocks that are new or have other arrivals."""
    ended: list[LabelBlock] = field(default_factory=list)


class LabelSpace:
    """The numbers. A block's base is a multiple of its size. They are given out round and round, so that those given
    back rest for as long as there are others: packets and entries that bear them may still be under way."""

    def __init__(self) -> None:
        self._next = FIRST_LABEL
        self._allocated: set[tuple[int, int]] = set()

    def allocate(self, bits: int) -> int:
        """The base of a free block of 2**bits labels. Raises LabelsExhausted."""
        size = 1 << bits
        first, last = -(-FIRST_LABEL // size) * size, LAST_LABEL + 1 - size
        begin = -(-self._next // size) * size
        for base in chain(range(begin, last + 1, size), range(first, min(begin, last + 1), size)):
            if self.is_free(base, bits):
                self._next = base + size
                self._allocated.add((base, bits))
                return base
        raise LabelsExhausted(f"no {size} labels in a row are free among {LAST_LABEL - FIRST_LABEL + 1}")

    def reserve(self, base: int, bits: int) -> bool:
        """Take a given block; False if it is not free, or no block that `allocate` could have given."""
        if bits > MAX_BITS or base % (1 << bits) or base < FIRST_LABEL or base + (1 << bits) - 1 > LAST_LABEL \
                or not self.is_free(base, bits):
            return False
        self._allocated.add((base, bits))
        return True

    def release(self, base: int, bits: int) -> None:
        self._allocated.discard((base, bits))

    def is_free(self, base: int, bits: int) -> bool:
        """Whether no block of those taken shares a label with this one."""
        end = base + (1 << bits)
        return all((start, size) not in self._allocated
                   for size in range(MAX_BITS + 1) for start in range(base >> size << size, end, 1 << size))

    @property
    def allocated(self) -> int:
        """How many labels are taken."""
        return sum(1 << bits for _, bits in self._allocated)


class Labels:
    """The blocks of all edge switches. Follow the network with `update`."""

    def __init__(self) -> None:
        self.space = LabelSpace()
        self._edges: frozenset[str] = frozenset()
        self._live: set[Link] = set()
        self._down: dict[Link, None] = {}
        self._born: dict[Link, int] = {}
        """In which look a link became known."""
        self._look = 0
        self._after: dict[str, list[str]] = {}
        self._before: dict[str, list[str]] = {}
        self._home: dict[str, LabelBlock] = {}
        self._detour: dict[str, LabelBlock] = {}
        self._made_at: dict[int, int] = {}
        self._blocks: dict[int, LabelBlock] = {}
        self._inherited: dict[str, list[InheritedBlock]] = {}

    # --- look-ups ---

    def block_of(self, source: str, destination: str) -> LabelBlock | None:
        """The block whose choices packets from one edge switch to another take; None if there is no way."""
        for blocks in (self._home, self._detour):
            block = blocks.get(destination)
            if block is not None and block.trees.choices(source):
                return block
        return None

    def label_for(self, path: Path) -> int:
        """The label that carries a packet along a path of edge switches. Raises UnknownPath if it has none now."""
        block = self.block_of(path.nodes[0], path.nodes[-1])
        choice = block.trees.choice_of(path.nodes) if block else None
        if block is None or choice is None or not block.trees.choices(path.nodes[0]) >> choice & 1:
            raise UnknownPath(f"no label stands for the path {' -> '.join(path.nodes)}")
        return block.base + choice

    def destination(self, label: int) -> str | None:
        """The switch that takes a label off; None if the label is not in use."""
        block = self._block_with(label)
        return block.destination if block else None

    def is_seen_by(self, switch: str, label: int) -> bool:
        """Whether a switch knows what to do with a label."""
        block = self._block_with(label)
        return block is not None and bool(block.arrivals.get(switch, 0) >> (label - block.base) & 1)

    def _block_with(self, label: int) -> LabelBlock | None:
        for bits in range(MAX_BITS + 1):
            block = self._blocks.get(label >> bits << bits)
            if block is not None and label in block.labels:
                return block
        return None

    @property
    def without_labels(self) -> set[str]:
        """Edge switches for which no labels are left."""
        return {edge for edge in self._edges if edge not in self._home}

    @property
    def blocks(self) -> Collection[LabelBlock]:
        return self._blocks.values()

    # --- following the network ---

    def adopt(self, found: Iterable[InheritedBlock]) -> list[InheritedBlock]:
        """Before the first `update`: blocks that switches hold from an earlier controller. Where the trees of one are
        those that would be made now, it is taken over; none of the others' labels are given out, until `forget`.
        Returns those that can be none of this class's blocks."""
        strange = []
        for block in found:
            if self.space.reserve(block.base, block.bits):
                self._inherited.setdefault(block.destination, []).append(block)
            else:
                strange.append(block)
        return strange

    def not_adopted(self) -> list[InheritedBlock]:
        """Blocks of an earlier controller that are none of this one's."""
        return [block for blocks in self._inherited.values() for block in blocks]

    def forget(self, found: InheritedBlock) -> None:
        """No packet carries labels of this block any more."""
        self._no_longer_inherited(found)
        self.space.release(found.base, found.bits)

    def update(self, links: Collection[Link], edges: Collection[str]) -> Iterator[LabelChanges]:
        """Look at the live links between switches, and the switches that need labels, as they are now.

        Yields what changed, destination by destination: stop in between for as long as you like, but take all of it.
        A destination without labels left is yielded too, without a block. Raises nothing.
        """
        self._look += 1
        lost, found = self._live - set(links), set(links) - self._live
        self._live = set(links)
        self._remember(lost, found)
        edges, former = frozenset(edges), self._edges
        self._edges = edges
        for destination in sorted(edges | former):
            if destination not in edges:
                yield self._gone(destination, former)
            elif edges != former or lost or found:
                changed = self._look_at(destination, lost, found, edges != former)
                if changed.sources or changed.made or changed.ended:
                    yield changed

    def _remember(self, lost: set[Link], found: set[Link]) -> None:
        for link in found:
            self._down.pop(link, None)
            if link not in self._born:
                self._born[link] = self._look
                for neighbours, node, neighbour in ((self._after, *link), (self._before, link[1], link[0])):
                    neighbours[node] = sorted([*neighbours.get(node, ()), neighbour])
        self._down.update(dict.fromkeys(sorted(lost)))
        while len(self._down) > LINKS_REMEMBERED:
            link = next(iter(self._down))
            del self._down[link], self._born[link]
            self._after[link[0]].remove(link[1])
            self._before[link[1]].remove(link[0])

    def _gone(self, destination: str, former: frozenset[str]) -> LabelChanges:
        ended = [block for blocks in (self._home, self._detour) if (block := blocks.pop(destination, None))]
        for block in ended:
            self._end(block)
        return LabelChanges(destination, set(former), ended=ended)

    def _look_at(self, destination: str, lost: set[Link], found: set[Link], edges_changed: bool) -> LabelChanges:
        changed = LabelChanges(destination, set())
        home = self._home.get(destination)
        if home is None or any(self._born[link] > self._made_at[home.base] and home.trees.is_outdated_by(link)
                               for link in found):
            trees = PathTrees(destination, lambda node: self._after.get(node, ()),
                              lambda node: self._before.get(node, ()), self._live)
            home = self._replace(self._home, trees, self._edges, changed)
        else:
            changed.sources |= self._edges & home.trees.links_changed(lost | found, self._live)
            if edges_changed and home.sources != self._edges:
                changed.sources |= self._edges ^ home.sources
                self._serve(home, self._edges, changed)
        if changed.sources or found or destination in self._detour:
            self._look_at_detour(destination, home, lost, found, changed)
        return changed

    def _look_at_detour(self, destination: str, home: LabelBlock | None, lost: set[Link], found: set[Link],
                        changed: LabelChanges) -> None:
        """Sources without a way by home have a detour, if the network has any."""
        starved = frozenset(source for source in self._edges if source != destination
                            and not (home and home.trees.choices(source)))
        detour = self._detour.get(destination)
        if detour is not None:
            changed.sources |= self._edges & detour.trees.links_changed(lost | found, self._live)
            served = frozenset(filter(detour.trees.choices, starved))
            outdated = any(detour.trees.is_outdated_by(link) and link[1] not in detour.trees.hops.get(link[0], ())
                           for link in found)
            if served and not outdated and served == self._within_reach(starved, served, destination):
                if served != detour.sources:
                    changed.sources |= served ^ detour.sources
                    self._serve(detour, served, changed)
                return
            changed.sources |= detour.sources
            changed.ended.append(self._detour.pop(destination))
            self._end(detour)
        if starved:
            trees = self._live_trees(destination)
            if served := frozenset(filter(trees.choices, starved)):
                self._replace(self._detour, trees, served, changed)

    def _within_reach(self, starved: frozenset[str], served: frozenset[str], destination: str) -> frozenset[str]:
        return served if served == starved else frozenset(filter(self._live_trees(destination).choices, starved))

    def _serve(self, block: LabelBlock, sources: frozenset[str], changed: LabelChanges) -> None:
        block.sources, block.arrivals = sources, block.trees.arrivals(sources)
        changed.made.append(block)

    def _live_trees(self, destination: str) -> PathTrees:
        after, before = self._live_neighbours()
        return PathTrees(destination, lambda node: after.get(node, ()), lambda node: before.get(node, ()), self._live)

    def _live_neighbours(self) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
        after = {node: [other for other in others if (node, other) in self._live]
                 for node, others in self._after.items()}
        before = {node: [other for other in others if (other, node) in self._live]
                  for node, others in self._before.items()}
        return after, before

    def _replace(self, blocks: dict[str, LabelBlock], trees: PathTrees, sources: frozenset[str],
                 changed: LabelChanges) -> LabelBlock | None:
        former = blocks.pop(trees.destination, None)
        if former is not None:
            changed.ended.append(former)
            self._end(former)
        changed.sources |= sources
        bits = (trees.count - 1).bit_length()
        try:
            base = self._inherited_base(trees, bits) or self.space.allocate(bits)
        except LabelsExhausted:
            return None
        block = LabelBlock(base, bits, trees, sources, trees.arrivals(sources))
        self._made_at[base] = self._look
        self._blocks[base] = blocks[trees.destination] = block
        changed.made.append(block)
        return block

    def _inherited_base(self, trees: PathTrees, bits: int) -> int | None:
        for found in self._inherited.get(trees.destination, ()):
            if found.bits == bits and trees.agrees_with(found.hops):
                self._no_longer_inherited(found)
                return found.base
        return None

    def _no_longer_inherited(self, found: InheritedBlock) -> None:
        blocks = self._inherited[found.destination]
        blocks.remove(found)
        if not blocks:
            del self._inherited[found.destination]

    def _end(self, block: LabelBlock) -> None:
        self.space.release(block.base, block.bits)
        del self._blocks[block.base], self._made_at[block.base]


def labels_in(block: LabelBlock, switch: str) -> Iterator[tuple[int, str | None]]:
    """(label, neighbour it goes to) of each label of a block that a switch sees; None where it is taken off."""
    arriving = block.arrivals.get(switch, 0)
    if not arriving:
        return
    if switch == block.destination:
        yield from ((block.base + tree, None) for tree in bits_of(arriving))
    for neighbour, mask in block.trees.hops[switch].items():
        yield from ((block.base + tree, neighbour) for tree in bits_of(arriving & mask))
