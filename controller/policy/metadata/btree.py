"""MetaFlow's logical B-tree over the topology, and the tables that it makes.

Sun, Wen, Ta, Xie: "MetaFlow: a scalable metadata lookup service for distributed file systems in data centers", IEEE
Transactions on Big Data 2016, sections V and VI. Servers are leaves, switches inner nodes, the core the root; several
switches of a fat tree are one node. All keys are in leaves, as CIDR blocks; a leaf without blocks is idle.

Where the paper says nothing: a full server without an idle sibling is split to the nearest idle one (same pod, then
any), and so is a failed one replaced; a server that leaves without any idle one left is merged into its neighbour.
The paper's worked split holds 192.168.100.0/25, .128/25 and .192/26, of which the last is part of the second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from heapq import heapify, heappop, heappush

from speedwell.controller.policy.errors import InvalidCounts, NoIdleServer, UnknownServer
from speedwell.controller.policy.metadata.blocks import IPV4, Block, Node, Tables, halves, joined, nodes_above, size
from speedwell.controller.policy.network.graph import Network
from speedwell.controller.policy.network.prefixes import ADDRESS_BITS, Prefix

LEFT_AT_LEAST, LEFT_AT_MOST = 0.4, 0.6
"""Of a full server's keys, so many stay where they are (section VI-B)."""

Count = Callable[[Prefix], int]
"""How many keys a full server has in a block."""


@dataclass(frozen=True)
class Places:
    """The node above each server and each node but the root."""

    root: Node = ()
    parents: Mapping[str | Node, Node] = field(default_factory=dict)

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """The inner nodes, the root among them."""
        return (self.root, *(each for each in self.parents if not isinstance(each, str)))

    @cached_property
    def above(self) -> Mapping[str, tuple[Node, ...]]:
        """The nodes above each server, its edge first."""
        return {each: self._way(each) for each in self.parents if isinstance(each, str)}

    @cached_property
    def below(self) -> Mapping[Node, Sequence[str]]:
        """The servers below each node."""
        servers: dict[Node, list[str]] = {}
        for server in sorted(self.above, key=lambda each: (len(each), each)):
            for node in self.above[server]:
                servers.setdefault(node, []).append(server)
        return servers

    def _way(self, server: str) -> tuple[Node, ...]:
        way = [self.parents[server]]
        while way[-1] in self.parents:
            way.append(self.parents[way[-1]])
        return tuple(way)


@dataclass(frozen=True)
class Tree:
    """Servers below the switches above them, and the blocks of those that are busy."""

    places: Places
    owned: Mapping[str, tuple[Prefix, ...]] = field(default_factory=dict)
    space: Prefix = IPV4

    @property
    def blocks(self) -> tuple[Block, ...]:
        """Of all busy servers, in order; they are the whole space."""
        return tuple(sorted(Block(*prefix, server) for server, own in self.owned.items() for prefix in own))

    def is_busy(self, node: str | Node) -> bool:
        """Whether a server has keys, or one below a node has."""
        below = (node,) if isinstance(node, str) else self.places.below.get(node, ())
        return any(server in self.owned for server in below)

    # --- joins and leaves (section VI-A) ---

    def with_server(self, server: str, edge: Node) -> Tree:
        """With an idle server; the very first has all keys at once. Raises UnknownServer for one that is there or an
        edge that is not."""
        if server in self.places.parents or edge not in self.places.nodes:
            raise UnknownServer(f"metadata server {server} has joined already" if server in self.places.parents
                                else f"metadata server {server}: there is no switch {', '.join(edge)}")
        return replace(self._with({**self.places.parents, server: edge}), owned=self.owned or {server: (self.space,)})

    def without_server(self, server: str) -> Tree:
        """Without a server that failed or leaves: an idle one near it takes its place, or its busy neighbour its
        blocks. Raises UnknownServer, and NoIdleServer for the last one."""
        if server not in self.places.above:
            raise UnknownServer(f"there is no metadata server {server}")
        tree = self
        if server in self.owned:
            idle = self._nearest_idle(server)
            tree = self.merged(server) if idle is None else replace(self, owned={
                idle if each == server else each: own for each, own in self.owned.items()})
        return tree._with({each: above for each, above in self.places.parents.items() if each != server})

    def _with(self, parents: Mapping[str | Node, Node]) -> Tree:
        return replace(self, places=replace(self.places, parents=parents))

    def merged(self, server: str) -> Tree:
        """A server's blocks go to the busy server nearest to it, of these to the one with the fewest addresses; it is
        idle then. Raises NoIdleServer if no other is busy."""
        near = [other for other in self.owned if other != server]
        if not near:
            raise NoIdleServer(f"{server} is the last busy metadata server: nobody could take its keys")
        other = min(near, key=lambda each: (self._distance(server, each), sum(map(size, self.owned[each])), each))
        owned = {each: own for each, own in self.owned.items() if each != server}
        owned[other] = tuple(joined((*self.owned[other], *self.owned[server])))
        return replace(self, owned=owned)

    # --- splits (section VI-B) ---

    def split(self, server: str, count: Count) -> tuple[Tree, str]:
        """A full server keeps 40 to 60 % of its keys; the nearest idle server gets the others. Returns the tree and
        that server. Raises UnknownServer for one that is not busy, InvalidCounts, NoIdleServer."""
        if server not in self.owned:
            raise UnknownServer(f"there is no busy metadata server {server}")
        idle = self._nearest_idle(server)
        if idle is None:
            raise NoIdleServer(f"metadata server {server} is full and none is idle: add servers")
        left, right = divided(self.owned[server], count)
        return replace(self, owned={**self.owned, server: left, idle: right}), idle

    def _nearest_idle(self, server: str) -> str | None:
        return next((each for node in self.places.above[server] for each in self.places.below[node]
                     if each not in self.owned and each != server), None)

    def _distance(self, server: str, other: str) -> int:
        """How far up a packet has to go from one to the other."""
        beside = self.places.above[other]
        return next(height for height, node in enumerate(self.places.above[server]) if node in beside)


def divided(blocks: Iterable[Prefix], count: Count) -> tuple[tuple[Prefix, ...], tuple[Prefix, ...]]:
    """What stays and what goes, by the paper's traversal: blocks stay until they have more than 40 % of the keys; one
    with which that would be more than 60 % is halved first. A single address is not halved, so it may be more.

    Raises InvalidCounts for counts below 0, no keys at all, or parts that are not their whole.
    """
    waiting = sorted(blocks)[::-1]
    counts = {block: count(block) for block in waiting}
    total, kept = sum(counts.values()), 0
    left: list[Prefix] = []
    if total <= 0:
        raise InvalidCounts("a metadata server without keys cannot be split")
    while waiting and kept <= LEFT_AT_LEAST * total:
        block = waiting.pop()
        own = counts[block]
        if own < 0:
            raise InvalidCounts(f"a block has {own} keys")
        if kept + own > LEFT_AT_MOST * total and block[1] < ADDRESS_BITS:
            low, high = halves(block)
            counts[low], counts[high] = count(low), count(high)
            if counts[low] + counts[high] != own:
                raise InvalidCounts(f"a block of {own} keys has {counts[low]} and {counts[high]} in its halves")
            waiting += [high, low]
        elif left and kept + own > LEFT_AT_MOST * total:
            waiting.append(block)
            break
        else:
            left.append(block)
            kept += own
    if not waiting:
        raise InvalidCounts("all keys have one address: they cannot be split")
    return tuple(joined(left)), tuple(joined(waiting))


def tree_of(network: Network, servers: Iterable[str], space: Prefix = IPV4) -> Tree:
    """The B-tree of a network's switches above some of its hosts, the first of which has all keys, the others idle.

    Raises UnknownNode for a server that is not attached.
    """
    above = nodes_above(network, servers)
    root = tuple(sorted({switch for nodes in above.values() for switch in nodes[-1]}))
    parents: dict[str | Node, Node] = {}
    for server, nodes in above.items():
        way: list[str | Node] = [server, *nodes[:-1], root]
        parents |= dict(zip(way, map(tuple, way[1:]), strict=False))
    return Tree(Places(root, parents), {next(iter(above)): (space,)} if above else {}, space)


def paper_tables(tree: Tree) -> Tables:
    """The entries of every switch: each node sends blocks to the children that have them,
    and all else up, as from clients in the same racks. Switches of a node share a table (section V-D)."""
    below: dict[Node, dict[tuple[str, ...], list[Prefix]]] = {node: {} for node in tree.places.nodes}
    for server, own in tree.owned.items():
        child: tuple[str, ...] = (server,)
        for node in tree.places.above[server]:
            below[node].setdefault(child, []).extend(own)
            child = node
    tables: Tables = {}
    for node, children in below.items():
        table: dict[Prefix, tuple[str, ...]] = {}
        if node != tree.places.root:
            table[tree.space] = tree.places.parents[node]
        table |= {prefix: child for child, own in children.items() for prefix in joined(own)}
        tables |= dict.fromkeys(node, table)
    return tables


def grown(tree: Tree, servers: int) -> Tree:
    """The tree when evenly spread keys have made so many servers busy: the fullest splits next, and of equals the
    first. Raises NoIdleServer."""
    queue = [(-sum(map(size, own)), len(server), server) for server, own in tree.owned.items()]
    heapify(queue)
    while len(tree.owned) < servers:
        fullest = heappop(queue)[-1]
        tree, idle = tree.split(fullest, size)
        for server in (fullest, idle):
            heappush(queue, (-sum(map(size, tree.owned[server])), len(server), server))
    return tree
