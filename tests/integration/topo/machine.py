"""What an emulation could leave on the machine."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from speedwell.topo.emulation.processes import MARKER_VARIABLE
from tests.machine_state import left_on_machine
from tests.waiting import wait_until


def namespaces() -> set[str]:
    found = set()
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                found.add(str((process / "ns" / "net").readlink()))
            except OSError:  # it ended meanwhile
                continue
    return found


def processes() -> dict[int, str]:
    """Pid and command line of what runs for an emulation."""
    found = {}
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) != os.getpid():
            try:
                if f"{MARKER_VARIABLE}=".encode() in (process / "environ").read_bytes():
                    found[int(process.name)] = (process / "cmdline").read_text().replace("\0", " ")
            except OSError:
                continue
    return found


def running(program: str) -> int:
    return sum(command.startswith(program) for command in processes().values())


def state() -> tuple[object, ...]:
    return processes(), namespaces(), left_on_machine()["interfaces"], left_on_machine()["files"]


@contextmanager
def nothing_stays_behind() -> Iterator[None]:
    before = state()
    yield
    wait_until(lambda: state() == before, 15, "something of the emulation stays behind")
