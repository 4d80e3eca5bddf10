"""The flows that have an entry of their own at their first switch. No Ryu, no sockets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from controller.errors import NoSuchPath
from controller.openflow import (
    COOKIE_COFLOWS,
    COOKIE_MASK,
    FlowEntry,
    FlowKey,
    Meter,
    Output,
    Priority,
    PushLabel,
    SetQueue,
)
from controller.policy.five_tuple import FiveTuple
from controller.policy.network import Path
from controller.switch_tables import Planner, explicit_key


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
    meter: Meter | None = None
    lifetime_seconds: int = 0
    """After this the switch takes the entry out whatever it carries, unless it was installed anew; 0: never."""

    @property
    def priority(self) -> Priority:
        """Flows that a coflow schedule places have their entry above the one of a read."""
        is_coflow = self.cookie & COOKIE_MASK == COOKIE_COFLOWS
        return Priority.COFLOW if is_coflow else Priority.EXPLICIT_PATH

    @property
    def first_switch(self) -> str:
        return self.path.nodes[1]

    @property
    def key(self) -> FlowKey:
        """The key of its entry."""
        return explicit_key(self.five_tuple, self.priority)


class ExplicitPaths:
    """A book of explicit paths, one per flow and priority."""

    def __init__(self, planner: Planner) -> None:
        self._planner = planner
        self._paths: dict[FlowKey, ExplicitPath] = {}
        self._diverted: dict[FlowKey, FlowEntry] = {}
        """The entries that diverted paths were given."""

    def __iter__(self) -> Iterator[ExplicitPath]:
        return iter(list(self._paths.values()))

    def __len__(self) -> int:
        return len(self._paths)

    def __contains__(self, five_tuple: FiveTuple) -> bool:
        return self.get(five_tuple) is not None

    def get(self, five_tuple: FiveTuple, priority: Priority = Priority.EXPLICIT_PATH) -> ExplicitPath | None:
        return self._paths.get(explicit_key(five_tuple, priority))

    def add(self, path: ExplicitPath) -> None:
        """Enter a path, replacing the flow's former one."""
        self._paths[path.key] = path

    def discard(self, path: ExplicitPath) -> None:
        """Strike a path out unless the flow has another one by now."""
        if self._paths.get(path.key) == path:
            del self._paths[path.key]

    def entry_gone(self, cookie: int, dpid: str) -> list[ExplicitPath]:
        """A switch reports that the entry with this cookie is no more. Returns the paths that are struck out."""
        gone = [path for path in self if path.cookie == cookie and path.first_switch == dpid]
        for path in gone:
            self.discard(path)
        return gone

    def entry(self, path: ExplicitPath) -> FlowEntry:
        """The entry a path needs at its first switch. Raises NoSuchPath."""
        details = path.five_tuple, path.cookie, path.idle_timeout_seconds
        if path.diverted:
            entry = self._planner.default_entry(details[0], path.first_switch, *details[1:])
        else:
            entry = self._planner.explicit_entry(details[0], path.path, *details[1:], path.traffic_class)
        return replace(entry, priority=path.priority, meter_id=path.meter.meter_id if path.meter else None,
                       hard_timeout_seconds=path.lifetime_seconds)

    def divert_dead(self) -> list[tuple[ExplicitPath, FlowEntry]]:
        """Mark the paths that lost a link as diverted. Returns each with the entry that sends it the default way."""
        network = self._planner.state.network
        diverted = []
        for path in self:
            if not path.diverted and not all(map(network.has_link, path.path.links)):
                path = replace(path, diverted=True)
                self.add(path)
                self._diverted[path.key] = self.entry(path)
                diverted.append((path, self._diverted[path.key]))
        return diverted

    def refreshed(self) -> list[tuple[ExplicitPath, FlowEntry]]:
        """Diverted paths whose default way came or went since the last call, each with its entry now."""
        entries = {path.key: (path, self.entry(path)) for path in self if path.diverted}
        changed = [entries[key] for key in entries if self._diverted.get(key) != entries[key][1]]
        self._diverted = {key: entry for key, (_, entry) in entries.items()}
        return changed

    def compare(self, dpid: str, found: Iterable[FlowEntry]) -> tuple[list[FlowEntry], list[FlowKey]]:
        """(entries that a switch lacks, keys of entries that would send packets astray).

        Entries of flows that nobody here knows are an earlier controller's; as long as they lead to their destination
        they are left to idle out.
        """
        there = {entry.key: entry for entry in found}
        missing = []
        for path in self:
            if path.first_switch == dpid:
                present = there.pop(path.key, None)
                try:
                    wanted = self.entry(path)
                except NoSuchPath:
                    continue
                if present != wanted:
                    missing.append(wanted)
        return missing, [key for key, entry in there.items() if not self._leads_home(dpid, entry)]

    def _leads_home(self, dpid: str, entry: FlowEntry) -> bool:
        state = self._planner.state
        host = state.hosts.get(dict(entry.match).get("ipv4_dst", ""))
        if host is None:
            return False
        match entry.actions:
            case (PushLabel(label=label), Output(port_no=port_no)) | (
                    PushLabel(label=label), SetQueue(), Output(port_no=port_no)):
                labels, hop = self._planner.labels, self._planner.label_hop(dpid, label)
                return (label in labels and labels.destination(label) == host.dpid and hop is not None
                        and state.network.has_link((dpid, hop)) and state.port_toward(dpid, hop) == port_no)
            case (Output(port_no=port_no),):
                return host.dpid == dpid and host.port_no == port_no
            case _:
                return entry.actions == self._planner.default_entry(
                    _five_tuple_of(entry), dpid, entry.cookie, entry.idle_timeout_seconds).actions


def _five_tuple_of(entry: FlowEntry) -> FiveTuple:
    fields = dict(entry.match)
    return FiveTuple(fields.get("ipv4_src", ""), fields.get("ipv4_dst", ""), fields.get("ip_proto", 0),
                     fields.get("tcp_src", fields.get("udp_src", 0)), fields.get("tcp_dst", fields.get("udp_dst", 0)))
