"""What a switch may send, checked before Ryu parses it.

Ryu's parser trusts every length in a message: one of zero keeps it in a loop for ever, and the controller with it.
Here are the shapes of the messages that the controller asks for or listens to (OpenFlow 1.3.5, section 7); the rest
is not a switch's to send.
"""

from __future__ import annotations

from struct import unpack_from

HEADER_BYTES = 8
VERSION = 4
VERSIONS = range(1, 7)
"""OpenFlow 1.0 to 1.5: which of them are spoken is settled by the handshake."""
HELLO, ERROR, ECHO_REQUEST, ECHO_REPLY = 0, 1, 2, 3
FEATURES_REPLY, PACKET_IN, FLOW_REMOVED, PORT_STATUS = 6, 10, 11, 12
MULTIPART_REPLY, BARRIER_REPLY, ROLE_REPLY = 19, 21, 25
LEAST_BYTES = {HELLO: 8, ERROR: 12, ECHO_REQUEST: 8, ECHO_REPLY: 8, FEATURES_REPLY: 32,
               FLOW_REMOVED: 56, PORT_STATUS: 80, MULTIPART_REPLY: 16, BARRIER_REPLY: 8,
               ROLE_REPLY: 24}

HELLO_FAILED = 0
MULTIPART_BYTES = 16
FIXED_BODIES = {0: 1056, 4: 112, 5: 40, 11: 16, 13: 64}
"""Bytes of each element: description, port and queue statistics, meter features, port descriptions."""
SINGLE_BODIES = {0, 11}
FLOW_STATS, GROUP_DESCRIPTIONS, METER_STATS, METER_CONFIGS = 1, 7, 9, 10
FLOW_STATS_BYTES, MATCH_BYTES = 48, 8
WRITE_ACTIONS, CLEAR_ACTIONS = 3, 5
REMOVED_MATCH_AT = 48
SINGLE_FLOW_FIELDS = frozenset(map(bytes.fromhex, (
    "80000a02", "80001401", "80001604", "80001804", "80001a02", "80001c02", "80001e02", "80002002")))
"""Headers of Ethernet's type, IP's protocol and addresses and the ports of TCP and UDP."""
EXPERIMENTER, NICIRA, REG_MOVE, REG_LOAD, UNKNOWN_SUBTYPE = 0xFFFF, 0x2320, 6, 7, 0xFFFF


class BadMessage(Exception):
    """A switch sent what it may not send. `kind` is one of few words."""

    def __init__(self, kind: str, details: str) -> None:
        super().__init__(details)
        self.kind = kind


def length_of(header: bytes | bytearray, offset: int = 0) -> int:
    """The length of the message that begins at `offset`. Raises BadMessage: nothing behind it can be read then."""
    length: int = unpack_from("!H", header, offset + 2)[0]
    if header[offset] not in VERSIONS or length < HEADER_BYTES:
        raise BadMessage("framing", f"a message of version {header[offset]} and {length} bytes")
    return length


def check(message: bytearray) -> None:
    """Raises BadMessage unless Ryu can parse a whole message. Takes out what Ryu would parse without need: actions of
    Open vSwitch's own except those that are used here."""
    version, kind = message[0], message[1]
    if kind not in LEAST_BYTES:
        raise BadMessage("type", f"message type {kind} is not a switch's to send, or was not asked for")
    if version != VERSION and kind != HELLO:
        raise BadMessage("version", f"OpenFlow version {version} was not agreed upon")
    if len(message) < LEAST_BYTES[kind]:
        raise BadMessage("length", f"{len(message)} bytes are too few for message type {kind}")
    if kind == HELLO:
        if version >= VERSION:
            _elements(message, HEADER_BYTES, len(message), 4, length_at=2)
    elif kind == ERROR:
        if unpack_from("!H", message, 8)[0] == HELLO_FAILED and not message[12:].isascii():
            raise BadMessage("content", "the reason why a hello failed is not ASCII")
    elif kind == FLOW_REMOVED:
        _match(message, 48, len(message))
    elif kind == MULTIPART_REPLY:
        _multipart(message)


def is_of_single_flow(removed: bytearray) -> bool:
    """Whether the match of an entry that is said to be gone has such fields only as single flows have. Then it can be
    parsed. The message is of 52 bytes or more."""
    field = REMOVED_MATCH_AT + 4
    stop: int = REMOVED_MATCH_AT + unpack_from("!H", removed, REMOVED_MATCH_AT + 2)[0]
    while field < stop:
        header = bytes(removed[field:field + 4])
        if header not in SINGLE_FLOW_FIELDS:
            return False
        field += 4 + header[3]
    return field == stop <= len(removed)


def _multipart(message: bytearray) -> None:
    kind, end = unpack_from("!H", message, HEADER_BYTES)[0], len(message)
    if kind in FIXED_BODIES:
        body_bytes = end - MULTIPART_BYTES
        if body_bytes % FIXED_BODIES[kind] or (kind in SINGLE_BODIES and body_bytes != FIXED_BODIES[kind]):
            raise BadMessage("length", f"{body_bytes} bytes are no whole elements of multipart type {kind}")
    elif kind == FLOW_STATS:
        for start, stop in _elements(message, MULTIPART_BYTES, end, FLOW_STATS_BYTES + MATCH_BYTES):
            _entry(message, start, stop)
    elif kind == GROUP_DESCRIPTIONS:
        for start, stop in _elements(message, MULTIPART_BYTES, end, 8):
            for bucket, bucket_end in _elements(message, start + 8, stop, 16):
                _actions(message, bucket + 16, bucket_end)
    elif kind == METER_CONFIGS:
        for start, stop in _elements(message, MULTIPART_BYTES, end, 8):
            _elements(message, start + 8, stop, 12, length_at=2)
    elif kind == METER_STATS:
        _elements(message, MULTIPART_BYTES, end, 40, length_at=4)
    else:
        raise BadMessage("type", f"multipart type {kind} was not asked for")


def check_entry(statistics: bytearray) -> None:
    """As `check`, for the statistics of one entry."""
    _elements(statistics, 0, len(statistics), FLOW_STATS_BYTES + MATCH_BYTES)
    _entry(statistics, 0, len(statistics))


def _entry(message: bytearray, start: int, end: int) -> None:
    _instructions(message, _match(message, start + FLOW_STATS_BYTES, end), end)


def _elements(message: bytearray, start: int, end: int, least: int, length_at: int = 0) -> list[tuple[int, int]]:
    """Where each element of a list begins and ends; `length_at` is where in an element its length stands."""
    found = []
    while start < end:
        if start + least > end:
            raise BadMessage("length", f"{end - start} bytes are too few for an element of at least {least}")
        length: int = unpack_from("!H", message, start + length_at)[0]
        if not least <= length <= end - start:
            raise BadMessage("length", f"an element of {length} bytes does not fit into {end - start}")
        found.append((start, start + length))
        start += length
    return found


def _match(message: bytearray, start: int, end: int) -> int:
    """Where a match with its padding ends."""
    length: int = unpack_from("!H", message, start + 2)[0]
    padded_end = start + (length + 7) // 8 * 8
    if length < 4 or padded_end > end:
        raise BadMessage("length", f"a match of {length} bytes does not fit into {end - start}")
    field, stop = start + 4, start + length
    while field < stop:
        if field + 4 > stop or field + 4 + message[field + 3] > stop:
            raise BadMessage("length", "a field of a match is cut off")
        field += 4 + message[field + 3]
    return padded_end


def _instructions(message: bytearray, start: int, end: int) -> None:
    for instruction, stop in _elements(message, start, end, 8, length_at=2):
        if WRITE_ACTIONS <= unpack_from("!H", message, instruction)[0] <= CLEAR_ACTIONS:
            _actions(message, instruction + 8, stop)


def _actions(message: bytearray, start: int, end: int) -> None:
    for action, stop in _elements(message, start, end, 8, length_at=2):
        if unpack_from("!H", message, action)[0] == EXPERIMENTER and stop - action >= 10:
            vendor, subtype = unpack_from("!IH", message, action + 4)
            if vendor == NICIRA and subtype not in (REG_MOVE, REG_LOAD):
                message[action + 8:action + 10] = UNKNOWN_SUBTYPE.to_bytes(2, "big")
