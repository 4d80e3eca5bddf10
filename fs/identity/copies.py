"""A copy of an authority, by which another machine goes on in its place: the contents of its files, a JSON object.

What was issued after the copy was made is learned when its holder asks; what was revoked is to be revoked again.
"""

import json
from dataclasses import asdict
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from speedwell.fs import durable
from speedwell.fs.errors import IdentityError
from speedwell.fs.identity import bearer, files, register
from speedwell.fs.identity.authority import Authority
from speedwell.fs.identity.joining import certificate_of

KEY = "authority.key"
_FORM = serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
_NAMES = (KEY, "switch-authority.key", files.SWITCH_AUTHORITY, bearer.TOKENS, files.REVOCATION_LIST, files.AUTHORITY,
          register.ISSUED)
"""In the order in which they are written: with the last one the directory is an authority's."""


def write(directory: Path, copy: Path) -> None:
    """Copy the authority in `directory`. Raises IdentityError, OSError."""
    Authority(directory)
    with files.locked(directory):
        content = {name: (directory / name).read_text() for name in _NAMES if (directory / name).exists()}
    durable.replace(copy, json.dumps(content).encode())


def read(copy: Path, directory: Path) -> Authority:
    """Make the identities in `directory`, of a machine that has joined, those of the authority; returns that. Raises
    IdentityError, having changed nothing, and OSError."""
    content = files.read_json(copy)
    try:
        certificate = x509.load_pem_x509_certificate(content[files.AUTHORITY].encode())
        key = serialization.load_pem_private_key(content[KEY].encode(), None)
        issued = json.loads(content[register.ISSUED])
        certificates = {each["serial"]: register.Certificate(**each) for each in issued["certificates"]}
        if not (isinstance(key, ec.EllipticCurvePrivateKey) and set(content) <= set(_NAMES)
                and all(isinstance(each, str) for each in content.values())
                and key.public_key().public_bytes(*_FORM) == certificate.public_key().public_bytes(*_FORM)):
            raise ValueError
    except (KeyError, TypeError, ValueError, AttributeError):
        raise IdentityError(f"{copy} is no whole copy that `speedwell identity backup` has made") from None
    own = [place.parent for place in directory.glob(f"*/{files.CERTIFICATE}")]
    if not own or any((place / files.AUTHORITY).read_text() != content[files.AUTHORITY] for place in own):
        raise IdentityError(f"{copy} is of another installation than {directory}")
    certificates |= {found.serial: found for found in map(certificate_of, own) if found.serial not in certificates}
    here = {place.name for place in own}
    content[register.ISSUED] = json.dumps({**issued, "certificates": [
        {**asdict(each), "elsewhere": each.name not in here} for each in certificates.values()]})
    durable.replace_all([(directory / name, content[name].encode()) for name in _NAMES if name in content])
    return Authority(directory)
