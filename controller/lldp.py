"""LLDP frames (IEEE 802.1AB) that say which port of which switch they left by."""

from __future__ import annotations

import struct

from controller.network_state import PortKey

NEAREST_BRIDGE = bytes.fromhex("0180c200000e")
ETHERTYPE = bytes.fromhex("88cc")
ORGANISATION = bytes.fromhex("025357")
"""A locally administered identifier for the part of the frame that only Speedwell reads."""
CHASSIS_ID, PORT_ID, TIME_TO_LIVE, ORGANISATION_SPECIFIC = 1, 2, 3, 127
LOCALLY_ASSIGNED = b"\x07"


def probe(key: PortKey, hw_addr: str, token: bytes) -> bytes:
    """The frame for a port. `token` marks the controller run; see `source_of`."""
    dpid, port_no = key
    frame = b"".join((
        NEAREST_BRIDGE, bytes.fromhex(hw_addr.replace(":", "")), ETHERTYPE,
        _element(CHASSIS_ID, LOCALLY_ASSIGNED + dpid.encode()),
        _element(PORT_ID, LOCALLY_ASSIGNED + struct.pack("!I", port_no)),
        _element(TIME_TO_LIVE, struct.pack("!H", 120)),
        _element(ORGANISATION_SPECIFIC, ORGANISATION + b"\x01" + token),
        _element(0, b""),
    ))
    return frame.ljust(60, b"\0")


def source_of(frame: bytes, token: bytes) -> PortKey | None:
    """Where a frame left; None if it is no probe, is cut short, or bears another token.

    The token keeps out the probes of another controller and of an earlier run.
    """
    if frame[12:14] != ETHERTYPE:
        return None
    elements = {}
    offset = 14
    while offset + 2 <= len(frame):
        kind, length = divmod(struct.unpack_from("!H", frame, offset)[0], 1 << 9)
        value = frame[offset + 2:offset + 2 + length]
        if kind == 0 or len(value) < length:
            break
        elements[kind] = value
        offset += 2 + length
    chassis, port = elements.get(CHASSIS_ID, b""), elements.get(PORT_ID, b"")
    if elements.get(ORGANISATION_SPECIFIC) != ORGANISATION + b"\x01" + token:
        return None
    if len(chassis) != 17 or len(port) != 5 or chassis[:1] != LOCALLY_ASSIGNED:
        return None
    return chassis[1:].decode("ascii", "replace"), struct.unpack("!I", port[1:])[0]


def _element(kind: int, value: bytes) -> bytes:
    return struct.pack("!H", kind << 9 | len(value)) + value
