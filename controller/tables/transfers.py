"""What whoever knows of transfers between hosts tells whoever models flows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from speedwell.controller.policy.network.five_tuple import FiveTuple
from speedwell.controller.policy.placements.request import KnownFlow


class Transfers(Protocol):
    """Transfers that no read asked for. Safe to be told of an end twice."""

    def began(self, five_tuple: FiveTuple, size_bytes: int, placement_id: str) -> bool:
        """A placement's bytes go over this connection. False if it carries a read: then it is not a transfer."""

    def ended(self, five_tuple: FiveTuple) -> None:
        """Nothing more goes, or nothing is heard of it any more."""

    def known(self, counted_since: float) -> Sequence[KnownFlow]:
        """All flows that run, reads too, with what those have left that were counted since then, on the monotonic
        clock."""
