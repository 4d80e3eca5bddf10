"""What the machine must offer before a fabric can be emulated on it."""

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path
from typing import Literal

from speedwell.topo.emulation.errors import MissingRequirement

DatapathType = Literal["system", "netdev"]

_PROGRAMS_OF_PACKAGE = {
    "openvswitch-switch": ("ovsdb-server", "ovs-vswitchd", "ovsdb-tool", "ovs-vsctl", "ovs-ofctl"),
    "mininet": ("mnexec",),
    "iproute2": ("ip", "tc"),
    "ethtool": ("ethtool",),
    "util-linux": ("nsenter", "unshare"),
}
_SYSTEM_DIRECTORIES = "/usr/local/sbin:/usr/sbin:/sbin"


def check() -> None:
    """Raise `MissingRequirement` for the first thing this machine lacks."""
    if os.geteuid() != 0:
        raise MissingRequirement("emulating a fabric needs root: run the command with sudo")
    search_path = f"{os.environ.get('PATH', os.defpath)}:{_SYSTEM_DIRECTORIES}"
    for package, programs in _PROGRAMS_OF_PACKAGE.items():
        for program in programs:
            if shutil.which(program, path=search_path) is None:
                raise MissingRequirement(f"{program} is missing: apt-get install {package}")
    if not switch_schema().is_file():
        raise MissingRequirement(f"{switch_schema()} is missing: apt-get install openvswitch-switch")
    if importlib.util.find_spec("mininet") is None:
        raise MissingRequirement(
            "this Python cannot import mininet: apt-get install mininet, and use an environment made with "
            "/usr/bin/python3 -m venv --system-site-packages")


def switch_schema() -> Path:
    """The schema of Open vSwitch's configuration database."""
    return Path(os.environ.get("OVS_PKGDATADIR", "/usr/share/openvswitch")) / "vswitch.ovsschema"


def datapath_type() -> DatapathType:
    """`system` where the kernel has Open vSwitch's datapath, loading its module if need be; else `netdev`."""
    if not Path("/sys/module/openvswitch").is_dir():
        modprobe = shutil.which("modprobe", path=f"{os.environ.get('PATH', os.defpath)}:{_SYSTEM_DIRECTORIES}")
        if modprobe is None:
            return "netdev"
        if subprocess.run([modprobe, "-q", "openvswitch"], capture_output=True, check=False).returncode:
            return "netdev"
    return "system"
