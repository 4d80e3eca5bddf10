"""The entries that lead requests for keys to their servers: the fewest prefixes, where they are counted as where they
are installed.

A client's edge switch knows keys by pod, and the long ranges of its own rack apart; a pod's aggregation switches know
them by rack; a table of their own at the last edge switch knows them by server. None of the latter two is asked for
others' keys, so those may lead anywhere there. Nothing is in the core.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import groupby

from speedwell.controller.policy.metadata.blocks import SPACE, Node, Table, Tables, compressed, size
from speedwell.controller.policy.metadata.layout import Layout, Nodes
from speedwell.controller.policy.network.prefixes import Prefix

DELIVERY = " delivers"
"""After the name of a switch: its table by server."""
DIRECT = 0.125
"""Of the mean of a server: shorter ranges of the client's own rack go by an aggregation switch, to save entries."""

Span = tuple[int, int, str]
"""(first address, end, server)"""
Also = Collection[tuple[Prefix, str, str | None]]
"""(block, who is asked for it too while it changes hands, its server)"""


def towards(spans: Iterable[Span], stops: Mapping[str, Node], also: Also = (), space: Prefix = SPACE) -> Table:
    """What takes requests to the next stops of their servers, or of who is asked too where their servers have none.
    Requests for others may go anywhere."""
    known = [(first, end, stops[server]) for first, end, server in spans if server in stops]
    known += [(block[0], block[0] + size(block), stops[other]) for block, other, server in also
              if other in stops and server not in stops]
    return compressed(space, sorted(known))


def from_clients(spans: Sequence[Span], stops: Mapping[str, Node], direct: Mapping[str, Node],
                 space: Prefix = SPACE) -> Table:
    """What takes requests of a rack's clients to the pods of their servers. `direct` are the next stops of the rack's
    own servers."""
    least = DIRECT * size(space) / max(len({server for *_, server in spans}), 1)
    known: list[tuple[int, int, Node]] = []
    for is_own, group in groupby(spans, key=lambda span: span[2] in direct):
        run = list(group)
        by = direct if is_own and run[-1][1] - run[0][0] >= least else stops
        known += [(first, end, by[server]) for first, end, server in run if server in by]
    return compressed(space, known)


def tables(layout: Layout, edges: Iterable[Nodes] = ()) -> Tables:
    """The entries of every switch that has any. `edges` are the nodes above hosts that may ask; the racks of servers
    are among them anyway. Switches of a node have the same. A pod with servers in one rack alone needs none."""
    found: Tables = {}
    racks: dict[Node, set[Node]] = {}
    for nodes in layout.above.values():
        racks.setdefault(nodes[1] if len(nodes) > 1 else nodes[0], set()).add(nodes[0])
    arrivals = {server: _delivery(nodes[0]) for server, nodes in layout.above.items()}
    stops = {server: nodes[1] if len(nodes) > 1 and len(racks[nodes[1]]) > 1 else arrivals[server]
             for server, nodes in layout.above.items()}
    for edge in {nodes[0] for nodes in (*edges, *layout.above.values())}:
        servers = [server for server, nodes in layout.above.items() if nodes[0] == edge]
        if servers:
            own: dict[str, Node] = {server: (server,) for server in servers}
            found |= dict.fromkeys(_delivery(edge), towards(layout.spans, own, space=layout.space))
        direct = dict.fromkeys(servers, _delivery(edge))
        found |= dict.fromkeys(edge, from_clients(layout.spans, stops, direct, layout.space))
    for pod, below in racks.items():
        if len(below) > 1:
            own = {server: arrivals[server] for server, nodes in layout.above.items() if nodes[0] in below}
            found |= dict.fromkeys(pod, towards(layout.spans, own, space=layout.space))
    return found


def switch_of(table: str) -> str:
    """The switch that has a table."""
    return table.removesuffix(DELIVERY)


def _delivery(edge: Node) -> Node:
    return tuple(switch + DELIVERY for switch in edge)
