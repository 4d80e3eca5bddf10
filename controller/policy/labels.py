"""One MPLS label per path, so that transit switches need nothing but static entries label -> port.

A label stands for (destination edge switch, path choice). Its next hops form an in-tree: at most one next
hop per switch, and following them leads to the destination. Paths to one destination that agree wherever
they meet share a label; a path that disagrees goes to the next choice (first fit).

An entry, once made, is never changed or taken back. Hence a label means the same before and after links go
and come back, and it cannot loop: all nodes of a path receive their entries together, so from any of them
the entries lead to the destination along that path.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from controller.policy.errors import LabelsExhausted, UnknownPath
from controller.policy.network import Path

FIRST_LABEL = 16
"""Labels 0 to 15 are reserved (RFC 3032, section 2.1)."""
LAST_LABEL = 2**20 - 1


class LabelTable:
    """The labels of all paths between edge switches. Paths hold switches only, no hosts."""

    def __init__(self) -> None:
        self._next_hops: dict[int, dict[str, str]] = {}
        self._destinations: dict[int, str] = {}
        self._labels_to: dict[str, list[int]] = {}
        self._next_free = FIRST_LABEL

    def assign(self, paths_by_pair: Mapping[tuple[str, str], Iterable[Path]]) -> frozenset[int]:
        """Give every path a label; those that have one keep it. Paths within one switch need none.

        Returns the labels that gained next hops, for the caller to install. Pairs are taken in sorted
        order, so equal graphs get equal labels. Raises LabelsExhausted; earlier paths then keep theirs.
        """
        grown: set[int] = set()
        for pair in sorted(paths_by_pair):
            for path in paths_by_pair[pair]:
                if len(path.nodes) > 1 and (label := self._place(path)) is not None:
                    grown.add(label)
        return frozenset(grown)

    def label_for(self, path: Path) -> int:
        """The label that carries a packet along `path`. Raises UnknownPath if it was never assigned."""
        label = self._find(path)
        if label is None:
            raise UnknownPath(f"no label was assigned to the path {' -> '.join(path.nodes)}")
        return label

    def next_hops(self, label: int) -> dict[str, str]:
        """For each switch that may see `label`, the neighbour it goes to. The destination is not in it."""
        if label not in self:
            raise UnknownPath(f"label {label} was never assigned")
        return dict(self._next_hops[label])

    def destination(self, label: int) -> str:
        """The switch that takes `label` off. Raises UnknownPath if it was never assigned."""
        if label not in self:
            raise UnknownPath(f"label {label} was never assigned")
        return self._destinations[label]

    def adopt(self, label: int, destination: str, next_hops: Mapping[str, str]) -> bool:
        """Take over a label that the switches hold already, so that it goes on meaning what it means there.

        `next_hops` may have gaps, for links that are down now. Returns False, and takes nothing over, if the label
        is in use here, reserved or out of range, or if its next hops lead in a circle or past the destination.
        """
        if label in self or not FIRST_LABEL <= label <= LAST_LABEL or destination in next_hops:
            return False
        for node in next_hops:
            seen = set()
            while node in next_hops:
                if node in seen:
                    return False
                seen.add(node)
                node = next_hops[node]
        self._enter(label, destination, dict(next_hops))
        return True

    @property
    def labels(self) -> Collection[int]:
        """All labels in use."""
        return self._next_hops.keys()

    def __contains__(self, label: int) -> bool:
        return label in self._next_hops

    def _find(self, path: Path) -> int | None:
        # A path stands in the first choice that did not disagree with it. Those before disagree for ever.
        links = path.links
        for label in self._labels_to.get(path.nodes[-1], ()) if links else ():
            next_hops = self._next_hops[label]
            if all(next_hops.get(node) == following for node, following in links):
                return label
        return None

    def _place(self, path: Path) -> int | None:
        """The label that gained next hops by it, if one did."""
        for label in self._labels_to.get(path.nodes[-1], ()):
            next_hops = self._next_hops[label]
            if all(next_hops.get(node, following) == following for node, following in path.links):
                before = len(next_hops)
                next_hops.update(path.links)
                return label if len(next_hops) > before else None
        while self._next_free in self:
            self._next_free += 1
        if self._next_free > LAST_LABEL:
            raise LabelsExhausted(f"the paths of this network need more than {LAST_LABEL - FIRST_LABEL + 1} labels")
        return self._enter(self._next_free, path.nodes[-1], dict(path.links))

    def _enter(self, label: int, destination: str, next_hops: dict[str, str]) -> int:
        self._next_hops[label] = next_hops
        self._destinations[label] = destination
        self._labels_to.setdefault(destination, []).append(label)
        return label
