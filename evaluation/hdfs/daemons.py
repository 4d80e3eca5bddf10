"""Processes that end with their standard input: whoever holds the other end, however it dies, ends them.

Each writes a log; a daemon prints a line `ready ADDRESS` to it when it serves.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from speedwell.cluster.errors import StartFailed
from speedwell.cluster.processes import READY_LINE, log_tail

POLL_SECONDS = 0.05
STOP_SECONDS = 5.0


@dataclass(frozen=True)
class Started:
    """A daemon that runs."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path


class Daemons:
    """Daemons of this process. They see neither Ctrl-C nor each other's pipes."""

    def __init__(self, log_directory: Path) -> None:
        self._log_directory = log_directory
        self._started: list[Started] = []

    def start(self, commands: Sequence[tuple[str, Sequence[str]]], *, at_once: int, timeout_seconds: float,
              ready: Callable[[int], None] = lambda number: None) -> None:
        """Start named commands, no more than `at_once` that are not ready yet; returns when all are.

        `ready` hears how many are. Raises StartFailed, naming the first that ended or, for `timeout_seconds`, none
        of which became ready; call `stop` then.
        """
        waiting: list[Started] = []
        left = list(commands)
        done, deadline = 0, time.monotonic() + timeout_seconds
        while left or waiting:
            while left and len(waiting) < at_once:
                waiting.append(self._spawn(*left.pop(0)))
            still = [daemon for daemon in waiting if not self._is_ready(daemon)]
            if len(still) < len(waiting):
                done += len(waiting) - len(still)
                waiting, deadline = still, time.monotonic() + timeout_seconds
                ready(done)
            elif time.monotonic() > deadline:
                raise StartFailed(f"{waiting[0].name} was not ready after {timeout_seconds:g} s"
                                  f"{log_tail(waiting[0].log)}")
            else:
                time.sleep(POLL_SECONDS)

    def stop(self) -> None:
        """End all daemons: by their input, and after STOP_SECONDS by SIGKILL."""
        started, self._started = self._started, []
        for daemon in started:
            assert daemon.process.stdin is not None
            with contextlib.suppress(OSError):
                daemon.process.stdin.close()
        deadline = time.monotonic() + STOP_SECONDS
        for daemon in started:
            try:
                daemon.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                os.killpg(daemon.process.pid, signal.SIGKILL)
                daemon.process.wait()

    def _spawn(self, name: str, argv: Sequence[str]) -> Started:
        log = self._log_directory / f"{name}.log"
        self._log_directory.mkdir(parents=True, exist_ok=True)
        try:
            with log.open("wb") as output:
                process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=output, stderr=output,
                                           start_new_session=True, cwd="/")
        except OSError as error:
            raise StartFailed(f"cannot start {name}: {argv[0]}: {error.strerror}") from error
        daemon = Started(name, process, log)
        self._started.append(daemon)
        return daemon

    def _is_ready(self, daemon: Started) -> bool:
        code = daemon.process.poll()
        if code is not None:
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            raise StartFailed(f"{daemon.name} stopped ({how}) before it was ready{log_tail(daemon.log)}")
        return READY_LINE.search(daemon.log.read_bytes()) is not None
