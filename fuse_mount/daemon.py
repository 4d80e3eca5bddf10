"""Becoming a daemon that tells the one who started it how it went."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from speedwell.fs import systemd
from speedwell.fs.ending import run_to_the_end

READY = b"R"
FAILED = b"F"


class Report:
    """The one message from a starting service to whoever started it. Sent from any thread, once."""

    def __init__(self, descriptor: int | None, log: Path | None = None) -> None:
        self._descriptor = descriptor  # None: this process is the one that was started
        self._log = log

    def ready(self, message: str) -> None:
        """Say that the service works. From now on a daemon writes to its log only."""
        if self._descriptor is None:
            systemd.ready(message)
            return
        self._send(READY + message.encode("utf-8", "surrogateescape"))
        sys.stdout.flush()
        if self._log is not None:
            redirect_output(self._log)

    def failed(self, message: str) -> None:
        """Say why the service cannot start. Nothing is said twice."""
        if self._descriptor is None:
            print(message, file=sys.stderr, flush=True)
        else:
            self._send(FAILED + message.encode("utf-8", "surrogateescape"))

    def _send(self, message: bytes) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor is None or descriptor < 0:
            return
        try:
            os.write(descriptor, message)
            os.close(descriptor)
        except BrokenPipeError:
            pass  # whoever started this did not wait


def redirect_output(log: Path) -> None:
    """Send standard output and error of this process to the end of `log`. Raises OSError."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def start_daemon(serve: Callable[[Report], int], log: Path) -> int:
    """Run `serve` in a daemon and return once it reported: 0 and its message on standard output if it is
    ready, otherwise 1 and its message on standard error.

    To be called before any thread is started: threads do not survive the fork.
    """
    receiving, sending = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(receiving)
        os.setsid()
        if os.fork() != 0:  # the daemon is not a session leader: it can never get a terminal
            os._exit(0)
        _serve_and_exit(serve, sending, log)
    os.close(sending)
    os.waitpid(child, 0)
    with os.fdopen(receiving, "rb") as pipe:
        report = pipe.read()
    message = report[1:].decode("utf-8", "surrogateescape")
    if report.startswith(READY):
        print(message, flush=True)
        return 0
    print(message or f"the mount process died while it started; its log is {log}", file=sys.stderr, flush=True)
    return 1


def _serve_and_exit(serve: Callable[[Report], int], sending: int, log: Path) -> NoReturn:
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    run_to_the_end(lambda: serve(Report(sending, log)))
