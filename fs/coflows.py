"""The filesystem's own transfers as coflows, told to the scheduler that the environment names.

A read is one coflow, however many replicas it comes from. An append is one, from the client to the first replica and
from each replica to the next: all of them know its writer and its number, and so its id
(docs/reference/coflow-protocol.md). The package `coflow` is imported where a scheduler is named only: most
processes report nothing.
"""

from __future__ import annotations

import atexit
import logging
import os
import secrets
import socket
from collections.abc import Iterable
from functools import cache
from hashlib import sha256
from typing import TYPE_CHECKING

from speedwell.fs.errors import InvalidArgument

if TYPE_CHECKING:
    from speedwell.coflow.host_heartbeat import HostHeartbeats
    from speedwell.coflow.reporter import FlowProgress, Reporter

log = logging.getLogger(__name__)

ADDRESS_VARIABLE = "SPEEDWELL_COFLOW_ADDRESS"
KEY_FILE_VARIABLE = "SPEEDWELL_COFLOW_KEY_FILE"
MIN_BYTES = 1 << 20
"""What is smaller ends before a schedule could help it."""
ID_BYTES = 16

Address = tuple[str, int]


class Account:
    """What one flow of a transfer has left. Thread-safe; `ended` may be called again."""

    def __init__(self, reporter: Reporter, progress: FlowProgress) -> None:
        self._reporter = reporter
        self._progress: FlowProgress | None = progress

    def moved(self, count: int, at_least: int = 1) -> None:
        """So many more bytes came, and at least so many are to come yet."""
        progress = self._progress
        if progress is not None:
            progress.moved(count, at_least)

    def follow(self, connection: socket.socket) -> None:
        """Let the connection that the bytes go out on say what has arrived, from now on."""
        if self._progress is not None:
            self._progress.follow(connection)

    def ended(self) -> None:
        """Nothing more goes."""
        progress, self._progress = self._progress, None
        if progress is not None:
            self._reporter.ended(progress)


class Coflows:
    """Reports of this process."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter

    def flows(self, coflow_id: bytes, flows: Iterable[tuple[Address, Address, int]]) -> list[Account]:
        """Tell of TCP flows that are about to start: where their bytes come from, where they go, how many."""
        from speedwell.coflow.report import Flow

        return [Account(self._reporter, progress) for progress in self._reporter.add(
            [(Flow(source[0], target[0], source[1], target[1]), size) for source, target, size in flows], coflow_id)]

    def append(self, file_id: str, writer: int, sequence: int, connection: socket.socket,
               size_bytes: int) -> Account | None:
        """Tell of an append that is about to go out; None if it is too small to be told of."""
        if size_bytes < MIN_BYTES or connection.family != socket.AF_INET:
            return None
        number = sha256(f"append {file_id} {writer} {sequence}".encode()).digest()[:ID_BYTES]
        try:
            ends = connection.getsockname(), connection.getpeername()
        except OSError:     # the connection broke meanwhile, which is for others to find
            return None
        [account] = self.flows(number, [(*ends, size_bytes)])
        account.follow(connection)
        return account


def host_heartbeats(address: str) -> HostHeartbeats | None:
    """Sends what this host's interface with that address carries to the scheduler that the environment names; None if
    it names none, or the address is of no interface here. Raises InvalidArgument."""
    if not os.environ.get(ADDRESS_VARIABLE):
        return None
    from speedwell.coflow.errors import InvalidSetting
    from speedwell.coflow.host_heartbeat import HostHeartbeats
    from speedwell.coflow.settings import from_environment

    try:
        scheduler = from_environment()
    except InvalidSetting as error:
        raise InvalidArgument(str(error)) from None
    try:
        return None if scheduler is None else HostHeartbeats(scheduler, address)
    except InvalidSetting as error:
        log.info("no heartbeats are sent to the controller: %s", error)
        return None


def new_id() -> bytes:
    """The id of a coflow that nobody else takes part in."""
    return secrets.token_bytes(ID_BYTES)


@cache
def configured() -> Coflows | None:
    """Reports to the scheduler that the environment names, None if it names none. Raises InvalidArgument."""
    if not os.environ.get(ADDRESS_VARIABLE):
        return None
    from speedwell.coflow.errors import InvalidSetting
    from speedwell.coflow.reporter import configured_reporter

    try:
        reporter = configured_reporter()
    except InvalidSetting as error:
        raise InvalidArgument(str(error)) from None
    if reporter is None:
        return None
    atexit.register(reporter.close)     # else a coflow that ends with its process is kept until it expires
    return Coflows(reporter)
