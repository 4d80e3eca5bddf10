"""The controller's end of its lease: starts the keeper, tells it that the controller is alive, and begins anew as a
standby where it was deposed."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from contextlib import suppress
from typing import NoReturn

import eventlet
from eventlet.green import socket

from speedwell.controller.leadership import Leadership, Standing, now
from speedwell.controller.loops import Loops
from speedwell.controller.settings import Settings

log = logging.getLogger(__name__)

BEAT_SECONDS = 0.1
PAUSE_SECONDS = 1.0
"""Before the next try of a controller whose keeper does not last."""


class Election:
    """Takes part until `stop`."""

    def __init__(self, settings: Settings, leadership: Leadership, loops: Loops) -> None:
        self._leadership = leadership
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:    # keepers from before this process began anew
                pass
        self._socket, keepers = socket.socketpair()
        given = {"etcd": settings.etcd, "prefix": settings.etcd_prefix, "url": settings.url_for_others,
                 "identity": str(settings.etcd_identity or ""), "log_level": settings.log_level}
        with keepers:
            self._keeper = subprocess.Popen(
                [sys.executable, "-P", "-m", f"{__package__}.lease_keeper", json.dumps(given)],
                stdin=keepers.fileno(), stdout=subprocess.DEVNULL)
        self._lines = self._socket.makefile("rb")
        loops.run("leadership", self._hear, patience_seconds=None)
        loops.run("leadership beats", self._beat, every_seconds=BEAT_SECONDS, patience_seconds=10.0)

    def stop(self) -> None:
        """Decide nothing any more, and let another controller lead at once."""
        self._leadership.resign()
        self._socket.shutdown(socket.SHUT_RDWR)

    def _hear(self) -> None:
        line = self._lines.readline()
        if not line:
            eventlet.sleep(PAUSE_SECONDS)
            _begin_anew("the process that keeps its lease has ended")
        self._leadership.told(Standing.decode(line))
        self._require_lead()

    def _beat(self) -> None:
        self._require_lead()
        self._socket.sendall(f"{now()}\n".encode())

    def _require_lead(self) -> None:
        if self._leadership.is_deposed:
            _begin_anew("its lease has ended")


def _begin_anew(why: str) -> NoReturn:
    """Nothing that a deposed leader knew, planned or was about to send may last: same process, new program."""
    log.warning("this controller begins anew as a standby: %s", why)
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
