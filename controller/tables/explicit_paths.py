"""The one entry of a single flow, at the first switch of its path, and where the packets go that it labels.

The rest of the path is in the tables that `plan` keeps: a label at every switch, a group at the first one.
"""

from __future__ import annotations

from speedwell.controller.errors import NoSuchPath
from speedwell.controller.policy.errors import UnknownPath
from speedwell.controller.policy.network.five_tuple import FiveTuple
from speedwell.controller.policy.network.graph import Path
from speedwell.controller.switches.entries import Action, FlowEntry, LoadLabel, Output, SetQueue, ToGroup
from speedwell.controller.tables import entries
from speedwell.controller.tables.plan import TablePlanner


class ExplicitPaths:
    """Makes entries from the plan as it is now."""

    def __init__(self, planner: TablePlanner) -> None:
        self._planner = planner
        self.state = planner.state

    def entry(self, five_tuple: FiveTuple, path: Path, cookie: int, idle_timeout_seconds: int,
              traffic_class: int | None = None) -> FlowEntry:
        """What puts a flow on a path from host to host. Raises as `actions`."""
        return entries.explicit_entry(five_tuple, self.actions(path, traffic_class), cookie, idle_timeout_seconds)

    def actions(self, path: Path, traffic_class: int | None = None) -> tuple[Action, ...]:
        """Raises NoSuchPath if a link of the path, from host to host, is not live or the path has no label."""
        if len(path.nodes) < 3 or not self.state.network.has_path(path):
            dead = next((link for link in path.links if not self.state.network.has_link(link)), None)
            where = f" from {self.state.name_of(dead[0])} to {self.state.name_of(dead[1])}" if dead else ""
            raise NoSuchPath(f"the path {self._names(path)} has no live link{where}")
        switches = path.nodes[1:-1]
        if len(switches) == 1:
            return (Output(self.state.port_toward(switches[0], path.nodes[-1])),)
        queues = self.state.set_queue_classes.get(switches[0], ())
        queue = (SetQueue(traffic_class),) if traffic_class is not None and traffic_class in queues else ()
        label = self.label_of(Path(switches))
        group_id = self._planner.failover_group(switches[0], switches[1], switches[-1])
        if group_id is None:
            raise NoSuchPath(f"no group leads from {self.state.name_of(switches[0])} along the path yet")
        return (LoadLabel(label, traffic_class), *queue, ToGroup(group_id))

    def default_entry(self, five_tuple: FiveTuple, dpid: str, cookie: int, idle_timeout_seconds: int) -> FlowEntry:
        """What sends a flow where default traffic goes from a switch; nowhere if that is so."""
        host = self.state.hosts.get(five_tuple.destination)
        actions: tuple[Action, ...] = ()
        if host is not None and host.dpid == dpid:
            actions = (Output(host.port_no),)
        elif host is not None and (route := self._planner.default_route(dpid, host.dpid)):
            actions = (LoadLabel(route[0]), ToGroup(route[1]))
        return entries.explicit_entry(five_tuple, actions, cookie, idle_timeout_seconds)

    def label_of(self, switches: Path) -> int:
        """The label of a path between edge switches. Raises NoSuchPath for one that is not a shortest path."""
        try:
            return self._planner.labels.label_for(switches)
        except UnknownPath:
            raise NoSuchPath(f"no label for {self._names(switches)}: it is not among the shortest paths between edge "
                             "switches") from None

    def leads_to(self, dpid: str, actions: tuple[Action, ...]) -> str | None:
        """The edge switch where packets end that an entry at a switch labels; None if they go astray."""
        match actions:
            case (LoadLabel(label=label), *_, ToGroup(group_id=group_id)):
                group = self._planner.tables(dpid).groups.get(group_id)
                ports = [bucket.watch_port_no for bucket in group.buckets] if group else []
                first = self.state.links.get((dpid, ports[0])) if ports else None
                if group is not None and group.is_failover and first is not None:
                    return self._planner.destination_of(first[0], label)
        return None

    def _names(self, path: Path) -> str:
        return " -> ".join(map(self.state.name_of, path.nodes))
