"""What each switch may hand up a second: a meter for each port that leads to hosts, and two for all other ports.

A meter of its own for each such port means that what one host sends takes nothing from the others, and nothing from
the probes between switches. A switch without meters, or without enough of them, hands up all; what then bounds it is
its own `controller_rate_limit` and the queue at the controller (`speedwell.controller.switches.packet_ins`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from speedwell.controller.switches.entries import (
    ETH_ARP,
    ETH_IPV4,
    ETH_LLDP,
    FIRST_PACKET_METER,
    LAST_PACKET_METER,
    PORT_CONTROLLER,
    FlowEntry,
    Output,
    PacketMeter,
    match,
)
from speedwell.controller.switches.layout import COOKIE_STATIC, Priority, Table
from speedwell.controller.topology.state import NetworkState

PROBES_METER, PACKETS_METER = FIRST_PACKET_METER, FIRST_PACKET_METER + 1
"""Of LLDP, and of all else, at ports that are not known to lead to hosts."""
UNDETERMINED_PORTS = 4
"""How many ports' worth of packets those ports together may hand up: a switch that connects has no others yet."""
TO_CONTROLLER = Output(PORT_CONTROLLER)


def entries(state: NetworkState, dpid: str, after_sources: int) -> list[FlowEntry]:
    """All entries by which a switch hands packets up, with the meters that it has.

    `after_sources` is the table to which IPv4 packets of unknown senders go on.
    """
    present = state.packet_in_meters.get(dpid, frozenset())
    found = entries_for_all_ports(state, dpid, after_sources)
    for port_no in state.edge_ports(dpid):
        meter_id = meter_of_port(port_no)
        if meter_id in present:
            found += [replace(entry, match=match(in_port=port_no, **dict(entry.match)), meter_id=meter_id)
                      for entry in _entries(Priority.EDGE_PORT, Priority.EDGE_PORT, after_sources)]
    return found


class CurrentEntries:
    """`entries` of each switch: the same list for as long as nothing changes that it is made of."""

    def __init__(self, state: NetworkState) -> None:
        self._state = state
        self._entries: dict[str, tuple[object, list[FlowEntry]]] = {}

    def of(self, dpid: str, after_sources: int) -> list[FlowEntry]:
        made_of = self._state.packet_in_meters.get(dpid), tuple(self._state.edge_ports(dpid)), after_sources
        if dpid not in self._entries or self._entries[dpid][0] != made_of:
            self._entries[dpid] = made_of, entries(self._state, dpid, after_sources)
        return self._entries[dpid][1]

    def forget(self, dpid: str) -> None:
        self._entries.pop(dpid, None)


def entries_for_all_ports(state: NetworkState, dpid: str, after_sources: int) -> list[FlowEntry]:
    """Those of `entries` that need not know what a port leads to."""
    present = state.packet_in_meters.get(dpid, frozenset())
    everywhere = [*_entries(Priority.CLASS, Priority.MISS, after_sources),
                  # asked for by a host of another switch
                  FlowEntry(Table.DELIVERY, Priority.CLASS, match(eth_type=ETH_ARP), (TO_CONTROLLER,),
                            cookie=COOKIE_STATIC)]
    return [_metered(entry, PROBES_METER if _is_lldp(entry) else PACKETS_METER, present) for entry in everywhere]


def _entries(of_class: Priority, miss: Priority, after_sources: int) -> Iterable[FlowEntry]:
    yield FlowEntry(Table.CLASSIFY, of_class, match(eth_type=ETH_LLDP), (TO_CONTROLLER,), cookie=COOKIE_STATIC)
    yield FlowEntry(Table.SOURCES, of_class, match(eth_type=ETH_ARP), (TO_CONTROLLER,), cookie=COOKIE_STATIC)
    yield FlowEntry(Table.SOURCES, of_class, match(eth_type=ETH_IPV4), (TO_CONTROLLER,), after_sources, COOKIE_STATIC)
    yield FlowEntry(Table.ROUTES, miss, match(), (TO_CONTROLLER,), cookie=COOKIE_STATIC)
    yield FlowEntry(Table.NEIGHBOURS, miss, match(), (TO_CONTROLLER,), cookie=COOKIE_STATIC)


def probe_entry(state: NetworkState, dpid: str) -> FlowEntry:
    """The entry by which a switch hands probes up."""
    return next(entry for entry in entries(state, dpid, Table.ROUTES) if _is_lldp(entry))


def meter_numbers(state: NetworkState, dpid: str) -> list[int]:
    """The numbers of the meters that a switch should have."""
    of_ports = map(meter_of_port, state.edge_ports(dpid))
    return [PROBES_METER, PACKETS_METER, *(number for number in of_ports if number is not None)]


def meter_of_port(port_no: int) -> int | None:
    """The number of a port's own meter; None for ports with numbers beyond all reason."""
    meter_id = PACKETS_METER + port_no
    return meter_id if meter_id <= LAST_PACKET_METER else None


def meter(state: NetworkState, number: int) -> PacketMeter:
    """The meter of this number: a burst is what may come in a second."""
    of_port = state.settings.packet_ins_per_port
    shared = {PROBES_METER: state.settings.probes_per_second, PACKETS_METER: UNDETERMINED_PORTS * of_port}
    rate = shared.get(number, of_port)
    return PacketMeter(number, rate, rate)


def _is_lldp(entry: FlowEntry) -> bool:
    return entry.table == Table.CLASSIFY


def _metered(entry: FlowEntry, meter_id: int, present: frozenset[int]) -> FlowEntry:
    return replace(entry, meter_id=meter_id) if meter_id in present else entry
