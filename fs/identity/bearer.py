"""Bearer tokens, for scripts and browsers, who have no certificate. Whoever has one is its role.

    AUTHORITY/tokens/NAME     the token, for its owner alone
    AUTHORITY/tokens.json     by its hash: the name, the role and the end; controllers have a copy beside their key
"""

import hashlib
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from speedwell.fs import durable
from speedwell.fs.identity import files, register
from speedwell.fs.identity.roles import CONTROLLER, OPERATOR, READER, checked_name

TOKENS = "tokens.json"
FOLDER = "tokens"
ROLES = (READER, OPERATOR)
VALIDITY_SECONDS = 30 * 86400.0


@dataclass(frozen=True)
class Bearer:
    """Who has a token; `expires_at` in seconds since 1970."""

    name: str
    role: str
    expires_at: float


def digest(token: str) -> str:
    """What is kept of a token: it has 256 random bits, which nobody guesses from their hash."""
    return hashlib.sha256(token.encode()).hexdigest()


def known(directory: Path) -> dict[str, Bearer]:
    """By their hash, those that `directory`, an authority's or a controller's, knows. Raises IdentityError."""
    return files.read_records(directory / TOKENS, Bearer)


def issue(directory: Path, name: str, role: str = READER, validity_seconds: float = VALIDITY_SECONDS) -> Path:
    """A new token of the authority in `directory`, which takes the place of that name's last; returns the file that
    has it. Raises IdentityError."""
    checked_name(name)
    token = secrets.token_urlsafe(32)
    with files.locked(directory):
        left = _without(directory, name)
        place = files.make_directory(directory / FOLDER) / name
        durable.replace(place, token.encode() + b"\n")
        _save(directory, {**left, digest(token): Bearer(name, role, time.time() + validity_seconds)})
    return place


def ensure(directory: Path, name: str) -> None:
    """A reader's token, if there is none of that name, or none that is good for half of its time."""
    found = None
    with suppress(FileNotFoundError):
        found = known(directory).get(digest((directory / FOLDER / name).read_text().strip()))
    if found is None or found.expires_at <= time.time() + VALIDITY_SECONDS / 2:
        issue(directory, name)


def revoke(directory: Path, name: str) -> bool:
    """Whether there was one: no controller takes it from now on."""
    with files.locked(directory):
        left = _without(directory, name)
        if left == known(directory):
            return False
        _save(directory, left)
        (directory / FOLDER / name).unlink(missing_ok=True)
        return True


def spread(directory: Path) -> None:
    """Have all controllers of the authority in `directory` know its tokens."""
    content = files.as_json(known(directory))
    controllers = {each.name for each in register.read(directory)[0] if each.role == CONTROLLER}
    durable.replace_others((directory / name / TOKENS, content)
                           for name in controllers if (directory / name).is_dir())


def _without(directory: Path, name: str) -> dict[str, Bearer]:
    return {hashed: each for hashed, each in known(directory).items() if each.name != name}


def _save(directory: Path, tokens: dict[str, Bearer]) -> None:
    durable.replace(directory / TOKENS, files.as_json(tokens))
    spread(directory)
