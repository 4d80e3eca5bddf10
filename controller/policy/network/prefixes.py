"""Routes to edge switches from the addresses of their hosts: prefixes where the address plan has any.

A function of the hosts alone, whatever the order in which they came. Addresses stand in a binary trie without nodes
of one child. A node whose hosts are all at one edge switch is one route, as long as what these hosts have in common.
A node with hosts of several has the routes of its halves, except that an edge switch with more than half of the hosts
gets one route for all instead of several: the others' are longer, and the longest wins. Where addresses follow no
plan, hosts have routes of their own. No route holds 0.0.0.0: ARP replies to who has no address go nowhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

ADDRESS_BITS = 32
NO_ADDRESS = 0

Prefix = tuple[int, int]
"""(address with all bits behind the prefix 0, length)"""
Routes = Mapping[Prefix, str]


@dataclass(slots=True)
class _Node:
    """A subtree: its prefix, and the routes that its hosts need."""

    prefix: Prefix
    children: tuple[_Node, _Node] | None = None
    hosts: dict[str, int] = field(default_factory=dict)
    """How many hosts each edge switch has here."""
    open: dict[Prefix, str] = field(default_factory=dict)
    """Routes that are inside no other of this subtree."""
    nested: dict[Prefix, str] = field(default_factory=dict)


class PrefixRoutes:
    """The routes to the hosts that were added."""

    def __init__(self) -> None:
        self._root: _Node | None = None
        self._edges: dict[int, str] = {}
        self._routes: dict[Prefix, str] = {}

    @property
    def routes(self) -> Routes:
        """Each prefix with its edge switch. Of several that hold an address the longest counts."""
        return self._routes

    def set_host(self, address: int, edge: str | None) -> tuple[dict[Prefix, str], set[Prefix]]:
        """Add a host, move it, or take it out (None). Returns (routes that are new or lead elsewhere, those gone)."""
        if self._edges.get(address) == edge:
            return {}, set()
        if address in self._edges:
            del self._edges[address]
            self._root = self._without(self._root, address)
        if edge is not None:
            self._edges[address] = edge
            self._root = self._with(self._root, address, edge)
        former = self._routes
        self._routes = {**self._root.open, **self._root.nested} if self._root else {}
        return ({prefix: to for prefix, to in self._routes.items() if former.get(prefix) != to},
                former.keys() - self._routes.keys())

    def _with(self, node: _Node | None, address: int, edge: str) -> _Node:
        leaf = _Node((address, ADDRESS_BITS), None, {edge: 1}, {(address, ADDRESS_BITS): edge})
        if node is None:
            return leaf
        if not _holds(node.prefix, address):
            length = ADDRESS_BITS - (node.prefix[0] ^ address).bit_length()
            joined = _Node(_cut(address, length), (node, leaf) if node.prefix[0] < address else (leaf, node))
            return _summed(joined)
        assert node.children is not None, "the address is there already"
        low, high = node.children
        if _bit_behind(node.prefix, address):
            high = self._with(high, address, edge)
        else:
            low = self._with(low, address, edge)
        node.children = low, high
        return _summed(node)

    def _without(self, node: _Node | None, address: int) -> _Node | None:
        assert node is not None, "the address is not there"
        if node.children is None:
            return None
        low, high = node.children
        changed = self._without(high if _bit_behind(node.prefix, address) else low, address)
        if changed is None:
            return low if _bit_behind(node.prefix, address) else high
        node.children = (low, changed) if _bit_behind(node.prefix, address) else (changed, high)
        return _summed(node)


def _summed(node: _Node) -> _Node:
    """The node with what follows from its children."""
    assert node.children is not None
    low, high = node.children
    node.hosts = dict(low.hosts)
    for edge, count in high.hosts.items():
        node.hosts[edge] = node.hosts.get(edge, 0) + count
    total = sum(node.hosts.values())
    node.open, node.nested = {**low.open, **high.open}, {**low.nested, **high.nested}
    if _holds(node.prefix, NO_ADDRESS):
        return node
    for edge, count in node.hosts.items():
        own = [prefix for prefix, to in node.open.items() if to == edge] if 2 * count > total else ()
        if len(own) > 1:
            for prefix in own:
                del node.open[prefix]
            node.nested |= node.open
            node.open = {node.prefix: edge}
            break
    return node


def _cut(address: int, length: int) -> Prefix:
    return address >> ADDRESS_BITS - length << ADDRESS_BITS - length, length


def _holds(prefix: Prefix, address: int) -> bool:
    return _cut(address, prefix[1]) == prefix


def _bit_behind(prefix: Prefix, address: int) -> int:
    return address >> ADDRESS_BITS - 1 - prefix[1] & 1
