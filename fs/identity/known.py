"""The identity that a program takes to a nameserver."""

import functools
import os
from pathlib import Path

from speedwell.fs.identity.bundle import Identity
from speedwell.fs.identity.places import VARIABLE, known


def identity_for(nameserver: str, directory: Path | str | None = None) -> Identity | None:
    """The one in `directory`, else in SPEEDWELL_IDENTITY, else what is known of a nameserver (`HOST:PORT,...`); None:
    none, then connections are plain. Raises IdentityError for one that is of no use."""
    chosen = directory or os.environ.get(VARIABLE) or known(nameserver)
    return _shared(Path(chosen).absolute()) if chosen else None


@functools.lru_cache(maxsize=64)
def _shared(directory: Path) -> Identity:
    return Identity(directory)
