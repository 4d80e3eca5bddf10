"""What decides who may send when: what it is told, what it answers, and the paths that it counts on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple, Protocol

from speedwell.controller.policy.errors import InvalidNetwork
from speedwell.controller.policy.network.graph import Link, Network, Path

Pair = tuple[str, str]
"""A source and a destination host: what the paper calls a V2V flow, with one VM to a host."""
Directives = dict[str, dict[str, float]]
"""By source: the destinations it may send to from now on, with the rate in bits/s. Without any, it holds."""

SLICE_SECONDS = 0.01
"""The paper's slices are 2 or 10 ms."""
ROUNDING = 1 + 1e-9


class TimeslicePolicy(Protocol):
    """Each answer holds the sources whose directive is new or begins anew; all others go on as they were told.
    `now` is in seconds and never goes back."""

    paths: PinnedPaths
    ranks: Mapping[Pair, int]
    """By pair, the place of its coflow in the order of service: lower ones may be served first, and those without one
    last."""

    def backlogged(self, source: str, destinations: Collection[str], now: float) -> Directives:
        """These are the destinations for which a source has packets waiting, and no others. Raises UnknownNode, or
        InvalidNetwork where no path leads; then nothing has changed."""

    def given_up(self, source: str, destination: str, now: float) -> Directives:
        """A source has nothing more for a destination."""

    def left(self, source: str, now: float) -> Directives:
        """A source is gone, or begins anew: nothing that it said counts any more."""
        changed = self.backlogged(source, (), now)
        self.paths.release_all_of(source)
        changed.pop(source, None)
        return changed

    def slice_ended(self, now: float) -> Directives:
        """Time has come to `next_end`."""

    @property
    def next_end(self) -> float:
        """When the next slice ends, in seconds; infinite if none runs."""


class _Pinned(NamedTuple):
    """`version` is the network's, of which the rest holds."""

    path: Path
    links: tuple[Link, ...]
    carries_bps: float
    version: int


class PinnedPaths:
    """One path for each pair, as Algorithm 1 counts on. The paper has a spanning tree; here, a pair is pinned when it
    is first asked for, to that of its shortest paths whose most shared link has the fewest pairs for its capacity."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._pinned: dict[Pair, _Pinned] = {}
        self._pairs_on: Counter[Link] = Counter()

    def of(self, pair: Pair) -> tuple[Link, ...]:
        """Its links. A path that is broken is replaced. Raises UnknownNode, or InvalidNetwork if there is none."""
        return self._of(pair).links

    def carries_bps(self, pair: Pair) -> float:
        """The capacity of its path's tightest link. Raises as `of`."""
        return self._of(pair).carries_bps

    def pin(self, pair: Pair, path: Path) -> None:
        """Somebody else has chosen its path. Raises UnknownLink."""
        carries_bps = min(map(self._network.capacity_bps, path.links))
        self.release([pair])
        self._pinned[pair] = _Pinned(path, path.links, carries_bps, self._network.version)
        self._pairs_on.update(path.links)

    def release(self, pairs: Iterable[Pair]) -> None:
        for pair in pairs:
            if pair in self._pinned:
                self._pairs_on.subtract(self._pinned.pop(pair).links)

    def release_all_of(self, source: str) -> None:
        self.release([pair for pair in self._pinned if pair[0] == source])

    def _of(self, pair: Pair) -> _Pinned:
        pinned = self._pinned.get(pair)
        if pinned is None or pinned.version != self._network.version:
            path = pinned.path if pinned and self._network.has_path(pinned.path) else self._choose(pair)
            self.pin(pair, path)
            pinned = self._pinned[pair]
        return pinned

    def _choose(self, pair: Pair) -> Path:
        self.release([pair])
        paths = self._network.shortest_paths(*pair)
        if not paths or not paths[0].links:
            raise InvalidNetwork(f"no path leads from {pair[0]!r} to {pair[1]!r}")
        return min(paths, key=self._sharing)

    def _sharing(self, path: Path) -> tuple[float, float]:
        shared = [self._pairs_on[link] / self._network.capacity_bps(link) for link in path.links]
        return max(shared), sum(shared)
