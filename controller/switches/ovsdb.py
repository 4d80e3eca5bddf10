"""A switch's Open vSwitch database (RFC 7047), over one short connection per look, and the capacities in it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any, NamedTuple, TypeVar

import eventlet
from eventlet.green import socket

from speedwell.controller.secure import ENDED, NotAdmitted, SecureSocket
from speedwell.fs.identity.bundle import Identity
from speedwell.fs.identity.roles import SWITCH, host_of

Rows = dict[str, list[dict[str, Any]]]
"""Rows of tables, by the table's name, in the notation of RFC 7047."""
MAX_REPLY_BYTES = 8 << 20
MAX_QUOTED = 200
"""Characters of what a database says that are repeated in messages."""
BAD_ROW = (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError)
"""What reading a row raises that is not as in RFC 7047, or not as in Open vSwitch's schema."""
MIN_RATE_BPS, MAX_RATE_BPS = 1e3, 1e15
"""What a port's rate may be, in bits per second: OpenFlow counts from 1 kbit/s, too."""
MAX_PORT_NO = 0xFFFFFF00
T = TypeVar("T")
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


class DatabaseNotProven(DatabaseUnreachable):
    """What answers does not prove to be the database of the switch."""


class Database(NamedTuple):
    """Where the database of switch `dpid` listens: with an `identity` over TLS, and only if its certificate is the
    switch's."""

    address: str
    port: int
    dpid: str = ""
    identity: Identity | None = None
    may_write: Callable[[], bool] = lambda: True
    """Asked when a transaction is about to be sent: a controller that stood still may not lead any more."""

    def __str__(self) -> str:
        return f"{'ssl' if self.identity else 'tcp'}:{self.address}:{self.port}"

    @contextmanager
    def connected(self) -> Iterator[Any]:
        """A connection. Blocks the calling green thread only. Raises NotAdmitted, OSError."""
        connection = socket.create_connection((self.address, self.port))
        if self.identity is not None:
            connection = SecureSocket.over(connection, self.identity.client_context(to_switches=True),
                                           server_hostname=host_of(SWITCH))
        with closing(connection):
            if self.identity is not None:
                peer = connection.prove(self.identity, SWITCH)
                if peer.name != self.dpid:
                    raise NotAdmitted("other-certificate", f"its certificate is for {peer}, not for {self.dpid}")
            yield connection


def read_capacities(database: Database, timeout_seconds: float = 3.0,
                    refuse: Callable[[str], object] = str) -> dict[int, float]:
    """Bits per second by OpenFlow port number, for the switch's bridge.

    The first of these that a port has: its `external_ids:capacity_bps`, its QoS's `max-rate`, its link speed. Ports
    with none are left out, and rows that cannot be are told to `refuse`. Blocks the calling green thread only. Raises
    DatabaseUnreachable.
    """
    return capacities_of(read_tables(database, TABLES, timeout_seconds), database.dpid, refuse)


def read_tables(database: Database, tables: Mapping[str, Sequence[str]], timeout_seconds: float = 3.0) -> Rows:
    """All rows of some tables, with the columns named; as `transact`."""
    results = transact(database, [{"op": "select", "table": table, "where": [], "columns": list(columns)}
                                  for table, columns in tables.items()], timeout_seconds)
    rows = {}
    for table, result in zip(tables, results, strict=False):
        found = result.get("rows") if isinstance(result, dict) else None
        if not isinstance(found, list) or not all(isinstance(row, dict) for row in found):
            raise DatabaseUnreachable(f"the database at {database} has no such rows of {table} as ours")
        rows[table] = found
    return rows


def transact(database: Database, operations: Sequence[dict[str, Any]], timeout_seconds: float = 3.0) -> list[Any]:
    """The results of some operations, all done or none. Blocks the calling green thread only.

    Raises DatabaseUnreachable, DatabaseNotProven, or DatabaseRefused with what the database has against it.
    """
    try:
        with eventlet.Timeout(timeout_seconds), database.connected() as connection:
            if not all(each["op"] == "select" for each in operations) and not database.may_write():
                raise DatabaseRefused(f"nothing is written to the database at {database}: another controller leads")
            results = _transact(connection, operations)
    except NotAdmitted as error:
        if error.why == ENDED:
            raise _unreachable(database, error) from error
        raise DatabaseNotProven(f"the database at {database} is refused: {error}") from None
    except (OSError, eventlet.Timeout, *BAD_ROW) as error:
        raise _unreachable(database, error) from error
    for result in results:
        if isinstance(result, dict) and result.get("error"):
            details = f"{result['error']} ({result.get('details', 'no details')})"
            raise DatabaseRefused(f"the database at {database} refuses: {details[:MAX_QUOTED]}")
    return results


def _unreachable(database: Database, error: BaseException) -> DatabaseUnreachable:
    return DatabaseUnreachable(f"no Open vSwitch database at {database}: {repr(error)[:MAX_QUOTED]}")


def _transact(connection: Any, operations: Sequence[dict[str, Any]]) -> list[Any]:
    request = {"method": "transact", "params": ["Open_vSwitch", *operations], "id": 1}
    connection.sendall(json.dumps(request).encode())

    def receive(size: int) -> bytes:
        eventlet.sleep(0)       # a database that says something at any time must not keep the others waiting
        received: bytes = connection.recv(size)
        return received

    for text in _objects(receive):
        message = json.loads(text)
        if message.get("method") == "echo":
            connection.sendall(json.dumps({"result": message["params"], "error": None, "id": message["id"]}).encode())
        elif message.get("id") == 1:
            if message.get("error"):
                raise ValueError(str(message["error"]))
            results = message["result"]
            # One more says why a transaction could not be committed.
            if not isinstance(results, list) or len(results) < len(operations):
                raise ValueError("not every operation has a result")
            return results
    raise ValueError("connection closed before the reply was complete")


_BRACES = re.compile(rb'[{}"]|\\.?', re.DOTALL)


def _objects(receive: Callable[[int], bytes]) -> Iterator[bytes]:
    """The JSON objects that come, one after the other, each byte looked at once. Raises ValueError for a long one."""
    buffer, looked_at, depth, in_string = bytearray(), 0, 0, False
    while received := receive(1 << 16):
        buffer += received
        if len(buffer) > MAX_REPLY_BYTES:
            raise ValueError(f"a reply of more than {MAX_REPLY_BYTES} bytes")
        while found := _BRACES.search(buffer, looked_at):
            if found.group() == b"\\":
                break       # what is escaped comes with the next bytes
            looked_at = found.end()
            if found.group() == b'"':
                in_string = not in_string
            elif not in_string and found.group() in b"{}":
                depth += 1 if found.group() == b"{" else -1
                if depth <= 0:
                    yield bytes(buffer[:looked_at])
                    del buffer[:looked_at]
                    looked_at = depth = 0
        else:
            looked_at = len(buffer)


def capacities_of(rows: Rows, dpid: str, refuse: Callable[[str], object] = str) -> dict[int, float]:
    """Capacities by port number, from the rows of a database as JSON. Rows that cannot be are told to `refuse` and
    left out."""

    def of_each(table: str, read: Callable[[dict[str, Any]], Iterable[tuple[Any, T]]]) -> dict[Any, T]:
        found: dict[Any, T] = {}
        for row in rows[table]:
            try:
                found.update(list(read(row)))
            except BAD_ROW as error:
                refuse(f"a row of {table} cannot be: {repr(error)[:MAX_QUOTED]}")
        return found

    bridge_ports = of_each("Bridge", lambda row: [(uuid, True) for uuid in strings(row["ports"])]
                           if dpid in strings(row["datapath_id"]) else [])
    interfaces = of_each("Interface", lambda row: [(uuid, _interface(row)) for uuid in strings(row["_uuid"])])
    max_rates = of_each("QoS", lambda row: [(uuid, rate_bps(mapping(row["other_config"]).get("max-rate")))
                                            for uuid in strings(row["_uuid"])])

    def of_port(row: dict[str, Any]) -> Iterator[tuple[int, float]]:
        if not bridge_ports.keys() >= set(strings(row["_uuid"])):
            return
        max_rate = next((max_rates.get(uuid) for uuid in strings(row["qos"])), None)
        for uuid in strings(row["interfaces"]):
            port_no, told, link_speed = interfaces.get(uuid, (None, None, None))
            capacity = told or max_rate or link_speed
            if port_no is not None and capacity is not None:
                yield port_no, capacity

    return of_each("Port", of_port)


def _interface(row: dict[str, Any]) -> tuple[int | None, float | None, float | None]:
    """An interface's port number, the capacity it is said to have, and its link speed; None for what it has not."""
    told = mapping(row.get("external_ids", ["map", []])).get("capacity_bps")
    ofport = row.get("ofport")
    is_port = isinstance(ofport, int) and not isinstance(ofport, bool) and 0 < ofport <= MAX_PORT_NO
    return ofport if is_port else None, rate_bps(told), rate_bps(row.get("link_speed"))


def rate_bps(value: Any) -> float | None:
    """A rate that a port can have, in bits per second; None for anything else that somebody wrote there."""
    try:
        rate = float(value) if isinstance(value, (int, str)) and not isinstance(value, bool) else math.nan
    except (ValueError, OverflowError):
        return None
    return rate if MIN_RATE_BPS <= rate <= MAX_RATE_BPS else None


def strings(value: Any) -> list[str]:
    """OVSDB's notation of a string, a UUID, or a set of these (RFC 7047, section 5.1)."""
    if not isinstance(value, list):
        return [value]
    kind, content = value
    return [string for element in content for string in strings(element)] if kind == "set" else [content]


def mapping(value: Any) -> dict[Any, Any]:
    """OVSDB's notation of a map."""
    _, content = value
    return dict(content)


LIMIT_TABLES = {
    "Bridge": ["datapath_id", "controller"],
    "Controller": ["_uuid", "target", "controller_rate_limit", "controller_burst_limit"],
}
MIN_RATE_LIMIT, MIN_BURST_LIMIT = 100, 25
"""The lowest that Open vSwitch takes (ovs-vswitchd.conf.db(5), table Controller)."""


def limit_packet_ins(database: Database, target: str, rate_per_second: int, timeout_seconds: float = 3.0) -> bool:
    """Have a switch hand up at most so many packets a second on its connection to `target` ("tcp:ADDRESS:PORT").

    Open vSwitch shares the rate fairly among its ports. A lower limit that somebody else set stays. Returns whether
    anything was written. Blocks the calling green thread only. Raises DatabaseUnreachable or DatabaseRefused.
    """
    rows = read_tables(database, LIMIT_TABLES, timeout_seconds)
    try:
        operations = limits_to_write(rows, database.dpid, target, rate_per_second)
    except BAD_ROW as error:
        raise _unreachable(database, error) from error
    if operations:
        transact(database, operations, timeout_seconds)
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
