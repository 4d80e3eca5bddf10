"""`/v1/entries` and `/v1/switches/{dpid}/entries`: what the switches hold, asked of them and not of the plan."""

from __future__ import annotations

from collections import Counter
from typing import Any

from eventlet import GreenPool

from speedwell.controller.counters.measurements import duration_of
from speedwell.controller.errors import ControllerError, SwitchGone, SwitchRefused, SwitchTimedOut, UnknownSwitch
from speedwell.controller.loops import in_turns
from speedwell.controller.rest.fields import DpidInput
from speedwell.controller.rest.pages import LIMIT, Limit, Offset, page_of
from speedwell.controller.rest.routes import route
from speedwell.controller.switches import openflow
from speedwell.controller.switches.transactions import asked
from speedwell.controller.tables import models
from speedwell.controller.tables.contents import action_text, match_fields, owner_of, table_name
from speedwell.controller.tables.flow_records import FlowRecords
from speedwell.controller.tables.registry import TableRegistry
from speedwell.controller.topology.state import NetworkState

ANSWER_SECONDS = 5.0


class EntriesApi:
    def __init__(self, state: NetworkState, records: FlowRecords, registry: TableRegistry) -> None:
        self._state = state
        self._records = records
        self._registry = registry

    @route("GET", "/v1/entries", summary="How many flow entries each switch holds, by owner", tag="network",
           response=models.EntryCounts)
    def count_entries(self) -> models.EntryCounts:
        """All connected switches are asked at once, which takes as long as the slowest, 5 s at most."""
        switches = list(GreenPool().imap(self._count, sorted(self._state.datapaths)))
        total = sum((Counter(switch.entries) for switch in switches), Counter[str]())
        return models.EntryCounts(switches=switches, entries=dict(total), total=total.total())

    @route("GET", "/v1/switches/{dpid}/entries", summary="The flow entries that a switch holds", tag="network",
           response=models.SwitchEntries, problems=[UnknownSwitch, SwitchGone, SwitchRefused, SwitchTimedOut],
           query=("owner", "offset", "limit"))
    def list_entries(self, dpid: DpidInput, owner: models.Owner | None = None, offset: Offset = 0,
                     limit: Limit = LIMIT) -> models.SwitchEntries:
        """With its counters. `owner` leaves out all others."""
        if dpid not in self._state.switches:
            raise UnknownSwitch(dpid)
        wanted = [entry for entry in in_turns(self._asked(dpid)) if owner in (None, self._owner(entry, dpid))]
        wanted.sort(key=lambda entry: (entry.table_id, -entry.priority, entry.cookie, str(entry.match)))
        listed, page = page_of(wanted, offset, limit)
        return models.SwitchEntries(dpid=dpid, switch_name=self._state.name_of(dpid), **page,
                                    entries=[self._entry(entry, dpid) for entry in in_turns(listed)])

    def _count(self, dpid: str) -> models.SwitchEntryCounts:
        counts, problem = Counter[str](), None
        try:
            counts.update(self._owner(entry, dpid) for entry in in_turns(self._asked(dpid)))
        except ControllerError as error:
            problem = str(error)
        return models.SwitchEntryCounts(dpid=dpid, switch_name=self._state.name_of(dpid), entries=dict(counts),
                                        total=counts.total(), problem=problem)

    def _asked(self, dpid: str) -> list[Any]:
        """Raises SwitchGone, SwitchRefused or SwitchTimedOut."""
        datapath = self._state.datapath(dpid)
        return asked(self._state, datapath, openflow.flow_stats_request(datapath), ANSWER_SECONDS)

    def _owner(self, stats: Any, dpid: str) -> str:
        return owner_of(stats.cookie, dpid, self._records, self._registry)

    def _entry(self, stats: Any, dpid: str) -> models.Entry:
        try:
            entry = openflow.decode_flow(stats)
        except Exception as error:
            # Ryu parses matches only now, and raises what it likes over one that no switch should send.
            raise SwitchRefused(dpid, "unreadable entry", repr(error)) from error
        return models.Entry(
            owner=self._owner(stats, dpid), table=entry.table, table_name=table_name(entry.table, self._registry),
            priority=entry.priority, match=match_fields(entry.match), actions=list(map(action_text, entry.actions)),
            goto_table=entry.goto, meter=entry.meter_id, cookie=f"{entry.cookie:016x}", packets=stats.packet_count,
            bytes=stats.byte_count, age_seconds=duration_of(stats), idle_timeout_seconds=entry.idle_timeout_seconds,
            hard_timeout_seconds=entry.hard_timeout_seconds)
