"""From what a switch holds to what it should hold, in an order that loses no packet on the way.

What is reached is there before what leads to it: labels and deliveries first, then groups, then the entries that use
the groups. A host counts as known at its port, so that its ARP is answered by the switch, only when everybody can
answer it. What is no longer wanted goes last, entries before groups. Nobody is overwritten by a late delete, because
deletes name exactly one entry.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from controller import openflow
from controller.openflow import FlowEntry, FlowKey, SelectGroup, Table
from controller.switch_tables import SwitchTables


@dataclass(slots=True)
class Changes:
    """What to send to one switch, in three steps that all switches take together."""

    arrivals: list[FlowEntry] = field(default_factory=list)
    """Entries that packets on their way meet after the first switch."""
    new_groups: list[SelectGroup] = field(default_factory=list)
    changed_groups: list[SelectGroup] = field(default_factory=list)
    departures: list[FlowEntry] = field(default_factory=list)
    """Entries that send packets on their way."""
    senders: list[FlowEntry] = field(default_factory=list)
    """Entries that tell known senders."""
    stale_flows: list[FlowKey] = field(default_factory=list)
    stale_groups: list[int] = field(default_factory=list)

    def __bool__(self) -> bool:
        return any((self.arrivals, self.new_groups, self.changed_groups, self.departures, self.senders,
                    self.stale_flows, self.stale_groups))


def changes(installed: SwitchTables, desired: SwitchTables) -> Changes:
    """The least that turns `installed` into `desired`."""
    result = Changes()
    for key, entry in desired.flows.items():
        if installed.flows.get(key) != entry:
            if entry.table == Table.ROUTES:
                result.departures.append(entry)
            elif entry.table == Table.SOURCES:
                result.senders.append(entry)
            else:
                result.arrivals.append(entry)
    for group_id, group in desired.groups.items():
        if group_id not in installed.groups:
            result.new_groups.append(group)
        elif installed.groups[group_id] != group:
            result.changed_groups.append(group)
    result.stale_flows = [key for key in installed.flows if key not in desired.flows]
    result.stale_groups = [group_id for group_id in installed.groups if group_id not in desired.groups]
    return result


def pruned_groups(installed: SwitchTables, live: Mapping[int, SelectGroup]) -> list[SelectGroup]:
    """The groups of `installed` that have ways which `live` ones lack, without these ways.

    A group that would have none left stays as it is.
    """
    pruned = []
    for group_id, group in installed.groups.items():
        remaining = live[group_id].buckets if group_id in live else ()
        kept = tuple(bucket for bucket in group.buckets if bucket in remaining)
        if kept and len(kept) < len(group.buckets):
            pruned.append(SelectGroup(group_id, kept))
    return pruned


def arrival_messages(datapath: Any, change: Changes) -> list[Any]:
    return [openflow.flow_add(datapath, entry) for entry in change.arrivals]


def departure_messages(datapath: Any, change: Changes) -> list[Any]:
    groups = [openflow.group_add(datapath, group) for group in change.new_groups]
    groups += [openflow.group_modify(datapath, group) for group in change.changed_groups]
    flows = [openflow.flow_add(datapath, entry) for entry in change.departures]
    return [*groups, *_barrier(datapath, groups, flows), *flows]


def closing_messages(datapath: Any, change: Changes) -> list[Any]:
    senders = [openflow.flow_add(datapath, entry) for entry in change.senders]
    flows = [openflow.flow_delete(datapath, key) for key in change.stale_flows]
    groups = [openflow.group_delete(datapath, group_id) for group_id in change.stale_groups]
    return [*senders, *flows, *_barrier(datapath, flows, groups), *groups]


def _barrier(datapath: Any, before: list[Any], after: list[Any]) -> list[Any]:
    return [datapath.ofproto_parser.OFPBarrierRequest(datapath)] if before and after else []


def apply_arrivals(installed: SwitchTables, change: Changes) -> None:
    """Note in `installed` that the arrival messages were sent."""
    installed.add(change.arrivals)


def apply_departures(installed: SwitchTables, change: Changes) -> None:
    """Note in `installed` that the departure messages were sent."""
    installed.add(change.departures)
    installed.groups.update((group.group_id, group) for group in (*change.new_groups, *change.changed_groups))


def apply_closing(installed: SwitchTables, change: Changes) -> None:
    """Note in `installed` that the closing messages were sent."""
    installed.add(change.senders)
    for key in change.stale_flows:
        installed.flows.pop(key, None)
    for group_id in change.stale_groups:
        installed.groups.pop(group_id, None)
