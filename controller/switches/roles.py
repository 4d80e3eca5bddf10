"""OpenFlow roles: the leader is master of its switches, a standby a slave that only hears of their ports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ryu.ofproto import ofproto_v1_3 as ofproto

from speedwell.controller.errors import ControllerError
from speedwell.controller.leadership import Leadership, Role
from speedwell.controller.loops import Loops
from speedwell.controller.switches.connection import hand_over
from speedwell.controller.switches.entries import dpid_hex

MOST_OF_A_SWITCH = 5
"""Connections of one switch that may wait until this controller leads: its own, and the dead ones before it."""


def role_request(datapath: Any, role: Role) -> Any:
    number = ofproto.OFPCR_ROLE_MASTER if role.is_master else ofproto.OFPCR_ROLE_SLAVE
    return datapath.ofproto_parser.OFPRoleRequest(datapath, number, role.generation)


class Roles:
    """Connections that shook hands: `lead` is called with each once this controller leads, right after the switch was
    asked to take it for its master. Whatever is sent from then on the switch takes after that."""

    def __init__(self, leadership: Leadership, loops: Loops, lead: Callable[[Any], None]) -> None:
        self._leadership = leadership
        self._loops = loops
        self._lead = lead
        self._waiting: dict[Any, Role | None] = {}
        """The connections of a standby, with the role that each was asked for."""
        leadership.on_change.append(self._changed)

    def shook_hands(self, datapath: Any) -> None:
        if sum(other.id == datapath.id for other in self._waiting) >= MOST_OF_A_SWITCH:
            datapath.close()
            return
        self._waiting[datapath] = None
        self._ask(datapath)

    def ended(self, datapath: Any) -> None:
        self._waiting.pop(datapath, None)

    def refused(self, message: Any) -> None:
        """A switch answered something with an error. A standby may be late; who leads may not."""
        if message.type == ofproto.OFPET_ROLE_REQUEST_FAILED and self._leadership.leads:
            self._loops.failed("OpenFlow roles", ControllerError(
                f"switch {dpid_hex(message.datapath.id)} has seen a leader of a later generation than that of our "
                "lease: was etcd emptied? The switch forgets it when its ovs-vswitchd is started again"))

    def _changed(self) -> None:
        for datapath in self._waiting:
            # one that fails or waits keeps neither the others nor the lead
            self._loops.spawn(self._ask, datapath)

    def _ask(self, datapath: Any) -> None:
        if datapath not in self._waiting:
            return
        role = self._leadership.role
        if role is not None and role != self._waiting[datapath]:
            if not hand_over(datapath, role_request(datapath, role)):
                datapath.close()    # it will be back
                return
            self._waiting[datapath] = role
        if self._leadership.leads and self._waiting.pop(datapath, None) == role:
            try:
                self._lead(datapath)
            except BaseException:
                # open and not led it would stay; closed, the switch tries again
                datapath.close()
                raise
