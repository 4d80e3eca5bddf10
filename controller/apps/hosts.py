"""Where hosts are: learnt on edge ports from ARP and first IP packets, or asked for with ARP."""

from __future__ import annotations

from typing import Any

from ryu.base.app_manager import RyuApp
from ryu.ofproto import ofproto_v1_3

from controller.events import EventHostChanged
from controller.network_state import HostLocation, NetworkState


class Hosts(RyuApp):
    """Learns and finds hosts, and answers their ARP requests. Sends EventHostChanged."""

    OFP_VERSIONS = [ofproto_v1_3.OFP_VERSION]
    _CONTEXTS = {"state": NetworkState}
    _EVENTS = [EventHostChanged]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.state: NetworkState = kwargs["state"]

    def locate(self, ip: str, timeout_seconds: float = 1.0) -> HostLocation:
        """Where a host is, asking all edge ports by ARP if nobody knows.

        Blocks the calling green thread for at most `timeout_seconds`. Raises UnknownHost if nobody answers.
        """
        raise NotImplementedError
