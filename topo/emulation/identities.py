"""Certificates of a fabric whose controller has no installation around it.

    DIRECTORY/identity/    as fs.identity.authority has it: the controller, the switches, `operator` for commands
"""

import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import requests

from speedwell.fs.identity import files, places
from speedwell.fs.identity.authority import Authority
from speedwell.fs.identity.roles import CONTROLLER, OPERATOR, SWITCH
from speedwell.topo.emulation.errors import EmulationError
from speedwell.topo.fabric.addresses import MACHINE_ADDRESS

FOLDER = "identity"
_MARK = ".of-emulation"
"""In what may be removed with all that is in it."""
REST_PORT = 8080
_REST = f"{MACHINE_ADDRESS}:{REST_PORT}"


def make(directory: Path) -> Path:
    """The identities of our controller and of commands, which find theirs by its address; returns where all are.
    Raises EmulationError where somebody else's are, which stay as they are."""
    place = directory.resolve() / FOLDER
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not (place / _MARK).exists() and any(place.iterdir()):
        raise EmulationError(f"{place} is not an emulation's: name another directory")
    (place / _MARK).touch()
    authority = Authority.make(place)
    authority.ensure([(CONTROLLER, CONTROLLER), (OPERATOR, OPERATOR)], MACHINE_ADDRESS)
    places.remember(_REST, authority.directory / OPERATOR)
    return authority.directory


def add_switches(identities: Path, dpids: Iterable[str]) -> None:
    """Let the switches with these datapath ids have theirs. Raises IdentityError."""
    Authority(identities).ensure([(dpid, SWITCH) for dpid in dpids])


def remove(directory: Path) -> None:
    """Undo `make`."""
    if not (directory / FOLDER / _MARK).exists():
        return
    with suppress(OSError):
        places.forget(_REST)
    shutil.rmtree(directory / FOLDER, ignore_errors=True)


def options(identities: Path | None) -> list[str]:
    """Of speedwell-controller."""
    return ["--identity", str(identities / CONTROLLER)] if identities else ["--insecure=fabric"]


def url(identities: Path | None) -> str:
    """Of our controller's REST interface."""
    return f"{'https' if identities else 'http'}://{_REST}"


def session(identities: Path | None) -> requests.Session:
    """For requests to it."""
    made = requests.Session()
    made.trust_env = False      # neither a proxy nor other authorities
    if identities is not None:
        made.cert = str(identities / OPERATOR / files.CERTIFICATE)
        made.verify = str(identities / files.AUTHORITY)
    return made
