"""Ryu events by which the applications tell each other what changed.

A handler receives them with `@set_ev_cls(EventLinkChanged)`; the application that sends one lists it in `_EVENTS`.
By the time an event arrives, `NetworkState` already shows the new state.
"""

from __future__ import annotations

from dataclasses import dataclass

from ryu.controller.event import EventBase

from controller.network_state import HostLocation
from controller.policy.five_tuple import FiveTuple
from controller.policy.network import Link, Path


class EventSwitchChanged(EventBase):
    """A switch connected (`connected`) or its connection ended. Sent by discovery."""

    def __init__(self, dpid: str, connected: bool) -> None:
        super().__init__()
        self.dpid = dpid
        self.connected = connected


class EventLinkChanged(EventBase):
    """A directed link between two switches came (`live`) or went, or its capacity changed. Sent by discovery."""

    def __init__(self, link: Link, live: bool) -> None:
        super().__init__()
        self.link = link
        self.live = live


class EventPortChanged(EventBase):
    """A port came, went, or turned out to lead to hosts or to a switch. Sent by discovery."""

    def __init__(self, dpid: str, port_no: int) -> None:
        super().__init__()
        self.dpid = dpid
        self.port_no = port_no


class EventHostChanged(EventBase):
    """A host was learnt, moved (`previous` differs from `location`) or went (`location` is None). Sent by hosts."""

    def __init__(self, ip: str, location: HostLocation | None, previous: HostLocation | None) -> None:
        super().__init__()
        self.ip = ip
        self.location = location
        self.previous = previous


@dataclass(frozen=True, slots=True)
class AffectedPath:
    """An explicit path that lost a link. Its flow runs over the default paths until it is moved or removed."""

    five_tuple: FiveTuple
    path: Path
    cookie: int


class EventPathsChanged(EventBase):
    """Shortest paths changed and the switches carry the new ones. Sent by forwarding.

    `links_lost` and `links_gained` are directed links between switches since the last such event; `affected` are
    the explicit paths that used a lost link: give each a new path with `move_path`, or leave it to the default paths.
    """

    def __init__(
        self, links_lost: frozenset[Link], links_gained: frozenset[Link], affected: tuple[AffectedPath, ...]
    ) -> None:
        super().__init__()
        self.links_lost = links_lost
        self.links_gained = links_gained
        self.affected = affected
