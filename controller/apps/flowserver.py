"""The Flowserver: chooses replica and path of each read and keeps the reads in flight (Mayflower, section 3.3.3).

A read is decided and accounted for without giving up the processor (`controller.read_accounts`); only then its
entries are installed, and what could not be installed is taken back. `/v1/reads` is in `controller.rest.reads_api`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from ryu.base.app_manager import RyuApp, lookup_service_brick
from ryu.controller import ofp_event
from ryu.controller.handler import MAIN_DISPATCHER, set_ev_cls
from ryu.lib import hub
from ryu.ofproto import ofproto_v1_3

from controller import openflow
from controller.apps.monitor import EventMeasured
from controller.confirm import confirmed
from controller.dividing import Divider
from controller.errors import ControllerError, NoSuchPath
from controller.events import EventHostChanged, EventPathsChanged
from controller.locating import ReplicaSearch
from controller.measurements import Measurements
from controller.network_state import NetworkState
from controller.policy.link_load import Flow
from controller.policy.network import Path
from controller.policy.selection import Selection, Selector
from controller.read_accounts import ReadAccounts
from controller.reads import Part, Read, ReadBook, UnknownPart, UnknownRead, Wanted
from controller.rest import RestApplication
from controller.rest.metrics import FlowserverMetrics
from controller.rest.reads_api import ReadsApi

PLACEMENT_ATTEMPTS = 3
"""Decisions for one read, if a chosen path dies before its entry is in."""
STALE_ROUNDS = 3
"""Polls in a row that find an entry no read owns before it is removed."""


class Flowserver(RyuApp):
    """Places reads, feeds the policy with measurements, re-routes and ends reads. Reads `Measurements`."""

    OFP_VERSIONS = [ofproto_v1_3.OFP_VERSION]
    _CONTEXTS = {"state": NetworkState, "measurements": Measurements, "reads": ReadBook, "rest": RestApplication}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._state: NetworkState = kwargs["state"]
        self.reads: ReadBook = kwargs["reads"]
        self.metrics = FlowserverMetrics(kwargs["rest"].metrics)
        settings = self._state.settings
        self._idle_timeout_seconds = settings.read_idle_timeout_seconds
        self._selector = Selector(self._state.network, settings.replica_policy, settings.path_policy, Random())
        self._search = ReplicaSearch(self._state)
        self.divider = Divider(self._selector, self.reads, self, self.metrics)
        self._accounts = ReadAccounts(self._state, kwargs["measurements"], self._selector, self.reads, self.divider,
                                      self.metrics)
        self._unowned: dict[int, int] = {}
        self.hosts: Any = None
        self.forwarding: Any = None
        kwargs["rest"].register(ReadsApi(self, self._state))

    def start(self) -> None:
        super().start()
        self.hosts = lookup_service_brick("Hosts")
        self.forwarding = lookup_service_brick("Forwarding")

    # --- placing a read ---

    def place(self, wanted: Wanted) -> Read:
        """Choose replicas and paths, and install them, confirmed by all the switches concerned.

        Raises UnknownHost, NoSuchPath, SwitchRefused, SwitchTimedOut or SwitchGone; then nothing of the read remains.
        """
        begin = time.monotonic()
        try:
            replicas = self._search.locate(self.hosts, wanted)
            for attempt in range(1, PLACEMENT_ATTEMPTS + 1):
                read = self._accounts.decide(wanted, replicas)
                try:
                    self._install(read.flows)
                    break
                except NoSuchPath:
                    self._abandon(read)
                    if attempt == PLACEMENT_ATTEMPTS:
                        raise
                except BaseException:
                    self._abandon(read)
                    raise
        except ControllerError as error:
            self.metrics.refused.labels(error.slug).inc()
            raise
        self.metrics.placement_seconds.observe(time.monotonic() - begin)
        self.metrics.reads.labels(read.replica_policy, read.path_policy).inc()
        self.metrics.local_parts.inc(len(read.parts) - len(read.flows))
        return read

    def new_part(self, read: Read, selection: Selection, client_port: int, size_bytes: int) -> Part:
        """See `dividing.Carrier`."""
        return self._accounts.new_part(read, selection, client_port, size_bytes)

    def _install(self, parts: Sequence[Part]) -> None:
        """Install all at once. Raises what went wrong when nothing is under way any more."""
        # A path that died meanwhile is chosen anew, which is of no use if there is something worse.
        for error in sorted(self.install(parts), key=lambda error: isinstance(error, NoSuchPath)):
            raise error

    def install(self, parts: Sequence[Part]) -> list[ControllerError]:
        """See `dividing.Carrier`."""

        def install(part: Part) -> None:
            try:
                self.forwarding.install_path(part.five_tuple, part.path, part.cookie, self._idle_timeout_seconds)
            except ControllerError as error:
                self.metrics.installs_refused.labels(error.slug).inc()
                raise

        return _at_once(install, parts)

    def _abandon(self, read: Read) -> None:
        """Take back a read that could not be installed."""
        for part in self._accounts.forget(read):
            self.metrics.parts_ended.labels("not-installed").inc()
            self.remove_entry(part)

    # --- ending reads ---

    def end(self, read_id: str) -> None:
        """End a read at its client's word, confirmed by the switches.

        Raises UnknownRead, SwitchRefused or SwitchTimedOut; the read is forgotten all the same, and a remaining entry
        goes by its idle timeout.
        """
        read = self.reads.get(read_id)
        if read is None:
            raise UnknownRead(read_id)
        left = self._accounts.forget(read)
        self.metrics.parts_ended.labels("deleted").inc(len(left))
        for error in _at_once(lambda part: self.forwarding.remove_path(part.five_tuple), left):
            raise error

    def end_part(self, read_id: str, number: int) -> None:
        """End one part of a read, counted from 0, and the read with the last one. What the part had is free for
        others from now on; the read gets no further part from the same replica. Raises UnknownPart, and what `end`
        raises."""
        read = self.reads.get(read_id)
        if read is None:
            raise UnknownRead(read_id)
        if number >= len(read.parts) or not self._accounts.end_part(read.parts[number], "deleted"):
            raise UnknownPart(read_id, number)
        self.forwarding.remove_path(read.parts[number].five_tuple)

    def remove_entry(self, part: Part) -> None:
        """See `dividing.Carrier`."""
        if self.reads.part_on(part.five_tuple) is not None:
            return
        try:
            self.forwarding.remove_path(part.five_tuple)
        except ControllerError as error:
            self.logger.warning("an entry goes by its idle timeout only: %s", error)

    @set_ev_cls(ofp_event.EventOFPFlowRemoved, MAIN_DISPATCHER)
    def _entry_removed(self, event: Any) -> None:
        """A dead client's entry idled out, or somebody else deleted it: the flow is on the default paths then."""
        message = event.msg
        part = self.reads.part_with_cookie(message.cookie)
        if part is not None:
            idle = message.reason == message.datapath.ofproto.OFPRR_IDLE_TIMEOUT
            self._accounts.end_part(part, "idle" if idle else "entry-removed")

    @set_ev_cls(EventHostChanged)
    def _host_changed(self, event: EventHostChanged) -> None:
        if event.previous is None or event.previous == event.location:
            return
        for part in self.reads.flows():
            ends = (part.five_tuple.source, part.five_tuple.destination)
            if event.ip in ends and self._accounts.end_part(part, "host-moved"):
                hub.spawn(self.remove_entry, part)

    # --- measurements ---

    @set_ev_cls(EventMeasured)
    def _measured(self, event: EventMeasured) -> None:
        now = time.monotonic()
        self._accounts.measured(event.flows, event.ports, now)
        for part in self._accounts.expired(now):
            hub.spawn(self.remove_entry, part)
        self._find_stale_entries(event)
        stranded = [part for part in self.reads.flows() if part.stranded]
        if stranded:
            hub.spawn(self.reroute, stranded)
        self.divider.wake()

    def _find_stale_entries(self, event: EventMeasured) -> None:
        """Entries of a former life of the controller: their flows go back to the default paths."""
        seen = {number: self._unowned.get(number, 0) + 1 for number in event.flows
                if self.reads.part_with_cookie(number) is None}
        self._unowned = seen
        for number, rounds in seen.items():
            if rounds >= STALE_ROUNDS:
                hub.spawn(self._remove_stale_entry, event.flows[number], number)

    def _remove_stale_entry(self, dpid: str, number: int) -> None:
        datapath = self._state.datapaths.get(dpid)
        if datapath is None:
            return
        try:
            confirmed(self._state, datapath, [openflow.flows_delete(datapath, number)])
            self.metrics.stale_entries.inc()
        except ControllerError as error:
            self.logger.warning("a stale entry stays for now: %s", error)

    # --- re-routing ---

    @set_ev_cls(EventPathsChanged)
    def _paths_changed(self, event: EventPathsChanged) -> None:
        parts = [self.reads.part_with_cookie(affected.cookie) for affected in event.affected]
        hub.spawn(self.reroute, [part for part in parts if part is not None])

    def reroute(self, parts: list[Part]) -> None:
        """Give running parts new paths from the same replica. All are decided first, then moved at once."""
        moved = [(part, path) for part in parts if (path := self._accounts.decide_again(part)) is not None]
        hub.joinall([hub.spawn(self._move, part, path) for part, path in moved])

    def _move(self, part: Part, path: Path) -> None:
        try:
            self.forwarding.move_path(part.five_tuple, path)
        except ControllerError as error:
            part.stranded = True
            self.metrics.reroutes.labels(error.slug).inc()
            self.logger.warning("a running read stays on the default paths for now: %s", error)
            return
        part.path = path
        part.reroutes += 1
        self.metrics.reroutes.labels("moved").inc()

    # --- look-ups ---

    def follow(self, read_id: str, after: int, wait_seconds: float) -> Read:
        """See `Divider.follow`."""
        return self.divider.follow(read_id, after, wait_seconds)

    def model(self) -> dict[str, Flow]:
        """The policy's view of each flow, by `Part.flow_id`."""
        return {flow.flow_id: flow for flow in self._selector.flows()}


def _at_once(work: Callable[[Part], None], parts: Sequence[Part]) -> list[ControllerError]:
    """Do the same with all parts in green threads of their own. Returns what they raised when all have ended."""
    errors: list[ControllerError] = []

    def run(part: Part) -> None:
        try:
            work(part)
        except ControllerError as error:
            errors.append(error)

    if len(parts) == 1:
        run(parts[0])
    else:
        hub.joinall([hub.spawn(run, part) for part in parts])
    return errors
