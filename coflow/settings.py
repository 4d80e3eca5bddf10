"""Where the scheduler listens and which key reports are signed with."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from speedwell.coflow.errors import InvalidSetting
from speedwell.coflow.report import MIN_KEY_BYTES

DEFAULT_PORT = 6655
ADDRESS_VARIABLE = "SPEEDWELL_COFLOW_ADDRESS"
KEY_FILE_VARIABLE = "SPEEDWELL_COFLOW_KEY_FILE"


@dataclass(frozen=True)
class SchedulerAddress:
    """A scheduler's address and the key it shares with us. `others` are those of schedulers that stand by: which one
    leads a sender of datagrams does not learn, so all are told everything."""

    host: str
    port: int
    key: bytes
    others: tuple[tuple[str, int], ...] = ()

    def send(self, through: socket.socket, datagram: bytes) -> None:
        """To every one of them. Raises OSError if none could be sent to."""
        failed: list[OSError] = []
        places = ((self.host, self.port), *self.others)
        for place in places:
            try:
                through.sendto(datagram, place)
            except OSError as error:
                failed.append(error)
        if len(failed) == len(places):
            raise failed[0]


def read_key(path: Path) -> bytes:
    """The shared key: what a file holds, without the blanks around it. Raises InvalidSetting."""
    try:
        key = path.read_bytes().strip()
    except OSError as error:
        raise InvalidSetting(f"cannot read the coflow key in {path}: {error.strerror}") from None
    if len(key) < MIN_KEY_BYTES:
        raise InvalidSetting(f"the coflow key in {path} has {len(key)} bytes; at least {MIN_KEY_BYTES} are needed, "
                             "as `openssl rand -hex 32` makes them")
    return key


def scheduler(address: str, key_file: Path) -> SchedulerAddress:
    """The scheduler at HOST[:PORT], or several with commas between them, with the key in a file. Raises
    InvalidSetting."""
    (host, port), *others = (_place(each) for each in address.split(","))
    return SchedulerAddress(host, port, read_key(key_file), tuple(others))


def _place(address: str) -> tuple[str, int]:
    host, _, port = address.partition(":")
    if not host or (port and not port.isdecimal()) or not 1 <= int(port or DEFAULT_PORT) <= 65535:
        raise InvalidSetting(f"the coflow scheduler's address {address!r} is not HOST or HOST:PORT")
    return host, int(port or DEFAULT_PORT)


def from_environment(environment: Mapping[str, str] | None = None) -> SchedulerAddress | None:
    """The scheduler that SPEEDWELL_COFLOW_ADDRESS and SPEEDWELL_COFLOW_KEY_FILE name; None without both.

    Raises InvalidSetting.
    """
    values = os.environ if environment is None else environment
    address, key_file = values.get(ADDRESS_VARIABLE), values.get(KEY_FILE_VARIABLE)
    if not address or not key_file:
        return None
    return scheduler(address, Path(key_file))
