"""Join tokens: with one, another machine gets its certificates, once.

    AUTHORITY/invitations.json    by the hash of a token: for which machine and roles, until when, and whose it became

A token names where the authority listens and the hash of its certificate, by which the machine knows it.
"""

import base64
import hashlib
import json
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from speedwell.fs import durable
from speedwell.fs.addresses import parse_address
from speedwell.fs.errors import IdentityError, SpeedwellError
from speedwell.fs.identity import files
from speedwell.fs.identity.authority import Authority, Holder
from speedwell.fs.identity.bearer import digest
from speedwell.fs.identity.roles import ADDRESSED, DATASERVER, JOINING, METADATA_STORE, SCOPED, checked_name
from speedwell.fs.identity.scope import Scope

INVITATIONS = "invitations.json"
VALIDITY_SECONDS = 3600.0
TOLD_SECONDS = 7 * 86400.0
"""So long the holder of a token is told that it was used or has ended, and not that it is unknown."""
_PREFIX = "speedwell-join-"
_ENDED = "-"


class Token(NamedTuple):
    """What a join token says: `authority` is HOST:PORT, `fingerprint` the SHA-256 of its certificate in hex. The
    authority goes by its own record of `machine` and `roles`."""

    authority: str
    fingerprint: str
    machine: str
    roles: tuple[str, ...]
    secret: str

    def __str__(self) -> str:
        return _PREFIX + base64.urlsafe_b64encode(json.dumps(self).encode()).decode().rstrip("=")


def parsed(text: str) -> Token:
    """What `str` made. Raises IdentityError for anything else."""
    try:
        if not text.startswith(_PREFIX):
            raise ValueError(text)
        coded = text.removeprefix(_PREFIX)
        authority, fingerprint, machine, roles, secret = json.loads(
            base64.b64decode(coded + "=" * (-len(coded) % 4), b"-_", validate=True))
        if not all(isinstance(each, str) for each in (authority, fingerprint, secret, *roles)):
            raise TypeError
        parse_address(authority, "authority")
        return Token(authority, fingerprint, checked_name(machine), _checked(roles), secret)
    except (ValueError, TypeError, RecursionError, SpeedwellError):
        raise IdentityError("this is no join token: copy the whole line that `speedwell identity invite` "
                            "printed") from None


@dataclass(frozen=True)
class Invitation:
    """Times are seconds since 1970; `settings` are for the configuration of what joins; `used_by` is the hash of the
    keys that were certified for it, empty before."""

    machine: str
    roles: list[str]
    expires_at: float
    scope: str = ""
    address: str = ""
    settings: dict[str, str] = field(default_factory=dict)
    used_by: str = ""

    @property
    def names(self) -> list[str]:
        return [name_of(self.machine, role, self.address) for role in self.roles]

    def holder(self, role: str) -> Holder:
        return Holder(name_of(self.machine, role, self.address), certified(role),
                      self.scope if role in SCOPED else "", self.address if role in ADDRESSED else "")


def name_of(machine: str, role: str, address: str = "") -> str:
    """Whose certificate a machine's part has: a dataserver is known by the machine's name alone, a server of metadata
    records by its `address`, as the controller knows no other name of a host."""
    if role == METADATA_STORE:
        return address
    return machine if role == DATASERVER else f"{role}-{machine}"


def certified(role: str) -> str:
    """The role in the certificate of a machine's part."""
    return DATASERVER if role == METADATA_STORE else role


def fingerprint(certificate_pem: bytes) -> str:
    """Raises IdentityError for what is no certificate."""
    try:
        return x509.load_pem_x509_certificate(certificate_pem).fingerprint(hashes.SHA256()).hex()
    except ValueError:
        raise IdentityError("the authority's certificate is damaged") from None


def invite(directory: Path, listens: str, machine: str, roles: Sequence[str], *, scope: Scope | None = None,
           address: str = "", settings: Mapping[str, str] | None = None,
           validity_seconds: float = VALIDITY_SECONDS, free: Callable[[], None] = lambda: None) -> Token:
    """A token for one machine, from the authority in `directory`, which is reached at `listens`, HOST:PORT. `address`
    is the machine's, for `ADDRESSED` roles. `free` may free its names, as all else is right. Raises IdentityError."""
    parse_address(listens, "authority")
    checked_name(machine)
    chosen = _checked(roles)
    if scope is not None and not set(chosen) & set(SCOPED):
        raise IdentityError(f"--uids: only {' and '.join(SCOPED)} are for some users")
    for role in chosen:
        if role in (*ADDRESSED, METADATA_STORE) and not address:
            raise IdentityError(f"--address: the role {role} is known by its IP address")
    authority = Authority(directory)
    free()
    _require_free(authority, [name_of(machine, role, address) for role in chosen])
    token = Token(listens, fingerprint((directory / files.AUTHORITY).read_bytes()), machine, chosen,
                  secrets.token_urlsafe(32))
    made = Invitation(machine, list(chosen), time.time() + validity_seconds, str(scope or ""), address,
                      dict(settings or {}))
    with files.locked(directory):
        _save(directory, {**_kept(directory), digest(token.secret): made})
    return token


def redeem(directory: Path, secret: str, requests: Mapping[str, bytes]) -> tuple[Invitation, dict[str, bytes]]:
    """Certify keys that have come with a token: `requests` has a certificate request in PEM by role. Returns the
    certificates as `Authority.enrol` does. Who repeats it with the same keys, because the answer was lost, gets new
    ones, unless one of them was revoked. Raises IdentityError, having changed nothing."""
    keys = {role: requested_key(request) for role, request in requests.items()}
    used_by = _digest(keys)
    hashed = digest(secret)
    authority = Authority(directory)
    with files.locked(directory):
        invitations = _known(directory)
        found = invitations.get(hashed)
        if found is None:
            raise IdentityError("the join token is not known here: it was taken back, or is of another installation")
        if time.time() >= found.expires_at:
            raise IdentityError("the join token has ended: `speedwell identity invite` makes a new one")
        if found.used_by not in ("", used_by):
            raise IdentityError("the join token was used already: each is good for one machine, once")
        if set(keys) != set(found.roles):
            raise IdentityError(f"the join token is for {', '.join(found.roles)}, "
                                f"not for {', '.join(keys) or 'nothing'}")
        if not found.used_by:
            _require_free(authority, found.names)
            _save(directory, {**invitations, hashed: replace(found, used_by=used_by)})
    return found, authority.enrol({found.holder(role): key for role, key in keys.items()}, renews=bool(found.used_by))


def withdraw(directory: Path, name: str) -> bool:
    """Take back the tokens of a machine of that name that were not used; whether there were any. Who got a
    certificate of that name with one does not get it again."""
    with files.locked(directory):
        known = _known(directory)
        left = {hashed: replace(each, used_by=_ENDED) if each.used_by and name in each.names else each
                for hashed, each in known.items() if each.machine != name or each.used_by}
        if left != known:
            _save(directory, left)
        return len(left) < len(known)


def requested_key(request_pem: bytes) -> ec.EllipticCurvePublicKey:
    """The key that a request proves to be its sender's; all else in it is passed over. Raises IdentityError."""
    try:
        request = x509.load_pem_x509_csr(request_pem)
        key = request.public_key()
        if not (isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1)
                and request.is_signature_valid):
            raise ValueError
        return key
    except Exception:   # the library has an error of its own for each way to be malformed
        raise IdentityError("csr: it is no certificate request for a key on P-256") from None


# ------------------------------------------------------------------ private


def _checked(roles: Sequence[str]) -> tuple[str, ...]:
    if not roles or len(set(roles)) != len(roles) or not set(roles) <= set(JOINING):
        raise IdentityError(f"roles: {', '.join(roles) or 'none'}: name some of {', '.join(JOINING)}, each once")
    return tuple(roles)


def _require_free(authority: Authority, names: Sequence[str]) -> None:
    newest = authority.newest()
    for name in names:
        if name in newest and newest[name].revoked_at is None:
            raise IdentityError(f"{name} has a certificate as {newest[name].role} already: `speedwell identity "
                                f"revoke {name}` takes it back")


def _digest(keys: Mapping[str, ec.EllipticCurvePublicKey]) -> str:
    whole = hashlib.sha256()
    for role in sorted(keys):
        whole.update(role.encode() + b"\0" + keys[role].public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo))
    return whole.hexdigest()


def _known(directory: Path) -> dict[str, Invitation]:
    return files.read_records(directory / INVITATIONS, Invitation)


def _kept(directory: Path) -> dict[str, Invitation]:
    now = time.time()
    return {hashed: each for hashed, each in _known(directory).items() if now < each.expires_at + TOLD_SECONDS}


def _save(directory: Path, invitations: Mapping[str, Invitation]) -> None:
    durable.replace(directory / INVITATIONS, files.as_json(invitations))
