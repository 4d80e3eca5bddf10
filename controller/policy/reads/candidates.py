"""The paths among which a read's is chosen."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from speedwell.controller.policy.compiled import Integers, Reals
from speedwell.controller.policy.errors import NoPath, UnknownNode
from speedwell.controller.policy.network.graph import Network, Path
from speedwell.controller.policy.reads.selection_request import Replica, Selection, SelectionRequest


class Candidates:
    """Every shortest path from every replica that is in the network, or just `paths`, those of a replica together.

    `rows` has the indices of each path's links, -1 after the last. Raises NoPath if there are no paths, UnknownNode
    if the client is not in the network, UnknownLink for one of `paths` that is gone.
    """

    def __init__(self, network: Network, request: SelectionRequest,
                 paths: Sequence[tuple[Replica, Path]] | None = None) -> None:
        if request.client not in network:
            raise UnknownNode(request.client)
        self._network, self._client, self._paths = network, request.client, paths
        self._replicas: list[tuple[Replica, int]]
        if paths is None:
            found = [(replica, network.shortest_path_rows(replica.host, request.client))
                     for replica in request.replicas if replica.host in network]
            self._replicas = [(replica, len(rows)) for replica, rows in found]
            self.rows = _stacked([rows for _, rows in found])
        else:
            counts: dict[Replica, int] = {}
            for replica, _ in paths:
                counts[replica] = counts.get(replica, 0) + 1
            self._replicas = list(counts.items())
            self.rows = _stacked([np.array([[network.link_index(link) for link in path.links]], np.int64)
                                  for _, path in paths])
        if not len(self.rows):
            raise NoPath(f"no replica of this read can reach {request.client}")

    def selection(self, number: int, share_bps: float, cost_seconds: float, costs: Reals) -> Selection:
        """The path with this number, where these are the costs of all."""
        listed, begin, considered = costs.tolist(), 0, []
        for replica, count in self._replicas:
            if count:
                considered.append((replica, min(listed[begin:begin + count])))
            if begin <= number < begin + count:
                chosen, place = replica, number - begin
            begin += count
        path = self._network.shortest_path(chosen.host, self._client, place) if self._paths is None else (
            self._paths[number][1])
        return Selection(chosen, path, share_bps, cost_seconds, tuple(considered))


def _stacked(pieces: Sequence[Integers]) -> Integers:
    width = max((rows.shape[1] for rows in pieces), default=0)
    if width and all(rows.shape[1] == width for rows in pieces):
        return np.concatenate(pieces)
    stacked = np.full((sum(map(len, pieces)), width), -1, np.int64)
    begin = 0
    for rows in pieces:
        stacked[begin:begin + len(rows), :rows.shape[1]] = rows
        begin += len(rows)
    return stacked
