"""What whoever knows of transfers between hosts tells whoever models flows."""

from __future__ import annotations

from typing import Protocol

from speedwell.controller.policy.network.five_tuple import FiveTuple


class Transfers(Protocol):
    """Transfers that no read asked for. Safe to be told of an end twice."""

    def began(self, five_tuple: FiveTuple, size_bytes: int, placement_id: str) -> bool:
        """A placement's bytes go over this connection. False if it carries a read: then it is not a transfer."""

    def ended(self, five_tuple: FiveTuple) -> None:
        """Nothing more goes, or nothing is heard of it any more."""
