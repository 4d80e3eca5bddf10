"""Which member owns which blocks of a shared namespace (`speedwell.fs.slots`), and who gets which next."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from speedwell.fs.slots import BLOCKS


class Owner(NamedTuple):
    """A member, which is another one after each start, and where it answers."""

    member: str
    address: str


NOBODY = Owner("", "")


@dataclass(frozen=True)
class BlockMap:
    """The owner of each block. `alive` are addresses by member."""

    owners: tuple[Owner, ...] = (NOBODY,) * BLOCKS

    @classmethod
    def decode(cls, value: bytes) -> "BlockMap":
        runs = json.loads(value or b"[]") or [[BLOCKS, *NOBODY]]
        return cls(tuple(Owner(member, address) for count, member, address in runs for _ in range(count)))

    def encode(self) -> bytes:
        return json.dumps([[len(blocks), *owner] for owner, blocks in self.runs()]).encode()

    def runs(self) -> list[tuple[Owner, list[int]]]:
        """Who owns which neighbouring blocks."""
        return [(owner, list(blocks)) for owner, blocks in groupby(range(BLOCKS), key=self.owners.__getitem__)]

    def blocks_of(self, member: str) -> set[int]:
        return {block for block, owner in enumerate(self.owners) if owner.member == member}

    def given(self, blocks: Iterable[int], owner: Owner) -> "BlockMap":
        owners = list(self.owners)
        for block in blocks:
            owners[block] = owner
        return BlockMap(tuple(owners))

    def gone(self, alive: Mapping[str, str]) -> set[str]:
        """Owners that live no more; an empty one owns what nobody does."""
        return {owner.member for owner in self.owners} - alive.keys()

    def inherited(self, alive: Mapping[str, str], preferred: str) -> "BlockMap":
        """The members share the blocks of those that are gone; `preferred` comes first among equals."""
        loads, after = self._loads(alive), self
        for owner, blocks in self.runs():
            if owner.member not in alive:
                heir = min(loads, key=lambda each: (loads[each], each != preferred, each))
                loads[heir] += len(blocks)
                after = after.given(blocks, Owner(heir, alive[heir]))
        return after

    def gift(self, giver: str, alive: Mapping[str, str]) -> tuple[set[int], str] | None:
        """The upper half of the longest run of `giver`, if it has most, and the member without any that gets it."""
        loads = self._loads(alive)
        idle = min((member for member in alive if not loads[member]), default="")
        if not idle or loads[giver] < 2 or giver != max(alive, key=lambda each: (loads[each], each)):
            return None
        run = max((blocks for owner, blocks in self.runs() if owner.member == giver), key=len)
        return set(run[len(run) // 2:]), idle

    def heir(self, leaver: str, alive: Mapping[str, str]) -> str:
        """The member with fewest blocks beside the one that leaves; empty if it is alone."""
        loads = self._loads(alive)
        return min((member for member in alive if member != leaver), key=lambda each: loads[each], default="")

    def _loads(self, alive: Mapping[str, str]) -> Counter[str]:
        owned = Counter(owner.member for owner in self.owners)
        return Counter({member: owned[member] for member in alive})
