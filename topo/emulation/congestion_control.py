"""TCP's congestion control in the hosts' namespaces.

A new namespace takes over the machine's algorithm and may choose only among those that the machine allows to
processes without privileges, so that list has to hold the one the emulation uses.
"""

import subprocess
from collections.abc import Callable
from pathlib import Path

from speedwell.topo.emulation.errors import MissingRequirement

_SETTINGS = Path("/proc/sys/net/ipv4")
_DEFAULT = "cubic"
_ALLOWED = _SETTINGS / "tcp_allowed_congestion_control"


def choose(wanted: str | None) -> tuple[str, Callable[[], None]]:
    """The algorithm for the hosts, and what takes back a permission that had to be given for it.

    None means cubic where the machine lets namespaces use it, or else the machine's own algorithm.
    Raises `MissingRequirement` if the one that is wanted cannot be had.
    """
    if wanted is not None:
        return wanted, _permit(wanted)
    try:
        return _DEFAULT, _permit(_DEFAULT)
    except MissingRequirement:
        return (_SETTINGS / "tcp_congestion_control").read_text().strip(), lambda: None


def _permit(algorithm: str) -> Callable[[], None]:
    """Allow `algorithm` in namespaces; returns what takes the permission back if it was not there before.

    Raises `MissingRequirement` if the kernel lacks the algorithm or keeps it from namespaces.
    """
    available = (_SETTINGS / "tcp_available_congestion_control").read_text().split()
    if algorithm not in available:
        raise MissingRequirement(f"congestion_control: this kernel has no {algorithm!r}, only {', '.join(available)}")
    take_back = _allow(algorithm)
    probe = ["unshare", "--net", "sh", "-c", f"echo {algorithm} > {_SETTINGS}/tcp_congestion_control"]
    if subprocess.run(probe, capture_output=True, check=False).returncode:
        take_back()
        raise MissingRequirement(
            f"congestion_control: namespaces may not use {algorithm!r} here; on the machine itself, outside of any "
            f"network namespace, run: echo {' '.join(available)} > {_ALLOWED}")
    return take_back


def _allow(algorithm: str) -> Callable[[], None]:
    before = _ALLOWED.read_text()
    if algorithm in before.split():
        return lambda: None
    try:
        _ALLOWED.write_text(f"{before.strip()} {algorithm}\n")
    except PermissionError:  # only the machine's first namespace may change it
        return lambda: None

    def take_back() -> None:
        _ALLOWED.write_text(before)

    return take_back
