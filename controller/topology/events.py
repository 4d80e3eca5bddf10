"""What discovery and the host application tell the others.

A handler receives these events with `@set_ev_cls(EventLinkChanged)`; the application that sends one lists it in
`_EVENTS`. By the time an event arrives, `NetworkState` already shows the new state.
"""

from __future__ import annotations

from dataclasses import dataclass

from ryu.controller.event import EventBase

from speedwell.controller.policy.network.graph import Link
from speedwell.controller.topology.state import HostLocation


@dataclass(eq=False)
class EventSwitchChanged(EventBase):
    """A switch connected (`connected`) or its connection ended. Sent by discovery."""

    dpid: str
    connected: bool


@dataclass(eq=False)
class EventSwitchForgotten(EventBase):
    """A switch was away for too long and is no longer waited for. Sent by discovery."""

    dpid: str


@dataclass(eq=False)
class EventLinkChanged(EventBase):
    """A directed link between two switches came (`live`) or went, or its capacity changed. Sent by discovery."""

    link: Link
    live: bool


@dataclass(eq=False)
class EventPortChanged(EventBase):
    """A port came, went, or turned out to lead to hosts or to a switch. Sent by discovery."""

    dpid: str
    port_no: int


@dataclass(eq=False)
class EventHostChanged(EventBase):
    """A host was learnt, moved (`previous` differs from `location`) or went (`location` is None). Sent by hosts."""

    ip: str
    location: HostLocation | None
    previous: HostLocation | None
