"""Segment routing: puts single flows on explicit paths, and has every switch's tables kept as planned."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import Any

from ryu.base.app_manager import RyuApp, lookup_service_brick
from ryu.controller import ofp_event
from ryu.controller.handler import MAIN_DISPATCHER, set_ev_cls
from ryu.ofproto import ofproto_v1_3

from controller import openflow
from controller.confirm import confirmed
from controller.errors import ControllerError, NoSuchPath, SwitchGone
from controller.events import (
    AffectedPath,
    EventHostChanged,
    EventLinkChanged,
    EventPathsChanged,
    EventPortChanged,
    EventSwitchChanged,
)
from controller.explicit_paths import ExplicitPath, ExplicitPaths
from controller.metered_paths import EntryOf, MeteredPaths
from controller.network_state import HostLocation, NetworkState, dpid_hex
from controller.openflow import FlowEntry
from controller.policy.five_tuple import FiveTuple
from controller.policy.network import Link, Path
from controller.switch_tables import Planner
from controller.table_sync import TableSync


class Forwarding(RyuApp):
    """Installs explicit paths, and label entries and default routes by `TableSync`. Sends EventPathsChanged.

    `explicit_paths` holds the flows that have an entry of their own; one goes when it is removed, or when its entry
    idled out (the switch then also sends OpenFlow's flow-removed message with the cookie).
    """

    OFP_VERSIONS = [ofproto_v1_3.OFP_VERSION]
    _CONTEXTS = {"state": NetworkState}
    _EVENTS = [EventPathsChanged]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.state: NetworkState = kwargs["state"]
        self.planner = Planner(self.state)
        self.explicit_paths = ExplicitPaths(self.planner)
        self.metered_paths = MeteredPaths(self.state, self.explicit_paths, self._metered_entries)
        self._tables = TableSync(self.state, self.planner, self.explicit_paths, self.metered_paths, self)
        self._announced_links: frozenset[Link] = frozenset()

    def start(self) -> None:
        super().start()
        self._tables.start()

    def stop(self) -> None:
        self._tables.stop()
        super().stop()

    # --- explicit paths: for others ---

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
        wanted = ExplicitPath(five_tuple, path, cookie, idle_timeout_seconds, traffic_class)
        entry = self._entry_once_ready(wanted, self._patience())
        datapath = self.state.datapath(wanted.first_switch)
        self.explicit_paths.add(wanted)
        try:
            self._confirmed(datapath, [openflow.flow_add(datapath, entry)])
        except ControllerError as error:
            self.explicit_paths.discard(wanted)
            if not isinstance(error, SwitchGone):
                datapath.send_msg(openflow.flow_delete(datapath, entry.key))
            raise
        return wanted

    def move_path(self, five_tuple: FiveTuple, path: Path) -> ExplicitPath:
        """Give a flow that `install_path` placed another path: one modify, its counters run on.

        Raises as `install_path`, and NoSuchPath if the flow has no entry (any more). On an error the flow stays as
        it was.
        """
        former = self.explicit_paths.get(five_tuple)
        if former is None:
            raise NoSuchPath(f"{five_tuple} has no entry of its own")
        if path.nodes[1] != former.first_switch:
            moved = self.install_path(five_tuple, path, former.cookie, former.idle_timeout_seconds,
                                      former.traffic_class)
            self._remove_entry(former)
            return moved
        wanted = replace(former, path=path, diverted=False)
        entry = self._entry_once_ready(wanted, self._patience())
        datapath = self.state.datapath(wanted.first_switch)
        self.explicit_paths.add(wanted)
        try:
            self._confirmed(datapath, [openflow.flow_modify(datapath, entry)])
        except ControllerError:
            if self.explicit_paths.get(five_tuple) is wanted:
                self.explicit_paths.add(former)
            raise
        return wanted

    def remove_path(self, five_tuple: FiveTuple) -> None:
        """Take a flow's own entry out, confirmed. Unknown flows and switches that are gone are fine.

        Raises SwitchRefused or SwitchTimedOut; the entry then goes by its idle timeout.
        """
        former = self.explicit_paths.get(five_tuple)
        if former is not None:
            self.explicit_paths.discard(former)
            self._remove_entry(former)

    def _remove_entry(self, path: ExplicitPath) -> None:
        datapath = self.state.datapaths.get(path.first_switch)
        if datapath is None:
            return
        try:
            self._confirmed(datapath, [openflow.flow_delete(datapath, path.key)])
        except SwitchGone:
            return

    # --- waiting until switches are ready ---

    @property
    def is_busy(self) -> bool:
        """Whether there are changes that the switches do not carry yet."""
        return self._tables.is_busy

    def wait_until_synced(self, timeout_seconds: float) -> bool:
        """Block the calling green thread until the switches carry what is known now; False if that took too long."""
        deadline = time.monotonic() + timeout_seconds
        while self.is_busy:
            if not self._tables.wait_for_sync(deadline):
                return False
        return True

    def plan_anew(self) -> None:
        """Hosts changed: bring the switches up to date. From now until that is done, `is_busy` says so."""
        self._tables.plan_anew()

    def _patience(self) -> float:
        """Until when those who ask now wait for switches that are being brought up to date."""
        return time.monotonic() + self.state.settings.confirm_timeout_seconds

    def _metered_entries(self) -> EntryOf:
        return partial(self._entry_once_ready, deadline=self._patience(), is_metered=True)

    def _entry_once_ready(self, wanted: ExplicitPath, deadline: float, is_metered: bool = False) -> FlowEntry:
        """The entry for a path. While switches are being brought up to date, waits until its labels are in place.

        One with a meter also waits until what its first switch holds is known and put right: it may have other meters
        than the last time, or those of an earlier controller.
        """
        while True:
            try:
                entry = self.explicit_paths.entry(wanted)
                first = wanted.first_switch
                if is_metered and first in self.state.datapaths and not self._tables.is_put_right(first):
                    problem = NoSuchPath(f"the tables of {self.state.name_of(first)} are not known yet")
                elif self._labels_installed(wanted.path):
                    return entry
                else:
                    problem = NoSuchPath("the labels of the path are not installed yet")
            except NoSuchPath as error:
                problem = error
            if not self.is_busy or not self._tables.wait_for_sync(deadline):
                raise problem

    def _labels_installed(self, path: Path) -> bool:
        switches = Path(path.nodes[1:-1])
        if len(switches.nodes) == 1:
            return True
        key = self.planner.label_key(self.planner.label_of(switches))
        return all(self._tables.holds(dpid, key) for dpid in switches.nodes[1:])

    def _confirmed(self, datapath: Any, messages: list[Any]) -> None:
        confirmed(self.state, datapath, messages, self.state.settings.confirm_timeout_seconds)

    # --- what happened ---

    @set_ev_cls(EventSwitchChanged)
    def switch_changed(self, event: EventSwitchChanged) -> None:
        self._tables.switch_changed(event.dpid, event.connected)

    @set_ev_cls(EventLinkChanged)
    def link_changed(self, event: EventLinkChanged) -> None:
        if event.live:
            self._tables.fabric_changed()
        else:
            self._tables.link_gone()

    @set_ev_cls([EventPortChanged])
    def port_changed(self, event: EventPortChanged) -> None:
        self._tables.fabric_changed()

    @set_ev_cls(EventHostChanged)
    def host_changed(self, event: EventHostChanged) -> None:
        self.plan_anew()

    @set_ev_cls(ofp_event.EventOFPFlowRemoved, MAIN_DISPATCHER)
    def entry_removed(self, event: Any) -> None:
        message = event.msg
        if message.cookie & openflow.COOKIE_MASK in openflow.EXPLICIT_COOKIES:
            dpid = dpid_hex(message.datapath.id)
            gone = self.explicit_paths.entry_gone(message.cookie, dpid)
            self.metered_paths.entries_gone(gone)
            if not gone:
                self.metered_paths.left_entry_gone(dpid, openflow.key_of_removed(message))

    def host_found(self, host: HostLocation) -> None:
        """See `table_sync.Listener`."""
        lookup_service_brick("Hosts").recovered(host)

    def synced(self, affected: tuple[AffectedPath, ...]) -> None:
        """See `table_sync.Listener`."""
        hosts = self.state.network.hosts
        links = frozenset(link for link in self.state.network.links if hosts.isdisjoint(link))
        lost, gained = self._announced_links - links, links - self._announced_links
        self._announced_links = links
        if lost or gained or affected:
            self.send_event_to_observers(EventPathsChanged(lost, gained, affected))
