"""From what a switch holds to what it should hold, in an order that loses no packet on the way.

What is reached is there before what leads to it: labels and deliveries first, then groups, then the entries that use
the groups. A host counts as known at its port, so that its ARP is answered by the switch, only when everybody can
answer it. What is no longer wanted goes last, entries before groups. Within a step entries come from the highest
priority down and go from the lowest up: a packet meets the entry of before or of afterwards, and none between them.
Nobody is overwritten by a late delete, because deletes name exactly one entry.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

from speedwell.controller.switches import openflow
from speedwell.controller.switches.entries import FlowEntry, FlowKey, Group
from speedwell.controller.tables.entries import DirtyEntries, SwitchTables
from speedwell.controller.tables.registry import Step, TableRegistry


@dataclass(slots=True)
class TableChanges:
    """What to send to one switch, in four steps that all switches take together."""

    arrivals: list[FlowEntry] = field(default_factory=list)
    """Entries that packets on their way meet after the first switch."""
    new_groups: list[Group] = field(default_factory=list)
    changed_groups: list[Group] = field(default_factory=list)
    departures: list[FlowEntry] = field(default_factory=list)
    """Entries that send packets on their way."""
    senders: list[FlowEntry] = field(default_factory=list)
    """Entries that tell known senders."""
    former: dict[int, Group] = field(default_factory=dict)
    """The changed groups as they are."""
    stale_flows: list[FlowKey] = field(default_factory=list)
    stale_groups: list[int] = field(default_factory=list)

    def __bool__(self) -> bool:
        return any((self.arrivals, self.new_groups, self.changed_groups, self.departures, self.senders,
                    self.stale_flows, self.stale_groups))


def changes(installed: SwitchTables, desired: SwitchTables, registry: TableRegistry,
            dirty: DirtyEntries | None = None) -> TableChanges:
    """The least that turns `installed` into `desired`; with `dirty`, of these entries and groups alone."""
    result = TableChanges()
    of_step = {Step.REACHED: result.arrivals, Step.SENDING: result.departures, Step.ADMITTING: result.senders}
    for key in installed.flows.keys() | desired.flows.keys() if dirty is None else dirty.flows:
        there, entry = installed.flows.get(key), desired.flows.get(key)
        if entry is None:
            if there is not None:
                result.stale_flows.append(key)
        elif there is not entry and there != entry:
            of_step[registry.step_of(entry)].append(entry)
    for entries in of_step.values():
        entries.sort(key=attrgetter("priority"), reverse=True)
    result.stale_flows.sort(key=_priority)
    for group_id in installed.groups.keys() | desired.groups.keys() if dirty is None else dirty.groups:
        former, group = installed.groups.get(group_id), desired.groups.get(group_id)
        if group is None:
            if former is not None:
                result.stale_groups.append(group_id)
        elif former is None:
            result.new_groups.append(group)
        elif former is not group and former != group:
            result.changed_groups.append(group)
            result.former[group_id] = former
    result.new_groups.sort(key=_chained_later)
    result.stale_groups.sort(key=lambda group_id: not installed.groups[group_id].is_failover)
    return result


def _priority(key: FlowKey) -> int:
    return key[1]


def _chained_later(group: Group) -> bool:
    """A group is there before those that fall back to it."""
    return group.is_failover


def urgent(change: TableChanges, is_anything_to_arrive: bool) -> TableChanges:
    """What of a change can be done before all other steps, because what it leads to is there already.

    That is, after a link went: other groups, and routes that use them. While new labels have to be there first
    (`is_anything_to_arrive`, at any switch), groups only lose ways.
    """
    if not is_anything_to_arrive:
        return TableChanges(new_groups=change.new_groups, changed_groups=change.changed_groups,
                            departures=change.departures)
    return TableChanges(changed_groups=[group for group in change.changed_groups if _is_within(group, change.former)])


def _is_within(group: Group, former: Mapping[int, Group]) -> bool:
    return bool(group.buckets) and set(group.buckets) <= set(former[group.group_id].buckets)


def without_additions(change: TableChanges, installed: SwitchTables) -> TableChanges:
    """What of a change takes no more entries than there are."""
    def there(entries: list[FlowEntry]) -> list[FlowEntry]:
        return [entry for entry in entries if entry.key in installed.flows]

    return replace(change, arrivals=there(change.arrivals), departures=there(change.departures),
                   senders=there(change.senders))


def arrival_messages(datapath: Any, change: TableChanges) -> list[Any]:
    return [openflow.flow_add(datapath, entry) for entry in change.arrivals]


def departure_messages(datapath: Any, change: TableChanges) -> list[Any]:
    groups = [openflow.group_add(datapath, group) for group in change.new_groups]
    groups += [openflow.group_modify(datapath, group) for group in change.changed_groups]
    flows = [openflow.flow_add(datapath, entry) for entry in change.departures]
    return [*groups, *_barrier(datapath, groups, flows), *flows]


def sender_messages(datapath: Any, change: TableChanges) -> list[Any]:
    return [openflow.flow_add(datapath, entry) for entry in change.senders]


def closing_messages(datapath: Any, change: TableChanges) -> list[Any]:
    flows = [openflow.flow_delete(datapath, key) for key in change.stale_flows]
    groups = [openflow.group_delete(datapath, group_id) for group_id in change.stale_groups]
    return [*flows, *_barrier(datapath, flows, groups), *groups]


def _barrier(datapath: Any, before: list[Any], after: list[Any]) -> list[Any]:
    return [datapath.ofproto_parser.OFPBarrierRequest(datapath)] if before and after else []


def apply_arrivals(installed: SwitchTables, change: TableChanges) -> None:
    """Note in `installed` that the arrival messages were sent."""
    installed.add(change.arrivals)


def apply_departures(installed: SwitchTables, change: TableChanges) -> None:
    """Note in `installed` that the departure messages were sent."""
    installed.add(change.departures)
    installed.groups.update((group.group_id, group) for group in (*change.new_groups, *change.changed_groups))


def apply_senders(installed: SwitchTables, change: TableChanges) -> None:
    """Note in `installed` that the messages of senders were sent."""
    installed.add(change.senders)


def apply_closing(installed: SwitchTables, change: TableChanges) -> None:
    """Note in `installed` that the closing messages were sent."""
    for key in change.stale_flows:
        installed.flows.pop(key, None)
    for group_id in change.stale_groups:
        installed.groups.pop(group_id, None)
