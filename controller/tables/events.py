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


@dataclass(eq=False)
class EventPathsChanged(EventBase):
    """Shortest paths changed and the switches carry the new ones. Sent by forwarding.

    `links_lost` and `links_gained` are directed links between switches since the last such event; `affected` are
    the flows whose own path used a lost link: claim a new path for each, or leave it to the default paths.
    """

    links_lost: frozenset[Link]
    links_gained: frozenset[Link]
    affected: tuple[AffectedPath, ...]


@dataclass(eq=False)
class EventFlowsMoved(EventBase):
    """These flows take another path, because one of the systems that claim them changed its mind; the others follow.
    Sent by forwarding."""

    flows: tuple[FiveTuple, ...]


@dataclass(eq=False)
class EventFlowsEnded(EventBase):
    """A switch took the entry of a flow out by itself, and these claims ended with it: after its idle timeout
    (`is_idle`), because they were not renewed, or because somebody else deleted it. Sent by forwarding."""

    claims: tuple[Claim, ...]
    is_idle: bool


@dataclass(eq=False)
class EventFlowsReported(EventBase):
    """Flows that applications reported under the shared key: each with the bytes that it begins with, or 0 when it
    has ended or is not heard of any more. Sent by whoever takes reports."""

    flows: tuple[tuple[FiveTuple, int], ...]
