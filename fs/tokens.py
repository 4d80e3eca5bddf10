"""Tokens: what the nameserver has signed for a client, and dataservers ask for before they serve a content.

After HDFS's block tokens: whoever has one may do what it says with that content until it ends. Nameserver and
dataservers share the key, which no client knows.
"""

import hmac
import struct
from collections.abc import Mapping
from hashlib import blake2b
from typing import NamedTuple

from fs.errors import TokenRefused

READ, WRITE, SERVE, OPERATE = 1, 2, 4, 8
"""Rights: read a content, append to it and make versions from it, act as another dataserver, act as an operator (on
all contents)."""

MAC_BYTES = 16
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


def sign(key: int, secret: bytes, file_id: str, rights: int, now_ms: int, valid_ms: int, inode: int = 0) -> bytes:
    """A token for the content of a file, from now on for so long. One for operators is for all contents."""
    claims = _CLAIMS.pack(key, now_ms + valid_ms, valid_ms, rights, inode)
    return claims + _mac(claims, secret, "" if rights & OPERATE else file_id)


def read(token: bytes) -> Claims:
    """What it says, true or not. Raises TokenRefused if it is none."""
    if len(token) != TOKEN_BYTES:
        raise TokenRefused(NOT_OURS if token else MISSING)
    return Claims._make(_CLAIMS.unpack_from(token))


def gives_no(right: int, token: bytes) -> bool:
    """Whether a token that the nameserver has just given lacks a right; False if it gives none at all."""
    return len(token) == TOKEN_BYTES and not read(token).rights & (right | OPERATE)


def verified(token: bytes, file_id: str, secrets: Mapping[int, bytes]) -> Claims:
    """What it says about that content, signed with one of the keys. Raises TokenRefused, UnknownKey."""
    claims = read(token)
    secret = secrets.get(claims.key)
    if secret is None:
        raise UnknownKey(NOT_OURS)
    expected = _mac(token[:_CLAIMS.size], secret, "" if claims.rights & OPERATE else file_id)
    if not hmac.compare_digest(expected, token[_CLAIMS.size:]):
        raise TokenRefused(NOT_OURS)
    return claims


MISSING = ("token: there is none; the nameserver gives one with the attributes of each file, and clients of this "
           "version send it")
NOT_OURS = "token: it is not one that this installation gives out for this content now: look the file up again"


def _mac(claims: bytes, secret: bytes, file_id: str) -> bytes:
    return blake2b(claims + file_id.encode(), key=secret, digest_size=MAC_BYTES).digest()
