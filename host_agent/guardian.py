"""Lets go what an agent holds when the agent dies or stands still, and takes away all it made when it is gone.

The kernel drops what an NFQUEUE holds with the last descriptor of its socket, and holds for ever what a stopped
process does not answer. So this process has a descriptor too. The agent writes a byte into a pipe again and again:
how long it may be silent, in units; 0: it holds nothing.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from typing import Protocol

from speedwell.host_agent.errors import KernelRefused
from speedwell.host_agent.packet_queues import PacketQueues
from speedwell.host_agent.uplink import try_to_run

UNIT_SECONDS = 0.002
RELEASE_SECONDS = 0.002
"""How often packets are let go while the agent stands still."""
MAX_SILENCE_SECONDS = 255 * UNIT_SECONDS
"""A beat is a byte."""
READY = b"ready\n"
END_SECONDS = 5.0


class HasUndoing(Protocol):
    @property
    def undoing(self) -> list[tuple[list[str], str]]: ...


class Guardian:
    """The agent's side: starts the process, and another one when that is gone."""

    def __init__(self, queues: PacketQueues, made: HasUndoing) -> None:
        self._queues = queues
        self._made = made
        self.deaths = 0
        self._start()

    def _start(self) -> None:
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        descriptor = self._queues.socket.fileno()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "speedwell.host_agent.guardian", str(descriptor), str(reading),
             json.dumps(self._made.undoing)],
            pass_fds=(descriptor, reading), start_new_session=True, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
        os.close(reading)
        assert self._process.stdout is not None
        with self._process.stdout as told:
            if told.readline() != READY:
                os.close(writing)
                raise KernelRefused("the guardian did not start")
        self._pipe = writing

    def beat(self, silence_seconds: float) -> None:
        """The agent is there, and will be heard of again within so many seconds, MAX_SILENCE_SECONDS at most;
        0: it holds nothing."""
        try:
            os.write(self._pipe, bytes([round(silence_seconds / UNIT_SECONDS)]))
        except BlockingIOError:
            pass    # it does not read; if it stands still it cannot help, and if it is gone we are told
        except BrokenPipeError:
            self._replace()

    def look(self) -> None:
        """Start another if it is gone. Raises KernelRefused, OSError; then the next look tries again."""
        if self._process.poll() is not None:
            self._replace()

    def _replace(self) -> None:
        self._process.wait()
        before = self._pipe
        self._start()
        os.close(before)
        self.deaths += 1

    def end(self) -> None:
        """Have everything let go and taken away."""
        self.beat(0)
        os.close(self._pipe)
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            _clean_up(self._queues, self._made.undoing)


def _watch(queues: PacketQueues, pipe: int) -> None:
    """Until the agent is gone."""
    watching, silence_seconds = select.poll(), 0.0
    watching.register(pipe, select.POLLIN)
    is_silent = False
    while True:
        wait = RELEASE_SECONDS if is_silent else silence_seconds
        if watching.poll(wait * 1000 if wait else None):
            beats = os.read(pipe, 4096)
            if not beats:
                return
            silence_seconds, is_silent = beats[-1] * UNIT_SECONDS, False
        else:
            is_silent = True
            queues.accept_all()


def _clean_up(queues: PacketQueues, undoing: list[tuple[list[str], str]]) -> None:
    queues.accept_all()
    for command, lines in undoing:
        try_to_run(*command, lines=lines)
        queues.accept_all()


def main(arguments: list[str]) -> None:
    """`DESCRIPTOR PIPE UNDOING`, the last as JSON."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with suppress(OSError):     # it sleeps nearly always, and must not be late
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    queues = PacketQueues(socket.socket(fileno=int(arguments[0])))
    undoing = json.loads(arguments[2])
    with suppress(OSError):     # the agent may be gone already
        os.write(1, READY)
    _watch(queues, int(arguments[1]))
    _clean_up(queues, undoing)


if __name__ == "__main__":
    main(sys.argv[1:])
