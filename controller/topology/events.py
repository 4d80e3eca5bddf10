"""What discovery and the host application tell the others.

A handler receives these events with `@set_ev_cls(EventLinkChanged)`; the application that sends one lists it in
`_EVENTS`. By the time an event arrives, `NetworkState` already shows the new state.
"""

from __future__ import annotations

from ryu.controller.event import EventBase

from speedwell.controller.policy.network.graph import Link
from speedwell.controller.topology.state import HostLocation


class EventSwitchChanged(EventBase):
    """A switch connected (`connected`) or its connection ended. Sent by discovery."""

    def __init__(self, dpid: str, connected: bool) -> None:
        super().__init__()
        self.dpid = dpid
        self.connected = connected


class EventSwitchForgotten(EventBase):
    """A switch was away for too long and is no longer waited for. Sent by discovery."""

    def __init__(self, dpid: str) -> None:
        super().__init__()
        self.dpid = dpid


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
