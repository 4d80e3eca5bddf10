"""What the machine spends on the emulated switches."""

import contextlib
import os
from pathlib import Path


def switch_cpu_seconds() -> float:
    """Processor time (user and system, seconds) that all running ovs-vswitchd processes have used."""
    ticks = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                stat = (entry / "stat").read_text()
                name, fields = stat[stat.index("(") + 1:stat.rindex(")")], stat[stat.rindex(")") + 2:].split()
                if name == "ovs-vswitchd":
                    ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")
