"""The executables: one that lacks a library names the extra that brings it, and Ctrl-C ends one that still loads."""

import os
import signal
import sys
from collections.abc import Callable
from typing import Any, NoReturn

INTERRUPTED = 130


def _executable(name: str, module: str, extra: str) -> Callable[[], NoReturn]:
    def end(*_: Any) -> NoReturn:
        os.write(2, f"{name}: interrupted\n".encode())
        os._exit(INTERRUPTED)

    def main() -> NoReturn:
        can_be_interrupted = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if can_be_interrupted:      # not one that a shell has put into the background
            signal.signal(signal.SIGINT, end)
        try:
            from importlib import import_module

            program = import_module(f"speedwell.{module}").main
        except ModuleNotFoundError as error:
            from speedwell.fs.command_line import missing

            sys.exit(f"{name}: {missing(error.name, extra)}")
        if can_be_interrupted:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.exit(program())

    return main


speedwell = _executable("speedwell", "cluster.cli", "client")
mount = _executable("speedwell-mount", "fuse_mount.main", "client")
mount_helper = _executable("mount.speedwell", "cluster.mount_helper", "client")
certificates = _executable("speedwell-certificates", "fs.identity.main", "client")
controller = _executable("speedwell-controller", "controller.main", "controller")
nameserver = _executable("speedwell-nameserver", "fs.nameserver.main", "server")
dataserver = _executable("speedwell-dataserver", "fs.dataserver.main", "server")
metadata_store = _executable("speedwell-metadata-store", "fs.metadata_store.main", "server")
host_agent = _executable("speedwell-host-agent", "host_agent.main", "server")
timeslices = _executable("speedwell-timeslices", "controller.timeslices.main", "controller")
