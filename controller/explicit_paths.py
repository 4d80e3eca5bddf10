"""The flows that have an entry of their own at their first switch. No Ryu, no sockets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from controller.errors import NoSuchPath
from controller.openflow import FlowEntry, FlowKey, Output, PushLabel, SetQueue
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

    @property
    def first_switch(self) -> str:
        return self.path.nodes[1]

    @property
    def key(self) -> FlowKey:
        """The key of its entry."""
        return explicit_key(self.five_tuple)


class ExplicitPaths:
    """A book of explicit paths, one per flow."""

    def __init__(self, planner: Planner) -> None:
        self._planner = planner
        self._paths: dict[FiveTuple, ExplicitPath] = {}
        self._diverted: dict[FiveTuple, FlowEntry] = {}
        """The entries that diverted paths were given."""

    def __iter__(self) -> Iterator[ExplicitPath]:
        return iter(list(self._paths.values()))

    def __len__(self) -> int:
        return len(self._paths)

    def __contains__(self, five_tuple: object) -> bool:
        return five_tuple in self._paths

    def get(self, five_tuple: FiveTuple) -> ExplicitPath | None:
        return self._paths.get(five_tuple)

    def add(self, path: ExplicitPath) -> None:
        """Enter a path, replacing the flow's former one."""
        self._paths[path.five_tuple] = path

    def discard(self, path: ExplicitPath) -> None:
        """Strike a path out unless the flow has another one by now."""
        if self._paths.get(path.five_tuple) == path:
            del self._paths[path.five_tuple]

    def entry_gone(self, cookie: int, dpid: str) -> None:
        """A switch reports that the entry with this cookie is no more."""
        for path in self:
            if path.cookie == cookie and path.first_switch == dpid:
                self.discard(path)

    def entry(self, path: ExplicitPath) -> FlowEntry:
        """The entry a path needs at its first switch. Raises NoSuchPath."""
        details = path.five_tuple, path.cookie, path.idle_timeout_seconds
        if path.diverted:
            return self._planner.default_entry(details[0], path.first_switch, *details[1:])
        return self._planner.explicit_entry(details[0], path.path, *details[1:], path.traffic_class)

    def divert_dead(self) -> list[tuple[ExplicitPath, FlowEntry]]:
        """Mark the paths that lost a link as diverted. Returns each with the entry that sends it the default way."""
        network = self._planner.state.network
        diverted = []
        for path in self:
            if not path.diverted and not all(map(network.has_link, path.path.links)):
                path = replace(path, diverted=True)
                self.add(path)
                self._diverted[path.five_tuple] = self.entry(path)
                diverted.append((path, self._diverted[path.five_tuple]))
        return diverted

    def refreshed(self) -> list[tuple[ExplicitPath, FlowEntry]]:
        """Diverted paths whose default way came or went since the last call, each with its entry now."""
        entries = {path.five_tuple: (path, self.entry(path)) for path in self if path.diverted}
        changed = [entries[flow] for flow in entries if self._diverted.get(flow) != entries[flow][1]]
        self._diverted = {flow: entry for flow, (_, entry) in entries.items()}
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
                return entry == self._planner.default_entry(
                    _five_tuple_of(entry), dpid, entry.cookie, entry.idle_timeout_seconds)


def _five_tuple_of(entry: FlowEntry) -> FiveTuple:
    fields = dict(entry.match)
    return FiveTuple(fields.get("ipv4_src", ""), fields.get("ipv4_dst", ""), fields.get("ip_proto", 0),
                     fields.get("tcp_src", fields.get("udp_src", 0)), fields.get("tcp_dst", fields.get("udp_dst", 0)))
