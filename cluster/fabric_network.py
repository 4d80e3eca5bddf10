"""Commands on the machine that emulates a fabric reach the servers on it as the fabric's host `machine`."""

import json
import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

from speedwell.fs.identity.places import MACHINE_DIRECTORY, VARIABLE
from speedwell.topo.network_namespace import enter

STATE_FILE = MACHINE_DIRECTORY / "fabric.json"


def join(nameserver: str) -> str:
    """Have this process take part in the emulated fabric whose nameservers are `nameserver`, if there is one and the
    process is on none of its hosts yet. Call it before any thread starts.

    Returns why that is not possible: then the nameserver and the controller can be reached, and no dataserver. Empty
    if there is nothing in the way.
    """
    fabric = _fabric()
    if fabric is None or not set(nameserver.split(",")) & set(fabric.get("nameserver", "").split(",")):
        return ""
    return _join(fabric)


def join_toward(address: str) -> str:
    """As `join`, for what is sent to the host of the emulated fabric that has this address."""
    fabric = _fabric()
    if fabric is None or address not in {host["ip"] for host in fabric.get("hosts", {}).values()}:
        return ""
    return _join(fabric)


def _join(fabric: dict[str, Any]) -> str:
    if not _is_local(fabric["nameserver"].partition(":")[0]):
        return ""       # on a host of the fabric
    refusal = "this machine is not on the fabric of this installation: run the command on one of its hosts, " \
              "`speedwell enter HOST speedwell ...`"
    if "machine" not in fabric:
        return refusal
    try:
        enter(fabric["machine"]["pid"])
    except PermissionError:
        return f"{refusal} (only root can)"
    except OSError:
        return "this fabric's host `machine`, as which commands here take part, is gone: `speedwell up " \
               f"--installation {fabric.get('directory', 'DIR')}` starts the fabric again, with its files"
    os.environ.update(fabric["environment"])
    if fabric.get("identity"):
        os.environ.setdefault(VARIABLE, fabric["identity"])
    return ""


def identity() -> str:
    """The directory of the identity that the user's commands take on this machine's fabric; empty without one."""
    fabric = _fabric()
    return os.environ.get(VARIABLE) or (str(fabric.get("identity") or "") if fabric is not None else "")


def supervisor() -> int | None:
    """The process that keeps the fabric of this machine, if there is one."""
    fabric = _fabric()
    return fabric["supervisor"]["pid"] if fabric is not None else None


def _fabric() -> dict[str, Any] | None:
    with suppress(OSError, ValueError):
        found: dict[str, Any] = json.loads(Path(STATE_FILE).read_text())
        return found
    return None


def _is_local(address: str) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True
