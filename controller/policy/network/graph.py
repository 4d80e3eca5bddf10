"""The fabric as a directed graph with capacities, and its equal-cost shortest paths.

Mayflower chooses among the shortest paths only (Rizvi et al., "Mayflower", section 4.2), so paths are
counted in hops. Hosts are end points: no path runs through one. Everything between switches is cached and
shared by all hosts of a rack, so the cache grows with pairs of edge switches, not with pairs of hosts.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from speedwell.controller.policy.errors import InvalidNetwork, UnknownLink, UnknownNode

Link = tuple[str, str]
MAX_GONE_LINKS = 1024
"""How many links that are gone keep their index."""


@dataclass(frozen=True, slots=True)
class Path:
    """The nodes of a path, first to last, both ends included."""

    nodes: tuple[str, ...]

    @property
    def links(self) -> tuple[Link, ...]:
        """The directed links in the order in which a packet crosses them."""
        return tuple(pairwise(self.nodes))


class _SwitchPaths(NamedTuple):
    """All shortest paths between two switches: their nodes and, in the same order, their link indices."""

    nodes: tuple[tuple[str, ...], ...]
    links: tuple[tuple[int, ...], ...]
    rows: NDArray[np.int64]
    """The link indices once more, as an array with a column before and one behind for links to hosts."""


class _Route(NamedTuple):
    """The shortest paths of a pair through one pair of attachment points."""

    head: tuple[str, ...]
    head_links: tuple[int, ...]
    between: _SwitchPaths
    tail: tuple[str, ...]
    tail_links: tuple[int, ...]


class Network:
    """A mutable graph of switches and hosts joined by directed links.

    Every link has an index, so that others can hold per-link state in lists. It keeps the index when it goes and
    comes back, unless ``MAX_GONE_LINKS`` other links went since: then a new link may get it, for hosts that come and
    go for ever must not need ever more. ``version`` changes whenever anything else does.
    """

    def __init__(self) -> None:
        self.version = 0
        self._switch_version = 0
        self._switches: set[str] = set()
        self._hosts: set[str] = set()
        self._next: dict[str, dict[str, int]] = {}
        self._previous: dict[str, dict[str, int]] = {}
        self._index: dict[Link, int] = {}
        self._gone: dict[Link, None] = {}
        """Links that have an index and are not there, in the order in which they went."""
        self._capacity_bps: list[float] = []
        self._predecessors: dict[str, dict[str, list[str]]] = {}
        self._switch_paths: dict[Link, _SwitchPaths | None] = {}

    # --- nodes and links ---

    def add_switch(self, node: str) -> None:
        """Add a switch; adding it again changes nothing. Raises InvalidNetwork if it is a host already."""
        self._add_node(node, self._switches, self._hosts)

    def add_host(self, node: str) -> None:
        """Add a host; adding it again changes nothing. Raises InvalidNetwork if it is a switch already."""
        self._add_node(node, self._hosts, self._switches)

    def _add_node(self, node: str, kind: set[str], other_kind: set[str]) -> None:
        if node in other_kind:
            raise InvalidNetwork(f"node {node!r} cannot be both a switch and a host")
        if node not in kind:
            kind.add(node)
            self._next[node] = {}
            self._previous[node] = {}
            self.version += 1

    def remove_node(self, node: str) -> None:
        """Remove a node with all its links. Raises UnknownNode."""
        self._require(node)
        for neighbour in list(self._next[node]):
            self.remove_link(node, neighbour)
        for neighbour in list(self._previous[node]):
            self.remove_link(neighbour, node)
        self._switches.discard(node)
        self._hosts.discard(node)
        del self._next[node], self._previous[node]
        self.version += 1

    def add_link(self, source: str, destination: str, capacity_bps: float) -> None:
        """Add one direction of a link, or change its capacity if it is there.

        Raises UnknownNode for an end that was not added, InvalidNetwork for a capacity that is not a
        positive number of bits per second, a link from a node to itself, or one between two hosts.
        """
        self._require(source)
        self._require(destination)
        _require_capacity(capacity_bps)
        if source == destination or (source in self._hosts and destination in self._hosts):
            raise InvalidNetwork(f"a link joins a switch with another node, not {source!r} with {destination!r}")
        if destination in self._next[source]:
            self.set_capacity((source, destination), capacity_bps)
            return
        index = self._new_index((source, destination))
        self._capacity_bps[index] = capacity_bps
        self._next[source][destination] = index
        self._previous[destination][source] = index
        self._links_changed(source, destination)

    def _new_index(self, link: Link) -> int:
        if link in self._index:
            del self._gone[link]
        elif len(self._gone) > MAX_GONE_LINKS:
            oldest = next(iter(self._gone))
            del self._gone[oldest]
            self._index[link] = self._index.pop(oldest)
        else:
            self._index[link] = len(self._capacity_bps)
            self._capacity_bps.append(0.0)
        return self._index[link]

    def remove_link(self, source: str, destination: str) -> None:
        """Remove one direction of a link. Raises UnknownLink."""
        self.link_index((source, destination))
        self._gone[source, destination] = None
        del self._next[source][destination], self._previous[destination][source]
        self._links_changed(source, destination)

    def set_capacity(self, link: Link, capacity_bps: float) -> None:
        """Change a link's capacity. Raises UnknownLink, or InvalidNetwork for one that is not positive."""
        index = self.link_index(link)
        _require_capacity(capacity_bps)
        if self._capacity_bps[index] != capacity_bps:
            self._capacity_bps[index] = capacity_bps
            self.version += 1

    def _links_changed(self, source: str, destination: str) -> None:
        self.version += 1
        if source in self._switches and destination in self._switches:
            self._switch_version += 1
            self._predecessors.clear()
            self._switch_paths.clear()

    # --- copies ---

    def copy(self) -> Network:
        """Another network with the same nodes, links, indices and version."""
        other = Network()
        other.follow(self)
        return other

    def follow(self, other: Network) -> None:
        """Become what `other` is now, whose copy this is. Takes some microseconds a node, and nothing if `other` has
        not changed; the paths between switches that were looked up are kept if they are still right."""
        if self.version == other.version:
            return
        if self._switch_version != other._switch_version:
            self._predecessors.clear()
            self._switch_paths.clear()
        self.version, self._switch_version = other.version, other._switch_version
        self._switches, self._hosts = set(other._switches), set(other._hosts)
        self._next = {node: dict(ends) for node, ends in other._next.items()}
        self._previous = {node: dict(ends) for node, ends in other._previous.items()}
        self._index, self._capacity_bps = dict(other._index), list(other._capacity_bps)
        self._gone = dict(other._gone)

    # --- look-ups ---

    @property
    def switches(self) -> frozenset[str]:
        return frozenset(self._switches)

    @property
    def hosts(self) -> frozenset[str]:
        return frozenset(self._hosts)

    @property
    def links(self) -> Iterator[Link]:
        """Every live directed link."""
        return ((source, destination) for source, ends in self._next.items() for destination in ends)

    def __contains__(self, node: object) -> bool:
        return node in self._next

    def is_host(self, node: str) -> bool:
        return node in self._hosts

    def neighbours(self, node: str) -> tuple[str, ...]:
        """The nodes a link leads to from `node`, sorted. Raises UnknownNode."""
        self._require(node)
        return tuple(sorted(self._next[node]))

    def has_link(self, link: Link) -> bool:
        return link[1] in self._next.get(link[0], ())

    def has_path(self, path: Path) -> bool:
        """Whether all links of a path are live."""
        following = self._next
        return all(after in following.get(node, ()) for node, after in pairwise(path.nodes))

    def capacity_bps(self, link: Link) -> float:
        """A live link's capacity in bits per second. Raises UnknownLink."""
        return self._capacity_bps[self.link_index(link)]

    def link_index(self, link: Link) -> int:
        """The index of a live link. Raises UnknownLink."""
        index = self._next.get(link[0], {}).get(link[1])
        if index is None:
            raise UnknownLink(*link)
        return index

    def capacities_bps(self) -> tuple[float, ...]:
        """Capacities by link index, those of links that are gone included."""
        return tuple(self._capacity_bps)

    # --- shortest paths ---

    def shortest_paths(self, source: str, destination: str) -> tuple[Path, ...]:
        """All paths with the fewest links, in an order that depends on the graph alone; () if there are none.

        A node reaches itself by the path of one node and no link. Raises UnknownNode.
        """
        if source == destination:
            self._require(source)
            return (Path((source,)),)
        return tuple(
            Path(route.head + nodes + route.tail)
            for route in self._routes(source, destination)
            for nodes in route.between.nodes
        )

    def shortest_path_links(self, source: str, destination: str) -> list[tuple[int, ...]]:
        """The link indices of `shortest_paths(source, destination)`, in the same order. Raises UnknownNode."""
        if source == destination:
            self._require(source)
            return [()]
        return [
            route.head_links + links + route.tail_links
            for route in self._routes(source, destination)
            for links in route.between.links
        ]

    def shortest_path(self, source: str, destination: str, number: int) -> Path:
        """`shortest_paths(source, destination)[number]`. Raises UnknownNode, or IndexError."""
        if source == destination:
            return self.shortest_paths(source, destination)[number]
        for route in self._routes(source, destination):
            if number < len(route.between.nodes):
                return Path(route.head + route.between.nodes[number] + route.tail)
            number -= len(route.between.nodes)
        raise IndexError(number)

    def shortest_path_rows(self, source: str, destination: str) -> NDArray[np.int64]:
        """`shortest_path_links(source, destination)` as an array, a row for each path. Raises UnknownNode."""
        if source == destination:
            self._require(source)
            return np.zeros((1, 0), np.int64)
        pieces = []
        for route in self._routes(source, destination):
            rows = route.between.rows
            begin, end = 1 - len(route.head_links), rows.shape[1] - 1 + len(route.tail_links)
            piece = rows[:, begin:end].copy()
            if route.head_links:
                piece[:, 0] = route.head_links[0]
            if route.tail_links:
                piece[:, -1] = route.tail_links[0]
            pieces.append(piece)
        if len(pieces) == 1:
            return pieces[0]
        return np.concatenate(pieces) if pieces else np.zeros((0, 0), np.int64)

    def distance(self, source: str, destination: str) -> int | None:
        """Links on a shortest path, None if there is no path. Raises UnknownNode."""
        if source == destination:
            self._require(source)
            return 0
        routes = self._routes(source, destination)
        return _length(routes[0]) if routes else None

    def _routes(self, source: str, destination: str) -> list[_Route]:
        self._require(source)
        self._require(destination)
        if len(self._next[source]) == 1 and source in self._hosts and len(
                self._previous[destination]) == 1 and destination in self._hosts:
            [(first, head_link)] = self._next[source].items()
            [(last, tail_link)] = self._previous[destination].items()
            between = self._paths_between(first, last)
            return [] if between is None else [
                _Route((source,), (head_link,), between, (destination,), (tail_link,))]
        routes = []
        for head, first, head_links in self._attachments(source, self._next):
            for tail, last, tail_links in self._attachments(destination, self._previous):
                between = self._paths_between(first, last)
                if between is not None:
                    routes.append(_Route(head, head_links, between, tail, tail_links))
        if len(routes) > 1:
            shortest = min(map(_length, routes))
            routes = [route for route in routes if _length(route) == shortest]
        return routes

    def _attachments(
        self, node: str, adjacency: dict[str, dict[str, int]]
    ) -> list[tuple[tuple[str, ...], str, tuple[int, ...]]]:
        """Where a path enters or leaves the switches: (the host before it, the switch, the link index)."""
        if node in self._switches:
            return [((), node, ())]
        return [((node,), switch, (index,)) for switch, index in sorted(adjacency[node].items())]

    def _paths_between(self, first: str, last: str) -> _SwitchPaths | None:
        """All shortest paths between two switches, through switches alone; None if there are none."""
        if (first, last) not in self._switch_paths:
            nodes = sorted(_walk_back(self._search_from(first), first, last))
            links = tuple(tuple(self._next[a][b] for a, b in pairwise(path)) for path in nodes)
            self._switch_paths[first, last] = _SwitchPaths(
                tuple(nodes), links, np.pad(np.array(links, np.int64).reshape(len(links), -1), ((0, 0), (1, 1)))
            ) if nodes else None
        return self._switch_paths[first, last]

    def _search_from(self, first: str) -> dict[str, list[str]]:
        """Breadth-first search over switches: for each one reached, its predecessors on shortest paths."""
        if first not in self._predecessors:
            depth = {first: 0}
            predecessors: dict[str, list[str]] = {first: []}
            waiting = deque([first])
            while waiting:
                node = waiting.popleft()
                for neighbour in self._next[node]:
                    if neighbour in self._hosts:
                        continue
                    if neighbour not in depth:
                        depth[neighbour] = depth[node] + 1
                        predecessors[neighbour] = []
                        waiting.append(neighbour)
                    if depth[neighbour] == depth[node] + 1:
                        predecessors[neighbour].append(node)
            self._predecessors[first] = predecessors
        return self._predecessors[first]

    def _require(self, node: str) -> None:
        if node not in self._next:
            raise UnknownNode(node)


def _length(route: _Route) -> int:
    return len(route.head_links) + len(route.between.links[0]) + len(route.tail_links)


def _walk_back(predecessors: dict[str, list[str]], first: str, last: str) -> Iterator[tuple[str, ...]]:
    if last == first:
        yield (first,)
        return
    for previous in predecessors.get(last, ()):
        for nodes in _walk_back(predecessors, first, previous):
            yield (*nodes, last)


def _require_capacity(capacity_bps: float) -> None:
    if not (math.isfinite(capacity_bps) and capacity_bps > 0):
        raise InvalidNetwork(f"a link's capacity is a positive number of bits per second, not {capacity_bps!r}")
