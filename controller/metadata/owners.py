"""The nameservers that each own blocks of one namespace, as they say: etcd holds which, and the switches follow.

A block of slots is the /24 of `SLOTS` with the same third byte. What two claim is the one's with the newer epoch of
etcd's map, so what a dead one has said loses to its heir's word.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from speedwell.controller.policy.metadata.blocks import SLOTS
from speedwell.controller.policy.network.prefixes import Prefix

BLOCKS = 256
Check = Callable[[Mapping[str, Sequence[Prefix]]], None]


@dataclass(frozen=True, slots=True)
class SlotOwner:
    """A host's nameserver: the blocks that it owned at an epoch, and those that it had until lately."""

    host: str
    epoch: int
    owned: frozenset[int]
    left: frozenset[int] = frozenset()


class SlotOwners:
    """`check` raises if the tables for these blocks would not fit."""

    def __init__(self, check: Check) -> None:
        self._check = check
        self.said: dict[str, SlotOwner] = {}
        self.version = 0

    def announced(self, said: SlotOwner) -> None:
        """Raises what `check` does; nothing is changed then."""
        known = self.said.get(said.host)
        if known == said or (known is not None and known.epoch > said.epoch):
            return
        before, self.said = self.said, self.said | {said.host: said}
        try:
            self._check(self.blocks)
        except BaseException:
            self.said = before
            raise
        self.version += 1

    @property
    def blocks(self) -> dict[str, list[Prefix]]:
        """Where requests are sent, by host."""
        found: dict[str, list[Prefix]] = {}
        for block, host in self.owners.items():
            found.setdefault(host, []).append(prefix_of(block))
        return found

    @property
    def owners(self) -> dict[int, str]:
        """The host of each block that one claims."""
        newest: dict[int, SlotOwner] = {}
        for said in sorted(self.said.values(), key=lambda each: (each.epoch, each.host)):
            newest |= dict.fromkeys(said.owned, said)
        return {block: newest[block].host for block in sorted(newest)}

    @property
    def senders(self) -> dict[str, list[Prefix]]:
        """From which blocks each may answer."""
        return {host: [prefix_of(block) for block in sorted(said.owned | said.left)]
                for host, said in self.said.items()}


def prefix_of(block: int) -> Prefix:
    return SLOTS[0] + (block << 8), 24
