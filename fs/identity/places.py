"""Which identity goes to which nameserver, where nobody says: what `speedwell up` made on this machine.

    STATE/identities/HOST:PORT    the directory of the identity with which commands of this user talk to it

The state directory is SPEEDWELL_STATE_DIRECTORY if set; /run/speedwell for root; $XDG_STATE_HOME/speedwell
(by default ~/.local/state/speedwell) for everybody else.
"""

import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from speedwell.fs import durable
from speedwell.fs.addresses import parse_url
from speedwell.fs.errors import InvalidArgument
from speedwell.fs.identity import files

VARIABLE = "SPEEDWELL_IDENTITY"
"""Of the environment: the directory of the identity to take to every nameserver."""

STATE_VARIABLE = "SPEEDWELL_STATE_DIRECTORY"
MACHINE_DIRECTORY = Path("/run/speedwell")

MOST_CONTROLLERS = 8
MOST_SAID = 64
"""So many URLs are looked at, good or not."""
MOST_BYTES = 64 << 10


def state_directory() -> Path:
    """Where this user's state files go; not made here."""
    chosen = os.environ.get(STATE_VARIABLE)
    if chosen:
        return Path(chosen).absolute()
    if os.geteuid() == 0:
        return MACHINE_DIRECTORY
    home = os.environ.get("XDG_STATE_HOME")
    return (Path(home) if home else Path.home() / ".local" / "state") / "speedwell"


def remember(nameserver: str, directory: Path) -> None:
    """From now on this user's programs take the identity in `directory` to those addresses."""
    place = state_directory() / "identities"
    place.mkdir(parents=True, exist_ok=True)
    for address in nameserver.split(","):
        durable.replace(place / address, os.fsencode(directory))


def forget(nameserver: str) -> None:
    """Whoever listens there from now on is somebody else."""
    for address in nameserver.split(","):
        (state_directory() / "identities" / address).unlink(missing_ok=True)


def known(nameserver: str) -> Path | None:
    """The directory of the identity for one of those addresses, however its host is written."""
    place = state_directory() / "identities"
    for address in _spellings(nameserver) if os.access(place, os.X_OK) else ():
        with suppress(OSError):
            directory = Path(os.fsdecode((place / address).read_bytes()))
            if (directory / files.CERTIFICATE).exists():
                return directory
    return None


def controllers_for(directory: Path | str | None = None, own: str = "") -> str:
    """The URLs of an installation's controllers, with commas between them, as this machine was told last: of that
    which the identity in `directory`, else in SPEEDWELL_IDENTITY, is of. Empty if there are none. `own` are those
    that the machine was made with: one of which others are not told leads its programs alone."""
    chosen = directory or os.environ.get(VARIABLE)
    told = ""
    with suppress(OSError, UnicodeDecodeError):
        if chosen:
            with (Path(chosen).parent / files.CONTROLLERS).open("rb") as stream:
                told = controllers_in(stream.read(MOST_BYTES).decode())
    return told if not own or {*own.split(",")} <= {*told.split(",")} else own


def controllers_in(said: object) -> str:
    """The URLs of controllers in what a machine was told of them; what else there is, such as one at http://, where
    nobody proves who they are, is passed over."""
    found: dict[str, None] = {}
    for url in said.split(",", MOST_SAID)[:MOST_SAID] if isinstance(said, str) else ():
        with suppress(InvalidArgument):
            if parse_url(url)[0] == "https":
                found[url] = None
    return ",".join([*found][:MOST_CONTROLLERS])


def _spellings(nameserver: str) -> Iterator[str]:
    addresses = nameserver.split(",")
    yield from addresses
    for address in addresses:
        host, _, port = address.rpartition(":")
        with suppress(OSError, UnicodeError):
            for *_, found in socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM):
                yield f"{found[0]}:{port}"
