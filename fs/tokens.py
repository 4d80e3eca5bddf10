"""Tokens: what the nameserver has signed for a client, and dataservers ask for before they serve a content.

After HDFS's block tokens: whoever has one may do what it says with that content until it ends. Nameserver and
dataservers share the key, which no client knows.
"""

import hmac
import struct
from collections.abc import Mapping
from hashlib import blake2b
from typing import NamedTuple

from speedwell.fs.errors import TokenRefused

READ, WRITE, SERVE, OPERATE, BOUND = 1, 2, 4, 8, 16
"""Rights: read a content, append to it and make versions from it, act as another dataserver, act as an operator (on
all contents); and that all this is for one client, who has proved on the connection who it is."""

TOLERANCE_MS = 60_000
"""A token counts for so much longer: the nameservers' clocks may differ by that. Those of other machines may show
anything: a dataserver goes by what the nameserver's clock showed at the last heartbeat."""

ALL_CONTENTS = "*"
MAC_BYTES = 16
NONCE_BYTES = 16
SECRET_BYTES = 32
_CLAIMS = struct.Struct(">IQIBQ")
TOKEN_BYTES = _CLAIMS.size + MAC_BYTES


class UnknownKey(TokenRefused):
    """Signed with a key that is not known here."""


class Claims(NamedTuple):
    """What a token says. Times are milliseconds by the nameserver's clock."""

    key: int
    ends_ms: int
    valid_ms: int
    rights: int
    inode: int      # of the file whose content it is; 0: not said

    @property
    def signed_ms(self) -> int:
        return self.ends_ms - self.valid_ms


def sign(key: int, secret: bytes, file_id: str, rights: int, now_ms: int, valid_ms: int, inode: int = 0,
         client: str = "") -> bytes:
    """A token for the content of a file, from now on for so long. One for operators is for all contents; one without
    a `client` for everybody."""
    claims = _CLAIMS.pack(key, now_ms + valid_ms, valid_ms, rights | (BOUND if client else 0), inode)
    return claims + _mac(claims, secret, file_id, rights, client)


def read(token: bytes) -> Claims:
    """What it says, true or not. Raises TokenRefused if it is none."""
    if len(token) != TOKEN_BYTES:
        raise TokenRefused(NOT_OURS if token else MISSING)
    return Claims._make(_CLAIMS.unpack_from(token))


def gives_no(right: int, token: bytes) -> bool:
    """Whether a token that the nameserver has just given lacks a right; False if it gives none at all."""
    return len(token) == TOKEN_BYTES and not read(token).rights & (right | OPERATE)


def verified(token: bytes, file_id: str, secrets: Mapping[int, bytes], client: str = "") -> Claims:
    """What it says about that content to a `client`, empty for one that is not known, signed with one of the keys.
    Raises TokenRefused, UnknownKey."""
    claims = read(token)
    secret = secrets.get(claims.key)
    if secret is None:
        raise UnknownKey(NOT_OURS)
    is_bound = claims.rights & BOUND
    if is_bound and not client:
        raise TokenRefused(UNPROVEN)
    expected = _mac(token[:_CLAIMS.size], secret, file_id, claims.rights, client if is_bound else "")
    if not hmac.compare_digest(expected, token[_CLAIMS.size:]):
        raise TokenRefused(NOT_OURS)
    return claims


def proof_secret(secret: bytes, client: str) -> bytes:
    """With which that client proves who it is: the nameserver tells it that, and dataservers derive it."""
    return blake2b(client.encode(), key=secret, digest_size=SECRET_BYTES, person=b"client").digest()


def proof(client_secret: bytes, nonce: bytes, dataserver_id: str) -> bytes:
    """What only that client can answer to the nonce of that dataserver."""
    return blake2b(nonce + dataserver_id.encode(), key=client_secret, digest_size=MAC_BYTES, person=b"proof").digest()


def is_proof(shown: bytes, client: str, secret: bytes, nonce: bytes, dataserver_id: str) -> bool:
    """Whether that was answered to a nonce, which counts once."""
    expected = proof(proof_secret(secret, client), nonce, dataserver_id)
    return len(nonce) == NONCE_BYTES and bool(client) and hmac.compare_digest(expected, shown)


MISSING = ("token: there is none; the nameserver gives one with the attributes of each file, and clients of this "
           "version send it")
NOT_OURS = "token: it is not one that this installation gives out for this content now: look the file up again"
UNPROVEN = ("token: it is for one client, and this connection has not proved whose it is: clients of this version do "
            "that by themselves")


def _mac(claims: bytes, secret: bytes, file_id: str, rights: int, client: str) -> bytes:
    content = b"" if rights & OPERATE else file_id.encode()
    whom = b"\0" + client.encode() if client else b""      # no client's name has a zero byte
    return blake2b(claims + content + whom, key=secret, digest_size=MAC_BYTES).digest()
