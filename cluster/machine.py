"""What the machine spends, on the emulated switches and in all."""

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path


def switch_cpu_seconds() -> float:
    """Processor time (user and system, seconds) that all running ovs-vswitchd processes have used."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (entry / "comm").read_text() == "ovs-vswitchd\n":
                found.append(int(entry.name))
    return cpu_seconds(found)


def cpu_seconds(pids: Iterable[int]) -> float:
    """Processor time (user and system, seconds) that these processes have used, without those that have ended."""
    ticks = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def busy_seconds() -> float:
    """Processor time (seconds, all processors together) that this machine was not idle since it started."""
    fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    user, nice, system, _idle, _waiting, interrupts, soft_interrupts, _stolen = fields
    return (user + nice + system + interrupts + soft_interrupts) / os.sysconf("SC_CLK_TCK")
