"""Transfers beside datagrams that never slow down: they take their part of a link first, and switches count them.

A placement policy that follows single flows is told of reads and writes, as by the controller, which has entries for
them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from speedwell.controller.policy.network.graph import Link, Path
from speedwell.controller.policy.placements.request import KnownFlow
from speedwell.sim.mixed_load import Transfer
from speedwell.sim.together import TogetherSimulation


@dataclass(frozen=True)
class Flood(Transfer):
    """Datagrams from `writer` to `client` at a rate in bits/s, for so many seconds. Together they fit their links."""

    rate_bps: float = 0.0
    seconds: float = 0.0


class FloodedSimulation(TogetherSimulation):
    """A run with floods. Deterministic, as its base."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._capacities = self._capacities.astype(float)
        self._flood_bps = np.zeros(len(self._capacities))

    def _ask(self, transfer: Transfer) -> None:
        if not isinstance(transfer, Flood):
            return super()._ask(transfer)
        path = self._default_path(transfer.writer, transfer.client, f"flood {transfer.arrival}")
        self._flood(path.links, transfer.rate_bps)
        self._at(self.now + transfer.seconds, lambda: self._flood(path.links, -transfer.rate_bps))

    def _flood(self, links: Iterable[Link], rate_bps: float) -> None:
        for link in map(self._network.link_index, links):
            self._flood_bps[link] += rate_bps
            self._capacities[link] -= rate_bps

    def _step(self) -> None:
        before, flood_bps = self.now, self._flood_bps.copy()
        super()._step()
        self._carried += flood_bps * (self.now - before)

    def _write(self, name: str, transfer: Transfer) -> list[tuple[Path, float]]:
        self._tell_of_flows(counted=False)
        return super()._write(name, transfer)

    def _poll(self) -> None:
        self._tell_of_flows(counted=True)
        super()._poll()

    def _tell_of_flows(self, counted: bool) -> None:
        tell = getattr(self._placement, "flows_told", None)
        if tell is not None:
            tell([KnownFlow(running.coflow_id if str(flow_id).startswith("write") else flow_id, ends[0], ends[-1],
                            self._sizes[flow_id], float(self._left[running.row]) if counted else None)
                  for flow_id, running in self._running.items() for ends in [self._paths[flow_id].nodes]], self.now)
