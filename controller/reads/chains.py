"""The hops of a placement's chain as one flow of the policy's model: they share one rate, which is priced once.

An append passes a file's bytes on from replica to replica (GFS-style relaying), so that what one hop lacks no other
hop can use. A hop that crosses a link of its chain once more is a flow beside it: the link carries the bytes twice.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from speedwell.controller.policy.errors import UnknownLink
from speedwell.controller.policy.network.graph import Path
from speedwell.controller.policy.reads.selection import Selector
from speedwell.controller.reads.book import Read, ReadPart


@dataclass(eq=False)
class _Chain:
    """A flow of the model, and the paths of the hops that it stands for, by the names of their parts, in order."""

    flow_id: str
    placement_id: str
    hops: dict[str, Path]

    @property
    def path(self) -> Path:
        first, *others = self.hops.values()
        return Path(first.nodes + tuple(node for path in others for node in path.nodes[1:]))


class Chains:
    """Tells the selector of parts that begin, move and end. Those that are no hops are flows of their own."""

    def __init__(self, selector: Selector) -> None:
        self._selector = selector
        self._numbers = itertools.count()
        self._by_hop: dict[str, _Chain] = {}
        self._by_placement: dict[str, list[_Chain]] = {}

    def by_hop(self) -> Iterator[tuple[str, str]]:
        """By the name of each hop what the model calls the flow of its chain."""
        return ((hop, chain.flow_id) for hop, chain in self._by_hop.items())

    def added(self, read: Read, part: ReadPart, now: float) -> None:
        """A part of a read, or a hop of a placement's chain, begins. Raises UnknownLink."""
        size_bits = 8.0 * part.size_bytes
        if read.placement_id is None:
            self._selector.flow_added(part.flow_id, part.path, size_bits, now,
                                      read.id if read.following is not None else None)
            return
        for chain in self._by_placement.get(read.placement_id, ()):
            for hops in ({**chain.hops, part.flow_id: part.path}, {part.flow_id: part.path, **chain.hops}):
                if _follow_each_other(list(hops.values())):
                    whole = _Chain(chain.flow_id, chain.placement_id, hops).path
                    self._selector.flow_extended(chain.flow_id, whole, part.path, size_bits, now)
                    chain.hops, self._by_hop[part.flow_id] = hops, chain
                    return
        self._begin(read.placement_id, {part.flow_id: part.path}, size_bits, now)

    def moved(self, part: ReadPart, path: Path, now: float) -> None:
        """A part takes another path. Raises UnknownLink."""
        chain = self._by_hop.get(part.flow_id)
        if chain is None:
            self._selector.flow_moved(part.flow_id, path, now)
            return
        changed = _Chain(chain.flow_id, chain.placement_id, {**chain.hops, part.flow_id: path})
        if _follow_each_other(list(changed.hops.values())):
            self._selector.flow_moved(chain.flow_id, changed.path, now)
            chain.hops = changed.hops
        else:
            names, size_bits = list(chain.hops), 8.0 * part.size_bytes
            before = {name: chain.hops[name] for name in names[:names.index(part.flow_id)]}
            self.dropped(part, now)
            self._begin(chain.placement_id, {part.flow_id: path}, size_bits, now)
            if before and before.keys().isdisjoint(chain.hops):
                with contextlib.suppress(UnknownLink):
                    self._begin(chain.placement_id, before, size_bits, now)

    def dropped(self, part: ReadPart, now: float) -> None:
        """A part is over. Of a chain goes on what comes after a hop that is over, else what came before."""
        chain = self._by_hop.get(part.flow_id)
        if chain is None:
            self._selector.flow_dropped(part.flow_id, now)
            return
        names = list(chain.hops)
        place = names.index(part.flow_id)
        left = names[place + 1:] or names[:place]
        for name in names:
            if name not in left:
                del self._by_hop[name]
        chain.hops = {name: chain.hops[name] for name in left}
        if left:
            with contextlib.suppress(UnknownLink):      # a link went meanwhile, and its hop will be moved
                self._selector.flow_moved(chain.flow_id, chain.path, now)
            return
        self._selector.flow_dropped(chain.flow_id, now)
        others = self._by_placement[chain.placement_id]
        others.remove(chain)
        if not others:
            del self._by_placement[chain.placement_id]

    def measured_as(self, part: ReadPart) -> str | None:
        """Which flow of the model has carried what a part has; None for all hops of a chain but the last."""
        chain = self._by_hop.get(part.flow_id)
        if chain is None:
            return part.flow_id
        return chain.flow_id if next(reversed(chain.hops)) == part.flow_id else None

    def _begin(self, placement_id: str, hops: dict[str, Path], size_bits: float, now: float) -> None:
        chain = _Chain(f"chain {next(self._numbers)}", placement_id, hops)
        self._selector.flow_added(chain.flow_id, chain.path, size_bits, now)
        self._by_hop.update(dict.fromkeys(hops, chain))
        self._by_placement.setdefault(placement_id, []).append(chain)


def _follow_each_other(paths: Sequence[Path]) -> bool:
    """Whether each path begins where the one before ends, and no link is crossed twice."""
    links = [link for path in paths for link in path.links]
    return len(set(links)) == len(links) and all(
        before.nodes[-1] == after.nodes[0] for before, after in itertools.pairwise(paths))
