"""Which certificates an authority has issued: what can be known without the library that makes them."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from speedwell.fs import durable
from speedwell.fs.errors import IdentityError
from speedwell.fs.identity import files

ISSUED = "issued.json"

CLOCK_SKEW_SECONDS = 300.0
"""By so much another machine's clock may be behind."""

RENEWED_AT = 2 / 3
"""Of its time a certificate is renewed: the last third is for repairing what keeps it from being so."""


@dataclass(frozen=True)
class Certificate:
    """One that was issued. Times are seconds since 1970; `revoked_at` is None for one that was not revoked."""

    name: str
    role: str
    serial: str
    issued_at: float
    expires_at: float
    revoked_at: float | None = None
    scope: str = ""     # of speedwell.fs.identity.scope; empty: for everybody, everywhere
    address: str = ""   # the IP address that its holder is known by, too
    elsewhere: bool = False     # its key never was here: its holder has joined, and asks for a new one in time

    def is_due(self, now: float) -> bool:
        """Whether it should be renewed; also one that is not good yet: the clock was wrong when it was issued."""
        due = self.issued_at + RENEWED_AT * (self.expires_at - self.issued_at)
        return not self.issued_at - CLOCK_SKEW_SECONDS <= now < due


def read(directory: Path) -> tuple[list[Certificate], float]:
    """Those of the authority in `directory`, in the order of issuing, and for how many seconds new ones are valid, 0:
    as long as by default. Raises IdentityError."""
    path = directory / ISSUED
    try:
        document = files.read_json(path)
        return [Certificate(**each) for each in document["certificates"]], float(document["validity_seconds"])
    except FileNotFoundError:
        return [], 0.0
    except (KeyError, TypeError, ValueError):
        raise IdentityError(f"{path} is damaged") from None


def write(directory: Path, certificates: Sequence[Certificate], validity_seconds: float) -> None:
    """Replace the list."""
    durable.replace(directory / ISSUED, json.dumps({
        "validity_seconds": validity_seconds, "certificates": [asdict(each) for each in certificates]},
        indent=2).encode())


def kept(directory: Path) -> list[Certificate]:
    """The newest of each holder whose key is here, but for revoked ones. Raises IdentityError."""
    newest = {each.name: each for each in read(directory)[0]}
    return [each for each in newest.values() if each.revoked_at is None and not each.elsewhere]


def is_due(directory: Path, now: float) -> bool:
    """Whether a certificate should be renewed, or an authority is missing. Raises IdentityError."""
    return not (directory / files.SWITCH_AUTHORITY).exists() or any(each.is_due(now) for each in kept(directory))
