"""Becoming a daemon that tells the one who started it how it went."""

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from speedwell.fs import systemd
from speedwell.fs.ending import run_to_the_end

READY, FAILED = b"R", b"F"


class Report:
    """The one message from a starting service to whoever started it. Sent from any thread, once."""

    def __init__(self, descriptor: int | None = None, log: Path = Path(os.devnull)) -> None:
        self._descriptor = descriptor  # None: this process is the one that was started
        self._log = log

    def ready(self, message: str) -> None:
        """Say that the service works. From now on a daemon writes to its log only."""
        if self._descriptor is None:
            systemd.ready(message)
            return
        self._send(READY, message)
        sys.stdout.flush()
        with self._log.open("a") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)

    def failed(self, message: str) -> None:
        """Say why the service cannot start. Nothing is said twice."""
        if self._descriptor is None:
            print(message, file=sys.stderr, flush=True)
        else:
            self._send(FAILED, message)

    def _send(self, kind: bytes, message: str) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor is not None and descriptor >= 0:
            with suppress(BrokenPipeError), os.fdopen(descriptor, "wb") as pipe:    # if the other did not wait
                pipe.write(kind + os.fsencode(message))


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
        with Path(os.devnull).open() as null:
            os.dup2(null.fileno(), 0)
        run_to_the_end(lambda: serve(Report(sending, log)))
    os.close(sending)
    os.waitpid(child, 0)
    with os.fdopen(receiving, "rb") as pipe:
        kind, message = pipe.read(1), os.fsdecode(pipe.read())
    if kind == READY:
        print(message, flush=True)
        return 0
    print(message or f"the mount process died while it started; its log is {log}", file=sys.stderr, flush=True)
    return 1
