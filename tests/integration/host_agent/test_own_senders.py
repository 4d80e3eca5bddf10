"""A dataserver keeps to its turns by itself: the agent holds no packet of what it sends."""

from __future__ import annotations

import os
import socket
import tempfile
import threading
import time
from pathlib import Path

import pytest

from speedwell.fs.wire.channel import Channel
from speedwell.host_agent.channel import MAX_SLICES, Slice, Turns
from tests.integration.host_agent.hosts import RECEIVER, Scheduler, agent_on_host, inside
from tests.waiting import wait_until

pytestmark = pytest.mark.root

SIZE_BYTES = 2 << 20
PERIOD, OPEN = 200_000, 100_000
"""Microseconds: ten and more of the time that a scheduler's thread comes late on a busy machine."""
LATE_SECONDS = 0.02


def send(network: str, port: int) -> None:
    with tempfile.TemporaryFile() as file:
        file.write(os.urandom(SIZE_BYTES))
        file.flush()
        with inside(network), socket.create_connection((RECEIVER, port)) as connection:
            Channel(connection).send_file(file.fileno(), 0, SIZE_BYTES)


def test_it_sends_in_its_slices_alone_is_reported_as_backlog_and_costs_the_agent_nothing(tmp_path: Path) -> None:
    with agent_on_host(tmp_path, "--large", "1000") as (hosts, scheduler, agent):
        scheduler.direct(Turns(RECEIVER, 10_000_000))
        wait_until(lambda: RECEIVER in hosts.rules(), 20, hosts.rules)
        with inside(hosts.receiver):
            listener = socket.create_server((RECEIVER, 9003))
        sending = threading.Thread(target=send, args=(hosts.sender, 9003))
        sending.start()
        with listener, listener.accept()[0] as connection:
            wait_until(lambda: any(each.queued_bytes >= SIZE_BYTES for report in scheduler.reports
                                   for each in report.backlogs), 20, "it is not reported that something waits")
            connection.setblocking(False)
            with pytest.raises(BlockingIOError):
                connection.recv(1)
            connection.setblocking(True)
            began = time.monotonic() + 0.05
            ended = threading.Event()
            turns = threading.Thread(target=turning, args=(scheduler, began, ended))
            turns.start()
            arrivals = []
            try:
                while data := connection.recv(1 << 16):
                    arrivals.append((time.monotonic(), len(data)))
            finally:
                ended.set()
                turns.join(20)
        sending.join(20)
        metrics = agent.metrics()
    assert sum(size for _, size in arrivals) == SIZE_BYTES
    outside = sum(size for at, size in arrivals
                  if (at - began) % (PERIOD / 1e6) > OPEN / 1e6 + LATE_SECONDS) / SIZE_BYTES
    assert outside < 0.03
    assert metrics["packets_total"] < 20, "its packets are held"
    assert arrivals[-1][0] - arrivals[0][0] > SIZE_BYTES * 8 / 20e6 * 1.4, "it had the link all the time"


def turning(scheduler: Scheduler, began: float, ended: threading.Event) -> None:
    """Every other tenth of a second, told anew each time."""
    for number in range(100):
        begin = began + number * PERIOD / 1e6
        if ended.wait(max(0.0, begin - 0.02 - time.monotonic())):
            return
        ahead = max(0, round(1e6 * (begin - time.monotonic())))
        scheduler.direct(Turns(RECEIVER, ahead + 3 * PERIOD, tuple(
            Slice(ahead + each * PERIOD, OPEN) for each in range(MAX_SLICES))))
