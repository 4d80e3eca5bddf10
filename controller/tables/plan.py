"""What every switch should hold, kept up with the network state. docs/reference/switch-tables.md is the reference.

`update` looks at what changed and changes as few entries as it can: a host concerns its own switch, and the others
only if the routes to racks change; a link concerns the two switches at its ends, and the groups that lead over it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from ipaddress import IPv4Address

from speedwell.controller.policy.network.graph import Link
from speedwell.controller.policy.network.labels import InheritedBlock, LabelBlock, LabelChanges, Labels, labels_in
from speedwell.controller.policy.network.path_trees import bits_of
from speedwell.controller.policy.network.prefixes import Prefix, PrefixRoutes
from speedwell.controller.switches.entries import FlowEntry, FlowKey, Group, Output
from speedwell.controller.switches.layout import Table
from speedwell.controller.tables import entries
from speedwell.controller.tables.entries import DirtyEntries, SwitchTables
from speedwell.controller.tables.groups import NextHops, SwitchGroups
from speedwell.controller.tables.registry import TableRegistry
from speedwell.controller.topology import packet_in_limits
from speedwell.controller.topology.state import HostLocation, NetworkState

HOSTS_AT_ONCE, SWITCHES_AT_ONCE = 32, 16


class TablePlanner:
    """Plans tables from a network state. `update` follows it; what is asked for in between is as of its last end."""

    def __init__(self, state: NetworkState) -> None:
        self.state = state
        self.registry = TableRegistry()
        self.groups_of_others: defaultdict[str, set[int]] = defaultdict(set)
        """Numbers of groups that others use, by switch: no planned group gets them."""
        self.begin({})

    def begin(self, installed: Mapping[str, SwitchTables]) -> None:
        """Forget all plans, and take over what switches hold, by datapath id, from before or from another controller.

        Labels and groups that would be planned likewise keep their numbers. Other labels keep their entries, so that
        traffic under way keeps its paths, until `forget_inherited`.
        """
        self.labels = Labels()
        self.labels_exhausted: set[str] = set()
        """Edge switches to which no paths are given out, because no labels are left."""
        self._routes = PrefixRoutes()
        self._routes_to: dict[str, set[Prefix]] = {}
        self._edges: frozenset[str] = frozenset()
        self._hosts: dict[str, HostLocation] = {}
        self._ports: dict[Link, int] = {}
        self._queues: dict[str, tuple[int, ...]] = {}
        self._packet_ins = packet_in_limits.CurrentEntries(self.state)
        self._of_others: dict[str, list[FlowEntry]] = {}
        """What switches have of `_packet_ins` and of systems."""
        self._tables: dict[str, SwitchTables] = {}
        self._groups: dict[str, SwitchGroups] = {}
        self._arrivals: dict[int, dict[str, int]] = {}
        """By block the trees that switches hold labels of."""
        self._found: dict[str, SwitchTables] = {}
        self._is_first = True
        self._inherited: dict[str, dict[FlowKey, FlowEntry]] = {}
        """Entries of an earlier controller's labels."""
        self._dirty: dict[str, DirtyEntries] = {}
        self._relabelled: set[tuple[str, str]] = set()
        if installed:
            self._adopt(installed)

    # --- what there is to do ---

    def tables(self, dpid: str) -> SwitchTables:
        """What a switch should hold. Nothing of it counts as dirty when it is asked for the first time."""
        if dpid not in self._tables:
            self._tables[dpid] = SwitchTables()
            self._fill(dpid)
            del self._dirty[dpid]
        return self._tables[dpid]

    def pop_dirty(self) -> dict[str, DirtyEntries]:
        """What changed, by switch, since the last call."""
        dirty, self._dirty = self._dirty, {}
        return dirty

    def pop_relabelled(self) -> set[tuple[str, str]]:
        """(first, last) switches between which paths have other labels or groups since the last call."""
        moved, self._relabelled = self._relabelled, set()
        return moved

    def forget(self, dpid: str) -> None:
        """A switch is no longer waited for. Not to be called while an `update` is under way."""
        for kept in (self._of_others, self._tables, self._groups, self._found, self._inherited, self._dirty,
                     self.groups_of_others):
            kept.pop(dpid, None)
        self._packet_ins.forget(dpid)

    # --- following the state ---

    def assign_labels(self) -> None:
        """`update` in one go."""
        for _ in self.update():
            pass

    def update(self) -> Iterator[None]:
        """Plan for the network as it is now. Yields now and then, a few milliseconds apart, for others to run; what
        changes meanwhile is for the next call. Exhaust it before it is called again."""
        ports, edges, hosts = self.state.switch_ports(), frozenset(self.state.edge_switches()), dict(self.state.hosts)
        former_ports, self._ports = self._ports, ports
        changed_links = {link for link in former_ports.keys() | ports.keys()
                         if former_ports.get(link) != ports.get(link)} if ports != former_ports else set()
        former_edges, self._edges = self._edges, edges
        yield from self._hosts_changed(hosts)
        next_hops: dict[str, dict[str, NextHops | None]] = {}
        if changed_links or edges != former_edges:
            for changed in self.labels.update(ports.keys(), edges):
                self._labels_changed(changed, next_hops)
                yield
            self._links_changed(changed_links)
            for source in {link[0] for link in changed_links & former_ports.keys() & ports.keys()} & edges:
                next_hops.setdefault(source, {}).update(
                    (destination, self._next_hops_to(source, destination)) for destination in edges - {source})
            if self._is_first:
                self._keep_inherited()
            self.labels_exhausted = self.labels.without_labels
            yield
        for dpid, next_hops_to in next_hops.items():
            self._next_hops_changed(dpid, next_hops_to)
            yield
        for dpid in edges ^ former_edges:
            if dpid not in edges:
                self._groups.pop(dpid, None)
            self._fill(dpid)
            yield
        if self._queues != self.state.set_queue_classes:
            self._queues = dict(self.state.set_queue_classes)
            self.fill_all()
        yield
        yield from self._others_changed()

    def fill_all(self) -> None:
        """Something changed that every switch's tables depend on."""
        for dpid in self._tables:
            self._fill(dpid)

    def _entries_of(self, host: HostLocation) -> Iterable[FlowEntry]:
        return entries.host_entries(host, self.registry.after(Table.SOURCES), self.state.settings.trust_dscp)

    def _hosts_changed(self, hosts: dict[str, HostLocation]) -> Iterator[None]:
        former, self._hosts = self._hosts, hosts
        gone = [ip for ip in former if ip not in hosts]
        changed = [ip for ip, host in hosts.items() if former.get(ip) is not host]
        for number, ip in enumerate([*gone, *changed], 1):
            if number % HOSTS_AT_ONCE == 0:
                yield
            old, new = former.get(ip), hosts.get(ip)
            if old == new:
                continue
            for host, is_wanted in ((old, False), (new, True)):
                if host is not None and host.dpid in self._tables and host.dpid in self._edges:
                    for entry in self._entries_of(host):
                        self._set(host.dpid, entry.key, entry if is_wanted else None)
            leading, stale = self._routes.set_host(int(IPv4Address(ip)), new.dpid if new else None)
            self._routes_changed(leading, stale)

    def _others_changed(self) -> Iterator[None]:
        for number, dpid in enumerate(list(self._tables), 1):
            former, latest = self._of_others.get(dpid, []), self._from_others(dpid)
            if latest != former:
                wanted = {entry.key: entry for entry in latest}
                for key in {entry.key for entry in former} | wanted.keys():
                    self._set(dpid, key, wanted.get(key))
            if number % SWITCHES_AT_ONCE == 0:
                yield

    def _from_others(self, dpid: str) -> list[FlowEntry]:
        found = self._found.get(dpid, SwitchTables()).flows.values()
        self._of_others[dpid] = [*self._packet_ins.of(dpid, self.registry.after(Table.SOURCES)),
                                 *self.registry.owned_entries(dpid, found)]
        return self._of_others[dpid]

    def _routes_changed(self, leading: Mapping[Prefix, str], stale: Iterable[Prefix]) -> None:
        for prefix in stale:
            for prefixes in self._routes_to.values():
                prefixes.discard(prefix)
            for dpid in self._edges & self._tables.keys():
                self._set(dpid, entries.route_key(prefix), None)
                self._set(dpid, entries.arp_route_key(prefix), None)
        for prefix, destination in leading.items():
            for prefixes in self._routes_to.values():
                prefixes.discard(prefix)
            self._routes_to.setdefault(destination, set()).add(prefix)
            for dpid in self._edges & self._tables.keys():
                self._set_route(dpid, prefix, destination)

    def _labels_changed(self, changed: LabelChanges, next_hops: dict[str, dict[str, NextHops | None]]) -> None:
        """Note a destination's labels, and what it means for the next hops of edge switches, which are set later."""
        for block in changed.ended:
            self._set_arrivals(block, {})
        for block in changed.made:
            if not self._is_first:
                self._drop_inherited(block.base)    # adopted since
            self._set_arrivals(block, block.arrivals)
        destination = changed.destination
        for source in changed.sources:
            next_hops.setdefault(source, {})[destination] = self._next_hops_to(source, destination)
        if changed.made or changed.ended:
            self._relabelled |= {(source, destination) for source in changed.sources}

    def _next_hops_to(self, source: str, destination: str) -> NextHops | None:
        block = self.labels.block_of(source, destination) if source in self._edges else None
        if block is None:
            return None
        near = tuple(sorted(block.trees.before[block.destination]))
        return NextHops(near, block.bits, tuple((self._ports[source, neighbour], choices)
                                                for neighbour, choices in block.trees.choices_by_hop(source)))

    def _set_arrivals(self, block: LabelBlock, arrivals: Mapping[str, int]) -> None:
        former = self._arrivals.pop(block.base, {})
        if arrivals:
            self._arrivals[block.base] = dict(arrivals)
        for dpid in former.keys() | arrivals.keys():
            if dpid in self._tables:
                for tree in bits_of(former.get(dpid, 0) & ~arrivals.get(dpid, 0)):
                    self._set(dpid, entries.label_key(block.base + tree), None)
                if arrivals.get(dpid, 0) & ~former.get(dpid, 0):
                    self._set_labels(dpid, block)

    def _set_labels(self, dpid: str, block: LabelBlock) -> None:
        cookie = entries.label_cookie(block.base, block.bits)
        for label, neighbour in labels_in(block, dpid):
            port_no = None if neighbour is None else self._ports.get((dpid, neighbour))
            is_dead = neighbour is not None and port_no is None
            self._set(dpid, entries.label_key(label),
                      None if is_dead else entries.label_entry(label, cookie, port_no))

    def _links_changed(self, links: set[Link]) -> None:
        """Entries of labels go and come with the links that they lead over."""
        for dpid, neighbour in links:
            if dpid not in self._tables:
                continue
            port_no = self._ports.get((dpid, neighbour))
            for block in self.labels.blocks:
                mask = block.trees.hops.get(dpid, {}).get(neighbour, 0) & block.arrivals.get(dpid, 0)
                cookie = entries.label_cookie(block.base, block.bits)
                for tree in bits_of(mask):
                    label = block.base + tree
                    self._set(dpid, entries.label_key(label),
                              None if port_no is None else entries.label_entry(label, cookie, port_no))

    def _next_hops_changed(self, dpid: str, next_hops_to: Mapping[str, NextHops | None]) -> None:
        if dpid not in self._groups:
            found = self._found.get(dpid, SwitchTables()).groups
            self._groups[dpid] = SwitchGroups(found, self.groups_of_others[dpid])
        groups = self._groups[dpid]
        regrouped = groups.set_next_hops(next_hops_to) | {destination for destination in next_hops_to
                                                          if (dpid, destination) in self._relabelled}
        self._relabelled |= {(dpid, destination) for destination in regrouped}
        if dpid not in self._tables:
            return
        for group_id in groups.changed:
            self._set_group(dpid, group_id, groups.groups.get(group_id))
        groups.changed.clear()
        for destination in regrouped:
            for prefix in self._routes_to.get(destination, ()):
                self._set_route(dpid, prefix, destination)

    def _set_route(self, dpid: str, prefix: Prefix, destination: str) -> None:
        if destination == dpid:
            self._set(dpid, entries.route_key(prefix), None)
            self._set(dpid, entries.arp_route_key(prefix), None)
        else:
            for entry in entries.route_entries(prefix, self.default_route(dpid, destination)):
                self._set(dpid, entry.key, entry)

    def _set(self, dpid: str, key: FlowKey, entry: FlowEntry | None) -> None:
        flows = self._tables[dpid].flows
        former = flows.get(key)
        if entry is former or entry == former:
            return
        if entry is None:
            del flows[key]
        else:
            flows[key] = entry
        self._dirty.setdefault(dpid, DirtyEntries()).flows.add(key)

    def _set_group(self, dpid: str, group_id: int, group: Group | None) -> None:
        groups = self._tables[dpid].groups
        if group is None:
            groups.pop(group_id, None)
        else:
            groups[group_id] = group
        self._dirty.setdefault(dpid, DirtyEntries()).groups.add(group_id)

    def _fill(self, dpid: str) -> None:
        """Plan one switch from the beginning."""
        if dpid not in self._tables:
            return
        former, tables = self._tables[dpid], SwitchTables()
        self._tables[dpid] = tables
        tables.add(entries.STATIC_ENTRIES)
        tables.add(self._from_others(dpid))
        tables.add(map(entries.queue_entry, self.state.set_queue_classes.get(dpid, ())))
        tables.flows.update(self._inherited.get(dpid, {}))
        for block in self.labels.blocks:
            self._set_labels(dpid, block)
        if dpid in self._edges:
            for host in self._hosts.values():
                if host.dpid == dpid:
                    tables.add(self._entries_of(host))
            for prefix, destination in self._routes.routes.items():
                self._set_route(dpid, prefix, destination)
            if dpid in self._groups:
                tables.groups = dict(self._groups[dpid].groups)
                self._groups[dpid].changed.clear()
        dirty = self._dirty.setdefault(dpid, DirtyEntries())
        dirty.flows |= former.flows.keys() | tables.flows.keys()
        dirty.groups |= former.groups.keys() | tables.groups.keys()

    # --- an earlier controller ---

    def _adopt(self, installed: Mapping[str, SwitchTables]) -> None:
        self._found = dict(installed)
        destinations: dict[tuple[int, int], set[str]] = {}
        hops: dict[tuple[int, int], dict[str, dict[int, str]]] = {}
        for dpid, tables in installed.items():
            for entry in tables.flows.values():
                if not entries.is_label(entry):
                    continue
                block = entries.block_of_cookie(entry.cookie)
                tree = dict(entry.match).get("mpls_label", 0) - block[0]
                match entry.actions:
                    case () if entry.goto == Table.UNLABEL:
                        destinations.setdefault(block, set()).add(dpid)
                    case (Output(port_no=port_no),) if (dpid, port_no) in self.state.links:
                        neighbour = self.state.links[dpid, port_no][0]
                        hops.setdefault(block, {}).setdefault(dpid, {})[tree] = neighbour
        self.labels.adopt(InheritedBlock(ends.pop(), *block, hops.get(block, {}))
                          for block, ends in sorted(destinations.items()) if len(ends) == 1)
        self._inherited = {dpid: {key: entry for key, entry in tables.flows.items() if entries.is_label(entry)}
                           for dpid, tables in installed.items()}

    def _keep_inherited(self) -> None:
        """Of an earlier controller's labels, keep those that are none of this one's."""
        self._is_first = False
        inherited = {block.base for block in self.labels.not_adopted()}
        kept = {dpid: {key: entry for key, entry in flows.items()
                       if entries.block_of_cookie(entry.cookie)[0] in inherited}
                for dpid, flows in self._inherited.items()}
        self._inherited = {dpid: flows for dpid, flows in kept.items() if flows}
        for dpid, flows in self._inherited.items():
            if dpid in self._tables:
                for key, entry in flows.items():
                    self._set(dpid, key, entry)

    def forget_inherited(self, used: Iterable[int]) -> bool:
        """Entries of explicit paths use these labels: what an earlier controller left besides is wanted no more.
        Returns whether there was any."""
        labels = frozenset(used)
        unused = [found for found in self.labels.not_adopted()
                  if labels.isdisjoint(range(found.base, found.base + (1 << found.bits)))]
        for found in unused:
            self.labels.forget(found)
            self._drop_inherited(found.base)
        return bool(unused)

    def _drop_inherited(self, base: int) -> None:
        """The labels of this block are an earlier controller's no more."""
        for dpid, flows in list(self._inherited.items()):
            for key in [key for key, entry in flows.items() if entries.block_of_cookie(entry.cookie)[0] == base]:
                del flows[key]
                if dpid in self._tables:
                    self._set(dpid, key, None)
            if not flows:
                del self._inherited[dpid]

    # --- look-ups for single flows ---

    def has_group(self, dpid: str, group_id: int) -> bool:
        """Whether a switch should hold this group."""
        return dpid in self._groups and group_id in self._groups[dpid].groups

    def default_route(self, dpid: str, destination: str) -> tuple[int, int] | None:
        """(first label of the block, group) from an edge switch to another."""
        block = self.labels.block_of(dpid, destination)
        groups = self._groups.get(dpid)
        group_id = groups.group_toward(destination) if groups else None
        return None if block is None or group_id is None else (block.base, group_id)

    def failover_group(self, dpid: str, neighbour: str, destination: str) -> int | None:
        """The group that leads from an edge switch by a neighbour to another edge switch."""
        groups, port_no = self._groups.get(dpid), self._ports.get((dpid, neighbour))
        return groups.failover_group(destination, port_no) if groups and port_no is not None else None

    def destination_of(self, dpid: str, label: int) -> str | None:
        """The edge switch that a packet reaches which a switch gets with this label; None if it goes astray."""
        if self.labels.is_seen_by(dpid, label):
            return self.labels.destination(label)
        if entries.label_key(label) not in self._inherited.get(dpid, {}):
            return None
        return next((found.destination for found in self.labels.not_adopted()
                     if label in range(found.base, found.base + (1 << found.bits))), None)
