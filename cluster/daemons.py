"""The daemons' executables: one that lacks a library names the extra that brings it."""

import sys
from collections.abc import Callable
from importlib import import_module
from typing import NoReturn

from speedwell.fs.command_line import missing


def _executable(name: str, module: str, extra: str) -> Callable[[], NoReturn]:
    def main() -> NoReturn:
        try:
            program = import_module(f"speedwell.{module}.main").main
        except ModuleNotFoundError as error:
            sys.exit(f"{name}: {missing(error.name, extra)}")
        sys.exit(program())

    return main


controller = _executable("speedwell-controller", "controller", "controller")
nameserver = _executable("speedwell-nameserver", "fs.nameserver", "server")
dataserver = _executable("speedwell-dataserver", "fs.dataserver", "server")
metadata_store = _executable("speedwell-metadata-store", "fs.metadata_store", "server")
host_agent = _executable("speedwell-host-agent", "host_agent", "server")
timeslices = _executable("speedwell-timeslices", "controller.timeslices", "controller")
