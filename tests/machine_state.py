"""What our commands could leave on a machine, to compare before and after."""

import json
import subprocess
from pathlib import Path

OURS = ("ovs-vswitchd", "ovsdb-server", "speedwell", "iperf3")


def left_on_machine() -> dict[str, set[str]]:
    """Processes, network interfaces, mounts and run-time files that belong to Speedwell."""
    return {"processes": _processes(), "interfaces": _interfaces(), "mounts": _mounts(), "files": _files()}


def _processes() -> set[str]:
    found = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:
            continue
        if command.startswith("mininet:") or any(name in command for name in OURS):
            found.add(f"{entry.name} {command[:150]}")
    return found


def _interfaces() -> set[str]:
    listed = subprocess.run(["ip", "-json", "link"], capture_output=True, check=True).stdout
    return {interface["ifname"] for interface in json.loads(listed)}


def _mounts() -> set[str]:
    return {line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()
            if "fuse" in line.split()[2]}


def _files() -> set[str]:
    return {str(path) for path in Path("/run/speedwell").glob("*.json")} if Path("/run/speedwell").exists() else set()


def in_chroot() -> bool:
    """Whether / is no mount point."""
    mountpoints = (line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines())
    return "/" not in mountpoints


PROPAGATION = ("--propagation", "unchanged") if in_chroot() else ()
"""What is mounted is not to be seen on the machine; below a root that is no mount point it cannot be changed, and a
container that has such a root shares nothing."""
