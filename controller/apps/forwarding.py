"""Segment routing: keeps every switch's tables as planned, and puts single flows on explicit paths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ryu.base.app_manager import RyuApp
from ryu.ofproto import ofproto_v1_3

from controller.events import EventPathsChanged
from controller.network_state import NetworkState
from controller.policy.five_tuple import FiveTuple
from controller.policy.network import Path


@dataclass(frozen=True, slots=True)
class ExplicitPath:
    """One flow on its own path. `path` begins and ends with a host; `diverted` says that a link of it was lost and
    the flow runs over the default paths."""

    five_tuple: FiveTuple
    path: Path
    cookie: int
    idle_timeout_seconds: int
    traffic_class: int = 0
    diverted: bool = False


class Forwarding(RyuApp):
    """Installs label entries, default routes and explicit paths. Sends EventPathsChanged.

    `explicit_paths` holds the flows that have an entry of their own; one goes when it is removed, or when its entry
    idled out (the switch then also sends OpenFlow's flow-removed message with the cookie).
    """

    OFP_VERSIONS = [ofproto_v1_3.OFP_VERSION]
    _CONTEXTS = {"state": NetworkState}
    _EVENTS = [EventPathsChanged]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.state: NetworkState = kwargs["state"]
        self.explicit_paths: dict[FiveTuple, ExplicitPath] = {}

    def install_path(
        self, five_tuple: FiveTuple, path: Path, cookie: int, idle_timeout_seconds: int, traffic_class: int = 0
    ) -> ExplicitPath:
        """Put a flow on a path: one entry at its first switch, confirmed by the switch when this returns.

        `path` runs from host to host (addresses first and last, datapath ids between); `cookie` is made with
        `openflow.cookie(COOKIE_READS, number)`; the entry goes after `idle_timeout_seconds` without a packet;
        `traffic_class` (0 to 7) picks the queue at every port it crosses. Installing a flow anew replaces its entry.
        Raises NoSuchPath if a link of the path is not live, SwitchRefused, SwitchTimedOut or SwitchGone; after any of
        these the flow has no entry of its own.
        """
        raise NotImplementedError

    def move_path(self, five_tuple: FiveTuple, path: Path) -> ExplicitPath:
        """Give a flow that `install_path` placed another path: one modify, its counters run on.

        Raises as `install_path`, and NoSuchPath if the flow has no entry (any more). On an error the flow stays as
        it was.
        """
        raise NotImplementedError

    def remove_path(self, five_tuple: FiveTuple) -> None:
        """Take a flow's own entry out, confirmed. Unknown flows and switches that are gone are fine.

        Raises SwitchRefused or SwitchTimedOut; the entry then goes by its idle timeout.
        """
        raise NotImplementedError
