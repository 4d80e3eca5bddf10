"""A switch's Open vSwitch database (RFC 7047), over one short connection per look, and the capacities in it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import eventlet
from eventlet.green import socket

Rows = dict[str, list[dict[str, Any]]]
"""Rows of tables, by the table's name, in the notation of RFC 7047."""
MAX_REPLY_BYTES = 16 << 20
MIN_RATE_BPS, MAX_RATE_BPS = 1e3, 1e15
"""What a port's rate may be, in bits per second: OpenFlow counts from 1 kbit/s, too."""
TABLES = {
    "Bridge": ["datapath_id", "ports"],
    "Port": ["_uuid", "interfaces", "qos"],
    "Interface": ["_uuid", "ofport", "external_ids", "link_speed"],
    "QoS": ["_uuid", "other_config"],
}


class DatabaseUnreachable(Exception):
    """The database does not answer, or answers something else than OVSDB."""


class DatabaseRefused(DatabaseUnreachable):
    """The database did not carry a transaction out; nothing of it is done."""


def read_capacities(address: str, port: int, dpid: str, timeout_seconds: float = 3.0) -> dict[int, float]:
    """Bits per second by OpenFlow port number, for the bridge with this datapath id.

    The first of these that a port has: its `external_ids:capacity_bps`, its QoS's `max-rate`, its link speed. Ports
    with none are left out. Blocks the calling green thread only. Raises DatabaseUnreachable.
    """
    rows = read_tables(address, port, TABLES, timeout_seconds)
    try:
        return capacities_of(rows, dpid)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DatabaseUnreachable(f"no Open vSwitch database at tcp:{address}:{port}: {error!r}") from error


def read_tables(address: str, port: int, tables: Mapping[str, Sequence[str]],
                timeout_seconds: float = 3.0) -> Rows:
    """All rows of some tables, with the columns named; as `transact`."""
    results = transact(address, port, [{"op": "select", "table": table, "where": [], "columns": list(columns)}
                                       for table, columns in tables.items()], timeout_seconds)
    try:
        return {table: result["rows"] for table, result in zip(tables, results, strict=True)}
    except (KeyError, ValueError) as error:
        raise DatabaseUnreachable(f"the database at tcp:{address}:{port} differs from ours: {error!r}") from error


def transact(address: str, port: int, operations: Sequence[dict[str, Any]],
             timeout_seconds: float = 3.0) -> list[Any]:
    """The results of some operations, all done or none. Blocks the calling green thread only.

    Raises DatabaseUnreachable, or DatabaseRefused with what the database has against it.
    """
    try:
        with eventlet.Timeout(timeout_seconds), socket.create_connection((address, port)) as connection:
            results = _transact(connection, operations)
    except (OSError, eventlet.Timeout, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DatabaseUnreachable(f"no Open vSwitch database at tcp:{address}:{port}: {error!r}") from error
    for result in results:
        if isinstance(result, dict) and result.get("error"):
            raise DatabaseRefused(f"the database at tcp:{address}:{port} refuses: {result['error']} "
                                  f"({result.get('details', 'no details')})")
    return results


def _transact(connection: Any, operations: Sequence[dict[str, Any]]) -> list[Any]:
    request = {"method": "transact", "params": ["Open_vSwitch", *operations], "id": 1}
    connection.sendall(json.dumps(request).encode())
    decoder = json.JSONDecoder()
    text = ""
    pending = b""
    while True:
        received = connection.recv(1 << 16)
        if not received or len(text) > MAX_REPLY_BYTES:
            raise ValueError("connection closed before the reply was complete")
        pending += received
        try:
            text += pending.decode()
        except UnicodeDecodeError:
            continue
        pending = b""
        # A reply ends in a brace; looking only then keeps a long one from being parsed over and over.
        while text.rstrip().endswith("}"):
            try:
                message, end = decoder.raw_decode(text)
            except ValueError:
                break
            text = text[end:].lstrip()
            if message.get("method") == "echo":
                connection.sendall(json.dumps({"result": message["params"], "error": None,
                                               "id": message["id"]}).encode())
            elif message.get("id") == 1:
                if message.get("error"):
                    raise ValueError(str(message["error"]))
                result: list[Any] = message["result"]
                return result


def capacities_of(rows: Rows, dpid: str) -> dict[int, float]:
    """Capacities by port number, from the rows of a database as JSON. Raises KeyError or ValueError on bad rows."""
    bridge_ports = {uuid for bridge in rows["Bridge"] if dpid in strings(bridge["datapath_id"])
                    for uuid in strings(bridge["ports"])}
    interfaces = {uuid: row for row in rows["Interface"] for uuid in strings(row["_uuid"])}
    max_rates = {uuid: mapping(row["other_config"]).get("max-rate") for row in rows["QoS"]
                 for uuid in strings(row["_uuid"])}
    capacities = {}
    for row in rows["Port"]:
        if not bridge_ports.issuperset(strings(row["_uuid"])):
            continue
        max_rate = next((max_rates.get(uuid) for uuid in strings(row["qos"])), None)
        for uuid in strings(row["interfaces"]):
            interface = interfaces.get(uuid, {})
            told = mapping(interface.get("external_ids", ["map", []])).get("capacity_bps")
            link_speed = interface.get("link_speed")
            capacity = next(filter(None, map(rate_bps, (told, max_rate, link_speed))), None)
            if capacity is not None and isinstance(interface.get("ofport"), int):
                capacities[interface["ofport"]] = capacity
    return capacities


def rate_bps(value: Any) -> float | None:
    """A rate that a port can have, in bits per second; None for anything else that somebody wrote there."""
    try:
        rate = float(value) if isinstance(value, (int, str)) else math.nan
    except (ValueError, OverflowError):
        return None
    return rate if MIN_RATE_BPS <= rate <= MAX_RATE_BPS else None


def strings(value: Any) -> list[str]:
    """OVSDB's notation of a string, a UUID, or a set of these (RFC 7047, section 5.1)."""
    if isinstance(value, list) and value[0] == "set":
        return [string for element in value[1] for string in strings(element)]
    return [value[1] if isinstance(value, list) else value]


def mapping(value: Any) -> dict[Any, Any]:
    """OVSDB's notation of a map."""
    return dict(value[1])


LIMIT_TABLES = {
    "Bridge": ["datapath_id", "controller"],
    "Controller": ["_uuid", "target", "controller_rate_limit", "controller_burst_limit"],
}
MIN_RATE_LIMIT, MIN_BURST_LIMIT = 100, 25
"""The lowest that Open vSwitch takes (ovs-vswitchd.conf.db(5), table Controller)."""


def limit_packet_ins(address: str, port: int, dpid: str, target: str, rate_per_second: int,
                     timeout_seconds: float = 3.0) -> bool:
    """Have a switch hand up at most so many packets a second on its connection to `target` ("tcp:ADDRESS:PORT").

    Open vSwitch shares the rate fairly among its ports. A lower limit that somebody else set stays. Returns whether
    anything was written. Blocks the calling green thread only. Raises DatabaseUnreachable or DatabaseRefused.
    """
    rows = read_tables(address, port, LIMIT_TABLES, timeout_seconds)
    try:
        operations = limits_to_write(rows, dpid, target, rate_per_second)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise DatabaseUnreachable(f"no Open vSwitch database at tcp:{address}:{port}: {error!r}") from error
    if operations:
        transact(address, port, operations, timeout_seconds)
    return bool(operations)


def limits_to_write(rows: Rows, dpid: str, target: str, rate_per_second: int) -> list[dict[str, Any]]:
    """The operations that limit packet-ins of a bridge, from its database's rows. Raises KeyError or the like on bad
    rows."""
    controllers = {uuid for bridge in rows["Bridge"] if dpid in strings(bridge["datapath_id"])
                   for uuid in strings(bridge["controller"])}
    limit = {"controller_rate_limit": max(MIN_RATE_LIMIT, rate_per_second),
             "controller_burst_limit": max(MIN_BURST_LIMIT, rate_per_second // 4)}
    operations = []
    for row in rows["Controller"]:
        [uuid] = strings(row["_uuid"])
        present = min(map(int, strings(row["controller_rate_limit"])), default=None)
        if uuid in controllers and row["target"] == target and (present is None or present > rate_per_second):
            operations.append({"op": "update", "table": "Controller", "row": limit,
                               "where": [["_uuid", "==", ["uuid", uuid]]]})
    return operations
