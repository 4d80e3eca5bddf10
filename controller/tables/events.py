"""What the systems are told of paths and of single flows."""

from __future__ import annotations

from dataclasses import dataclass

from ryu.controller.event import EventBase

from speedwell.controller.policy.network.five_tuple import FiveTuple
from speedwell.controller.policy.network.graph import Link, Path
from speedwell.controller.tables.flow_records import Claim


@dataclass(frozen=True, slots=True)
class AffectedPath:
    """A flow whose path lost a link. It runs on another path that is claimed for it, or else over the default paths,
    until somebody claims one that is live."""

    five_tuple: FiveTuple
    path: Path


class EventPathsChanged(EventBase):
    """Shortest paths changed and the switches carry the new ones. Sent by forwarding.

    `links_lost` and `links_gained` are directed links between switches since the last such event; `affected` are
    the flows whose own path used a lost link: claim a new path for each, or leave it to the default paths.
    """

    def __init__(
        self, links_lost: frozenset[Link], links_gained: frozenset[Link], affected: tuple[AffectedPath, ...]
    ) -> None:
        super().__init__()
        self.links_lost = links_lost
        self.links_gained = links_gained
        self.affected = affected


class EventFlowsMoved(EventBase):
    """These flows take another path, because one of the systems that claim them changed its mind; the others follow.
    Sent by forwarding."""

    def __init__(self, flows: tuple[FiveTuple, ...]) -> None:
        super().__init__()
        self.flows = flows


class EventFlowsEnded(EventBase):
    """A switch took the entry of a flow out by itself, and these claims ended with it: after its idle timeout
    (`is_idle`), because they were not renewed, or because somebody else deleted it. Sent by forwarding."""

    def __init__(self, claims: tuple[Claim, ...], is_idle: bool) -> None:
        super().__init__()
        self.claims = claims
        self.is_idle = is_idle


class EventFlowsReported(EventBase):
    """Flows that applications reported under the shared key: each with the bytes that it begins with, or 0 when it
    has ended or is not heard of any more. Sent by whoever takes reports."""

    def __init__(self, flows: tuple[tuple[FiveTuple, int], ...]) -> None:
        super().__init__()
        self.flows = flows
