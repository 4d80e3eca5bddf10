"""What a policy is, by its kind, and a registry of them. Those that there are: `controller.policy.registry`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from speedwell.controller.policy.errors import InvalidPolicy, UnknownPolicy


class Kind(StrEnum):
    """What a policy decides, and what it is made of.

    * REPLICA: which replica a read is served from. Made of (network, flows, generator): the graph, a function that
      gives the reads in flight, a random generator; it has `choose`. A policy that is made by nothing decides replica
      and path together, in `reads.selection`.
    * PATH: which paths a read may take. Made of (paths, five_tuple): all shortest paths, and the header that switches
      hash; it is a sequence of these paths.
    * COFLOW: order, path and rate of coflows. Made of (network, threshold_bytes): the graph, and the size above which
      MinCOF schedules a coflow; it is a `CoflowScheduler`.
    * PLACEMENT: where the replicas of a new file go. Made of (network, generator, measured_by): who tells
      of links, `MeasuredBy`; it is a `PlacementPolicy`.
    * TIMESLICES: who may send when. Made of (network, slice_seconds); it is a `TimeslicePolicy`.
    """

    REPLICA = "replica"
    PATH = "path"
    COFLOW = "coflow"
    PLACEMENT = "placement"
    TIMESLICES = "timeslices"


@dataclass(frozen=True, slots=True)
class Policy:
    """`ranks_flows`: a coflow policy that ranks traffic, for which the switches need the eight priorities."""

    kind: Kind
    name: str
    help: str
    source: str
    make: Callable[..., Any] | None = None
    ranks_flows: bool = False


class PolicyRegistry:
    """What is registered, and `more`, which is asked for once somebody wants to know what there is."""

    def __init__(self) -> None:
        self._policies: dict[Kind, dict[str, Policy]] = {kind: {} for kind in Kind}
        self.more: Callable[[], Iterable[Policy]] | None = None

    def register(self, policy: Policy) -> None:
        """Raises InvalidPolicy for a name that its kind has already."""
        if policy.name in self._policies[policy.kind]:
            raise InvalidPolicy(f"there is a {policy.kind} policy {policy.name!r} already")
        self._policies[policy.kind][policy.name] = policy

    def complete(self) -> None:
        """Take in what `more` has. Raises InvalidPolicy, as all that follow, if one of these cannot be offered."""
        if self.more is not None:
            policies = list(self.more())
            self.more = None
            for policy in policies:
                self.register(policy)

    def of(self, kind: Kind) -> Iterator[Policy]:
        self.complete()
        return iter(self._policies[kind].values())

    def names(self, kind: Kind) -> tuple[str, ...]:
        self.complete()
        return tuple(self._policies[kind])

    def default(self, kind: Kind) -> str:
        return next(iter(self._policies[kind]))

    def get(self, kind: Kind, name: str) -> Policy:
        """Raises UnknownPolicy."""
        self.complete()
        policy = self._policies[kind].get(name)
        if policy is None:
            raise UnknownPolicy(f"{kind} policy {name!r} is not one of {', '.join(self.names(kind))}")
        return policy

    def make(self, kind: Kind, name: str, *arguments: Any) -> Any:
        """The policy itself, made of what its kind is made of. Raises UnknownPolicy."""
        policy = self.get(kind, name)
        if policy.make is None:
            raise UnknownPolicy(f"{kind} policy {name!r} is decided together with the path")
        return policy.make(*arguments)

    def choices(self, kind: Kind) -> str:
        """The names as a sentence has them: "mayflower (default), nearest or random"."""
        first, *others = self.names(kind)
        names = [f"{first} (default)", *others]
        return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))
