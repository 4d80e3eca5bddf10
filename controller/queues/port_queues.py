"""How ports between switches are sliced into queues (MinCOF, section III-B), as rows of Open vSwitch's database.

The controller owns the `queues` of a port's QoS record and the Queue rows in it. The rest is the switch's: the rate
of the port (the record's `max-rate`) and what sends a packet to a queue by its MPLS traffic class. No sockets here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from speedwell.controller.policy.network.traffic_classes import QueueClass
from speedwell.controller.switches.ovsdb import MAX_RATE_BPS, MIN_RATE_BPS, Rows, mapping, rate_bps, strings

QUEUE_TABLES = {
    "Bridge": ["datapath_id", "datapath_type", "ports"],
    "Port": ["_uuid", "interfaces", "qos"],
    "Interface": ["_uuid", "name", "ofport", "mtu"],
    "QoS": ["_uuid", "type", "other_config", "queues"],
    "Queue": ["_uuid", "other_config"],
}
QOS_TYPE = "linux-htb"
_ETHERNET_HEADER_BYTES = 14
_DEFAULT_MTU_BYTES, _MAX_MTU_BYTES = 1500, 65535
_BURST_SECONDS = 0.001


@dataclass(frozen=True, slots=True)
class PortQueues:
    """The queues of one port as its switch's database has them. Rates in bits/s."""

    port_no: int
    port_uuid: str
    mtu_bytes: int
    qos_uuid: str | None = None
    qos_type: str = ""
    max_bps: int | None = None
    bad_max_rate: str | None = None
    """What its QoS record has instead of a rate that a port can have."""
    queues: dict[int, tuple[str, dict[str, str]]] = field(default_factory=dict)
    """(row's UUID, other_config) by queue number."""


@dataclass(frozen=True, slots=True)
class SwitchQueues:
    """All ports of a bridge. `is_kernel` says that the kernel forwards, so that `set_queue` works."""

    ports: dict[int, PortQueues]
    is_kernel: bool


def queues_of(rows: Rows, dpid: str) -> SwitchQueues:
    """What a database says of the bridge with a datapath id. Raises KeyError, ValueError or TypeError on bad rows."""
    bridges = [bridge for bridge in rows["Bridge"] if dpid in strings(bridge["datapath_id"])]
    ours = {uuid for bridge in bridges for uuid in strings(bridge["ports"])}
    interfaces = {strings(row["_uuid"])[0]: row for row in rows["Interface"]}
    records = {strings(row["_uuid"])[0]: row for row in rows["QoS"]}
    settings = {strings(row["_uuid"])[0]: mapping(row["other_config"]) for row in rows["Queue"]}
    ports = {}
    for row in rows["Port"]:
        uuid = strings(row["_uuid"])[0]
        if uuid not in ours:
            continue
        record = next((records[qos] for qos in strings(row["qos"]) if qos in records), None)
        for interface in (interfaces.get(each, {}) for each in strings(row["interfaces"])):
            if isinstance(interface.get("ofport"), int):
                port = _port(interface, uuid, record, settings)
                ports[port.port_no] = port
    return SwitchQueues(ports, any(bridge["datapath_type"] in ("", "system") for bridge in bridges))


def _port(interface: dict[str, Any], uuid: str, record: dict[str, Any] | None,
          settings: dict[str, dict[str, str]]) -> PortQueues:
    mtu = interface.get("mtu")
    mtu_bytes = mtu if isinstance(mtu, int) and 0 < mtu <= _MAX_MTU_BYTES else _DEFAULT_MTU_BYTES
    if record is None:
        return PortQueues(interface["ofport"], uuid, mtu_bytes)
    queues = {int(number): strings(value)[0] for number, value in mapping(record["queues"]).items()}
    max_rate = mapping(record["other_config"]).get("max-rate") or None
    max_bps = rate_bps(max_rate)
    return PortQueues(interface["ofport"], uuid, mtu_bytes, strings(record["_uuid"])[0], record["type"],
                      None if max_bps is None else int(max_bps), max_rate if max_bps is None else None,
                      {number: (queue, settings.get(queue, {})) for number, queue in queues.items()})


def wanted_settings(classes: Iterable[QueueClass], port_bps: int, mtu_bytes: int) -> dict[int, dict[str, str]]:
    """`other_config` of each Queue row of a port: its share for certain, the whole port if nobody else wants it."""
    # two full frames at least: HTB takes a class's whole frame at once
    burst_bits = 8 * max(2 * (mtu_bytes + _ETHERNET_HEADER_BYTES), round(port_bps * _BURST_SECONDS / 8))
    return {each.number: {"min-rate": str(round(each.share * port_bps)), "max-rate": str(port_bps),
                          "burst": str(burst_bits), "priority": str(each.precedence)} for each in classes}


def changes(port: PortQueues, classes: tuple[QueueClass, ...], capacity_bps: float) -> list[dict[str, Any]]:
    """The database operations that slice a port, none if it is sliced already.

    A port keeps the rate its QoS record has; one without gets a record with `capacity_bps`. Raises ValueError if
    the record is of another type than linux-htb: somebody else's, to be left alone; or if its rate is none.
    """
    if port.qos_uuid is not None and port.qos_type != QOS_TYPE:
        raise ValueError(f"its QoS record is of type {port.qos_type!r}, not {QOS_TYPE}")
    if port.bad_max_rate is not None:
        raise ValueError(f"the max-rate of its QoS record is {port.bad_max_rate[:40]!r}; "
                         f"set it to {MIN_RATE_BPS:.0f} to {MAX_RATE_BPS:.0f} bits/s")
    port_bps = port.max_bps or round(capacity_bps)
    wanted = wanted_settings(classes, port_bps, port.mtu_bytes)
    present = {number: port.queues[number] for number in wanted if number in port.queues}
    operations: list[dict[str, Any]] = [
        {"op": "update", "table": "Queue", "where": [["_uuid", "==", ["uuid", present[number][0]]]],
         "row": {"other_config": _map(wanted[number])}}
        for number in present if present[number][1] != wanted[number]]
    if set(port.queues) == set(wanted) and port.max_bps is not None:
        return operations
    operations += [{"op": "insert", "table": "Queue", "uuid-name": f"queue{number}",
                    "row": {"other_config": _map(wanted[number])}} for number in wanted if number not in present]
    references = ["map", [[number, ["uuid", present[number][0]] if number in present
                           else ["named-uuid", f"queue{number}"]] for number in wanted]]
    record = {"queues": references, "other_config": _map({"max-rate": str(port_bps)})}
    if port.qos_uuid is None:
        return [*operations, {"op": "insert", "table": "QoS", "uuid-name": "qos", "row": {"type": QOS_TYPE} | record},
                {"op": "update", "table": "Port", "where": [["_uuid", "==", ["uuid", port.port_uuid]]],
                 "row": {"qos": ["named-uuid", "qos"]}}]
    if port.max_bps is not None:
        del record["other_config"]
    return [*operations, {"op": "update", "table": "QoS", "where": [["_uuid", "==", ["uuid", port.qos_uuid]]],
                          "row": record}]


def _map(values: dict[str, str]) -> list[Any]:
    return ["map", [[key, value] for key, value in values.items()]]
