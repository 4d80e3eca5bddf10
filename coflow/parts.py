"""What the two ends of a transfer share: the parts of a file, and connections that are patient with each other."""

from __future__ import annotations

import json
import os
import select
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

from speedwell.coflow.errors import TransferFailed
from speedwell.coflow.report import MAX_REMAINING_BYTES
from speedwell.coflow.reporter import acknowledged_bytes

BLOCK_BYTES = 1 << 18
MAX_LINE_BYTES = 4096
MAX_PARTS = 64
MAX_NAME_BYTES = 255
TIMEOUT_SECONDS = 60.0
"""When nothing of a transfer has moved for so long, on none of its flows, the other side is taken for dead."""
LOOK_SECONDS = 0.5
"""So often those who wait look whether anything moves elsewhere."""

Advance = Callable[[int], None]
T = TypeVar("T")


@dataclass(frozen=True)
class TransferPart:
    """One part of a file: `size` bytes from `offset` on."""

    transfer: str
    name: str
    total: int
    part: int
    parts: int
    offset: int
    size: int


def split(total: int, parts: int) -> list[tuple[int, int]]:
    """(offset, size) of each part; sizes differ by at most one byte."""
    bounds = [total * number // parts for number in range(parts + 1)]
    return [(begin, end - begin) for begin, end in pairwise(bounds)]


def part_of(line: bytes) -> TransferPart:
    """A part's header. Raises TransferFailed for what no sender of ours says."""
    try:
        values: Any = json.loads(line)
        part = TransferPart(**values)
        numbers = (part.total, part.part, part.parts, part.offset, part.size)
        good = (all(type(number) is int and 0 <= number <= MAX_REMAINING_BYTES for number in numbers)
                and isinstance(part.name, str) and isinstance(part.transfer, str)
                and part.transfer.isascii() and part.transfer.isalnum() and len(part.transfer) <= 64
                and len(os.fsencode(part.name)) <= MAX_NAME_BYTES
                and part.name not in ("", ".", "..") and not set("/\0") & set(part.name)
                and part.part < part.parts <= MAX_PARTS
                and split(part.total, part.parts)[part.part] == (part.offset, part.size))
    except (ValueError, TypeError, RecursionError):
        good = False
    if not good:
        raise TransferFailed("this is not a part of a file")
    return part


class Activity:
    """When anything of a transfer moved last, on whichever of its flows: one may wait long for the others, which a
    schedule may hold back. For use by any thread."""

    def __init__(self) -> None:
        self._moved_at = time.monotonic()
        self._given_up: str | None = None

    def moved(self) -> None:
        self._moved_at = time.monotonic()

    def give_up(self, reason: str) -> None:
        """End the transfer on all its flows."""
        self._given_up = reason

    def require(self) -> None:
        """Raises TransferFailed if the transfer was given up, or nothing has moved for too long."""
        if self._given_up is not None:
            raise TransferFailed(self._given_up)
        if time.monotonic() - self._moved_at > TIMEOUT_SECONDS:
            raise TransferFailed(f"nothing has moved for {TIMEOUT_SECONDS:g} s")


class Stream:
    """A connection of a transfer. It fails with OSError, or with TransferFailed when nothing moves on any flow."""

    def __init__(self, connection: socket.socket, activity: Activity) -> None:
        connection.settimeout(LOOK_SECONDS)
        self._connection = connection
        self._activity = activity
        self._acknowledged = acknowledged_bytes(connection)

    def send(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            left = left[self._patiently(self._connection.send, left):]

    def has_word(self) -> bool:
        """Whether the other side has said something, or closed the connection."""
        looking = select.poll()
        looking.register(self._connection, select.POLLIN)
        return bool(looking.poll(0))

    def receive_into(self, buffer: memoryview) -> int:
        """What came, 0 at the end."""
        return self._patiently(self._connection.recv_into, buffer)

    def read_line(self) -> bytes:
        """Up to and with a line's end, the connection's, or MAX_LINE_BYTES."""
        line = b""
        while not line.endswith(b"\n") and len(line) < MAX_LINE_BYTES:
            byte = self._patiently(self._connection.recv, 1)
            if not byte:
                break
            line += byte
        return line

    def _patiently(self, action: Callable[[Any], T], argument: Any) -> T:
        while True:
            try:
                result = action(argument)
            except TimeoutError as error:
                if error.errno is not None:     # the kernel has given the connection up
                    raise
                acknowledged = acknowledged_bytes(self._connection)
                if acknowledged != self._acknowledged:      # what waits in our socket is on its way
                    self._acknowledged = acknowledged
                    self._activity.moved()
                self._activity.require()
            else:
                self._activity.moved()
                return result
