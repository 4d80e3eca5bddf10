"""Hosts of a fabric that know each other's hardware addresses for good, as hosts do that often talk to each other.

A question for an address waits in the host's own queue. Where flows fill that, it is lost and asked again a second
later, so whoever meets a host first would measure that.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable

from speedwell.cluster.errors import StartFailed
from speedwell.topo.emulation.processes import in_namespace
from speedwell.topo.fabric import Fabric


def introduce(fabric: Fabric, pid_of: Callable[[str], int]) -> None:
    """`pid_of` gives the process by which a host's namespaces are entered. Raises StartFailed."""
    for host in fabric.hosts:
        lines = [f"neigh replace {other.ip} lladdr {other.mac} dev eth0 nud permanent\n"
                 for other in fabric.hosts if other != host]
        done = subprocess.run(in_namespace(pid_of(host.name), ["ip", "-batch", "-"]), input="".join(lines), text=True,
                              capture_output=True, check=False)
        if done.returncode:
            raise StartFailed(f"{host.name} cannot be set up: {done.stderr.strip()}")
