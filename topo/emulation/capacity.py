"""Whether this machine can hold a fabric: refused before anything is made, with the limit that it is beyond."""

import re
from pathlib import Path

from speedwell.topo.emulation.errors import TooLarge
from speedwell.topo.fabric import Fabric

MAX_NODES = 1023    # ports of the Linux bridge that is the management network
SWITCH_BYTES = 18 << 20     # proportional set size of its ovsdb-server and ovs-vswitchd
HOST_BYTES = 2 << 20        # of its shell
_MEMORY = Path("/proc/meminfo")
_GIB = 1 << 30


def check_number(fabric: Fabric, *, machine: bool = False) -> None:
    """Raise `TooLarge` if the fabric has too many nodes. With `machine` this machine will be one more host."""
    hosts, switches = len(fabric.hosts), len(fabric.switches)
    if hosts + switches + machine > MAX_NODES:
        raise TooLarge(f"{fabric.name} has {hosts} hosts and {switches} switches; a machine emulates at most "
                       f"{MAX_NODES - machine} in all{', and itself as one more host' if machine else ''}. "
                       "`speedwell simulate` takes fabrics of any size")


def check(fabric: Fabric, host_service_bytes: int = 0, available_bytes: int | None = None) -> None:
    """Raise `TooLarge` if the fabric has too many nodes, or needs more memory than is available now.

    `host_service_bytes` is what the services need that are to run on each host; `available_bytes` is for tests.
    """
    check_number(fabric)
    hosts, switches = len(fabric.hosts), len(fabric.switches)
    available = _available_bytes() if available_bytes is None else available_bytes
    needed = hosts * (HOST_BYTES + host_service_bytes) + switches * SWITCH_BYTES
    if needed > available:
        raise TooLarge(f"{fabric.name} of {hosts} hosts and {switches} switches needs {needed / _GIB:.1f} GiB "
                       f"of memory, of which this machine has {available / _GIB:.1f} GiB available")


def _available_bytes() -> int:
    found = re.search(r"MemAvailable:\s+(\d+) kB", _MEMORY.read_text())
    assert found is not None, f"{_MEMORY} names no MemAvailable"
    return int(found[1]) << 10
