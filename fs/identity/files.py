"""Files with secrets: readable for their owner alone, replaced whole."""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fs.errors import IdentityError

CERTIFICATE = "identity.pem"
"""Certificate and key in one file, so that both change at once."""

AUTHORITY = "authority.pem"
REVOKED = "revoked.json"
REVOCATION_LIST = "revoked.crl"


def make_directory(path: Path) -> Path:
    """A directory that only its owner may enter, made if need be."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.chmod(0o700)
    return path


def replace(path: Path, content: bytes, mode: int = 0o600) -> None:
    """A reader, or a machine that loses power, sees the old content or the new one. Raises OSError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def read_json(path: Path) -> dict[str, Any]:
    """Raises IdentityError for a file that is damaged; of one that is missing it is OSError."""
    try:
        document = json.loads(path.read_text())
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise IdentityError(f"{path} is damaged")
    return document


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """One process at a time changes what is in `directory`."""
    descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
