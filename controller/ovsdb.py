"""Port capacities from a switch's Open vSwitch database (RFC 7047), over one short connection per look."""

from __future__ import annotations

import json
from typing import Any

import eventlet
from eventlet.green import socket

MAX_REPLY_BYTES = 16 << 20
TABLES = {
    "Bridge": ["datapath_id", "ports"],
    "Port": ["_uuid", "interfaces", "qos"],
    "Interface": ["_uuid", "ofport", "external_ids", "link_speed"],
    "QoS": ["_uuid", "other_config"],
}


class DatabaseUnreachable(Exception):
    """The database does not answer, or answers something else than OVSDB."""


def read_capacities(address: str, port: int, dpid: str, timeout_seconds: float = 3.0) -> dict[int, float]:
    """Bits per second by OpenFlow port number, for the bridge with this datapath id.

    The first of these that a port has: its `external_ids:capacity_bps`, its QoS's `max-rate`, its link speed. Ports
    with none are left out. Blocks the calling green thread only. Raises DatabaseUnreachable.
    """
    operations = [{"op": "select", "table": table, "where": [], "columns": columns}
                  for table, columns in TABLES.items()]
    try:
        with eventlet.Timeout(timeout_seconds), socket.create_connection((address, port)) as connection:
            results = _transact(connection, operations)
        rows = {table: result["rows"] for table, result in zip(TABLES, results, strict=False)}
        return capacities_of(rows, dpid)
    except (OSError, eventlet.Timeout, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DatabaseUnreachable(f"no Open vSwitch database at tcp:{address}:{port}: {error!r}") from error


def _transact(connection: Any, operations: list[dict[str, Any]]) -> list[Any]:
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


def capacities_of(rows: dict[str, list[dict[str, Any]]], dpid: str) -> dict[int, float]:
    """Capacities by port number, from the rows of a database as JSON. Raises KeyError or ValueError on bad rows."""
    bridge_ports = {uuid for bridge in rows["Bridge"] if dpid in _strings(bridge["datapath_id"])
                    for uuid in _strings(bridge["ports"])}
    interfaces = {uuid: row for row in rows["Interface"] for uuid in _strings(row["_uuid"])}
    max_rates = {uuid: _map(row["other_config"]).get("max-rate") for row in rows["QoS"]
                 for uuid in _strings(row["_uuid"])}
    capacities = {}
    for row in rows["Port"]:
        if not bridge_ports.issuperset(_strings(row["_uuid"])):
            continue
        max_rate = next((max_rates.get(uuid) for uuid in _strings(row["qos"])), None)
        for uuid in _strings(row["interfaces"]):
            interface = interfaces.get(uuid, {})
            told = _map(interface.get("external_ids", ["map", []])).get("capacity_bps")
            link_speed = interface.get("link_speed")
            capacity = next((float(value) for value in (told, max_rate, link_speed)
                             if isinstance(value, (int, str)) and float(value) > 0), None)
            if capacity is not None and isinstance(interface.get("ofport"), int):
                capacities[interface["ofport"]] = capacity
    return capacities


def _strings(value: Any) -> list[str]:
    """OVSDB's notation of a string, a UUID, or a set of these (RFC 7047, section 5.1)."""
    if isinstance(value, list) and value[0] == "set":
        return [string for element in value[1] for string in _strings(element)]
    return [value[1] if isinstance(value, list) else value]


def _map(value: Any) -> dict[str, str]:
    return dict(value[1])
