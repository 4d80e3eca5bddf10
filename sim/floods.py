"""Transfers beside datagrams that never slow down: they take their part of a link first, and switches count them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from speedwell.controller.policy.network.graph import Link
from speedwell.sim.together import TogetherSimulation, Transfer


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
