"""The sending side: a transfer tells the scheduler its flows at the start, then how far they are, and their end.

One way, one UDP socket, no answer awaited: a scheduler that is away costs a transfer nothing.
"""

from __future__ import annotations

import secrets
import socket
import struct
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from types import TracebackType
from typing import Self

from speedwell.coflow.errors import InvalidReport
from speedwell.coflow.report import ID_BYTES, MAX_FLOWS, Flow, FlowReport, Report, crosses_network, encode
from speedwell.coflow.settings import SchedulerAddress, from_environment

REPORT_INTERVAL_SECONDS = 0.5
LAST_REPORTS = 3
"""How often an end is told: datagrams get lost."""
LAST_REPORTS_PAUSE_SECONDS = 0.02
_BYTES_ACKED = struct.Struct("=Q")
_BYTES_ACKED_OFFSET = 120
_TCP_INFO_BYTES = _BYTES_ACKED_OFFSET + _BYTES_ACKED.size
"""`tcpi_bytes_acked` of Linux' `struct tcp_info` (linux/tcp.h): RFC 4898's tcpEStatsAppHCThruOctetsAcked."""


class FlowProgress:
    """One flow's account: what it has left, by what its connection says (`follow`) or by calls to `moved`."""

    def __init__(self, flow: Flow, size_bytes: int, coflow_id: bytes) -> None:
        self.flow = flow
        self.coflow_id = coflow_id
        self.ends_told = 0
        self._left_bytes = size_bytes
        self._size_bytes = size_bytes
        self._connection: socket.socket | None = None
        self._acknowledged_before = 0
        self._has_ended = False

    @property
    def remaining_bytes(self) -> int:
        """0 once the flow has ended. The end is told by `Reporter.ended` alone, so 1 byte stays until then."""
        if self._has_ended:
            return 0
        if self._connection is not None and (acknowledged := acknowledged_bytes(self._connection)) is not None:
            self._left_bytes = max(1, self._size_bytes - (acknowledged - self._acknowledged_before))
        return self._left_bytes

    def moved(self, count: int, at_least: int = 1) -> None:
        """So many more bytes went, and at least so many are to come yet, from any thread. Receivers know that;
        senders do not: see `follow`."""
        self._left_bytes = max(1, at_least, self._left_bytes - count)

    def follow(self, connection: socket.socket) -> None:
        """Count what the other end acknowledges from now on. What a sender has handed over may wait in its socket
        for seconds yet, and a schedule that takes it for sent gives the flow next to nothing for it."""
        acknowledged = acknowledged_bytes(connection)
        if acknowledged is not None:
            self._connection, self._acknowledged_before = connection, acknowledged

    def end(self) -> None:
        """Nothing more goes, whatever is left."""
        self._has_ended, self._connection = True, None


def acknowledged_bytes(connection: socket.socket) -> int | None:
    """What the other end of a TCP connection has acknowledged so far; None if the socket does not tell (any more)."""
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    except OSError:
        return None
    return None if len(info) < _TCP_INFO_BYTES else int(_BYTES_ACKED.unpack_from(info, _BYTES_ACKED_OFFSET)[0])


class Reporter:
    """Reports the flows of a coflow, as far as this process has any, or of several coflows.

    `coflow_id` (16 bytes) is the same at all processes that take part; without it, one is drawn. Use it as a context
    manager, or call `close`. Nothing here raises when the scheduler cannot be reached.
    """

    def __init__(self, scheduler: SchedulerAddress, coflow_id: bytes | None = None,
                 interval_seconds: float = REPORT_INTERVAL_SECONDS) -> None:
        self.coflow_id = secrets.token_bytes(ID_BYTES) if coflow_id is None else coflow_id
        _check_id(self.coflow_id)
        self._scheduler = scheduler
        self._interval_seconds = interval_seconds
        self._sender = secrets.randbits(63) + 1
        self._sequence = 0
        self._flows: dict[Flow, FlowProgress] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self.close()

    def add(self, flows: Iterable[tuple[Flow, int]], coflow_id: bytes | None = None) -> list[FlowProgress]:
        """Tell of flows that are about to start, (5-tuple, bytes) each, and report on them from now on.

        They are of the reporter's coflow, or of the one named here. A flow that stays within a host needs no
        schedule, and is not reported.
        """
        number = self.coflow_id if coflow_id is None else coflow_id
        _check_id(number)
        added = [FlowProgress(flow, max(1, size_bytes), number) for flow, size_bytes in flows]
        with self._lock:
            self._flows.update((each.flow, each) for each in added if crosses_network(each.flow))
            if self._thread is None and not self._closed.is_set():
                self._thread = threading.Thread(target=self._report_for_ever, name="coflow-reporter", daemon=True)
                self._thread.start()
        self.report(number)
        return added

    def ended(self, progress: FlowProgress) -> None:
        """A flow has ended, at whatever it had left."""
        progress.end()
        self.report(progress.coflow_id)

    def report(self, coflow_id: bytes | None = None) -> None:
        """Report now, on one coflow or on all; several datagrams if its flows do not fit into one."""
        with self._lock:
            by_coflow: dict[bytes, list[FlowReport]] = {}
            for each in list(self._flows.values()):
                if coflow_id in (None, each.coflow_id):
                    left_bytes = each.remaining_bytes
                    by_coflow.setdefault(each.coflow_id, []).append(FlowReport(each.flow, left_bytes))
                    each.ends_told += left_bytes == 0
                    if each.ends_told >= LAST_REPORTS:
                        del self._flows[each.flow]
            for number, flows in by_coflow.items():
                for batch in _batches(flows):
                    self._sequence += 1
                    self._send(Report(number, self._sender, self._sequence, time.time_ns() // 1000, batch))

    def close(self) -> None:
        """End what has not ended, tell it a few times, and stop."""
        if self._closed.is_set():
            return
        self._closed.set()
        with self._lock:
            for each in self._flows.values():
                each.end()
        while self._flows:
            self.report()
            if self._flows:
                time.sleep(LAST_REPORTS_PAUSE_SECONDS)
        if self._thread is not None:
            self._thread.join()
        self._socket.close()

    def _send(self, report: Report) -> None:
        with suppress(OSError):
            self._scheduler.send(self._socket, encode(report, self._scheduler.key))

    def _report_for_ever(self) -> None:
        while not self._closed.wait(self._interval_seconds):
            self.report()


def _check_id(coflow_id: bytes) -> None:
    if len(coflow_id) != ID_BYTES:
        raise InvalidReport("malformed", f"a coflow's id has {ID_BYTES} bytes, not {len(coflow_id)}")


def configured_reporter(coflow_id: bytes | None = None) -> Reporter | None:
    """A reporter to the scheduler that the environment names, or None. Raises InvalidSetting."""
    found = from_environment()
    return Reporter(found, coflow_id) if found else None


def flow_of(connection: socket.socket, outgoing: bool = True) -> Flow:
    """The 5-tuple of a connected TCP socket, its bytes going out or coming in."""
    (here, here_port), (there, there_port) = connection.getsockname()[:2], connection.getpeername()[:2]
    return Flow(here, there, here_port, there_port) if outgoing else Flow(there, here, there_port, here_port)


def _batches(flows: list[FlowReport]) -> Iterator[tuple[FlowReport, ...]]:
    remaining = iter(flows)
    while batch := tuple(islice(remaining, MAX_FLOWS)):
        yield batch
