"""Files with secrets: readable for their owner alone."""

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from speedwell.fs import durable
from speedwell.fs.errors import IdentityError

T = TypeVar("T")
CERTIFICATE = "identity.pem"
"""Certificate and key in one file, so that both change at once."""

AUTHORITY = "authority.pem"
SWITCH_AUTHORITY = "switch-authority.pem"
TO_SWITCHES = "to-switches.pem"
"""As CERTIFICATE, but signed by the authority that switches trust."""

CONTROLLERS = "controllers"
"""Beside the identities of a machine: the URLs of the installation's controllers, with commas between them."""

REVOKED = "revoked.json"
REVOCATION_LIST = "revoked.crl"


def make_directory(path: Path) -> Path:
    """A directory that only its owner may enter, made if need be."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.chmod(0o700)
    return path


def any_identity(directory: Path) -> Path | None:
    """One of those in a machine's directory of identities, to show to who asks for no certain role. Never a switch's:
    that one trusts controllers alone."""
    to_switches = directory / SWITCH_AUTHORITY
    trusted = to_switches.read_bytes() if to_switches.exists() else b""
    return min((path.parent for path in directory.glob(f"*/{CERTIFICATE}")
                if (path.parent / AUTHORITY).read_bytes() != trusted), default=None)


def key_in(certificate: bytes) -> bytes:
    """The key at the end of what is in a CERTIFICATE."""
    return certificate[certificate.index(b"-----BEGIN PRIVATE KEY-----"):]


def replace_with(path: Path, headed: bytes, key: bytes) -> None:
    """Write a certificate and its key, unless a certificate with the same first line is there."""
    try:
        is_there = path.read_bytes().partition(b"\n")[0] == headed.partition(b"\n")[0]
    except FileNotFoundError:
        is_there = False
    if not is_there:
        durable.replace(path, headed + key)


def read_json(path: Path) -> dict[str, Any]:
    """Raises IdentityError for a file that is damaged; of one that is missing it is OSError."""
    try:
        document = json.loads(path.read_text())
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise IdentityError(f"{path} is damaged")
    return document


def read_records(path: Path, kind: type[T]) -> dict[str, T]:
    """Dataclasses of one kind, by their names; none where there is no file. Raises IdentityError if it is damaged."""
    try:
        return {name: kind(**each) for name, each in read_json(path).items()}
    except FileNotFoundError:
        return {}
    except TypeError:
        raise IdentityError(f"{path} is damaged") from None


def as_json(records: Mapping[str, Any]) -> bytes:
    """What `read_records` reads."""
    return json.dumps({name: asdict(each) for name, each in records.items()}).encode()


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """One process at a time changes what is in `directory`."""
    descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
