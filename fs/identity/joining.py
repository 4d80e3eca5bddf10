"""A machine that has joined: how it gets its certificates, and new ones in time.

    DIRECTORY/joined.json    where the authority listens, and where it may once its machine is lost: any that keeps
                             the names
    DIRECTORY/controllers    where the controllers are
    DIRECTORY/revoked.crl    of a machine with a member of etcd: what that knows of revoked certificates
    DIRECTORY/NAME/          the identity of a part of this machine (`speedwell.fs.identity.bundle`)

Keys are made here and stay here; certificate requests (PKCS #10) go to the authority (`fs.identity.enrollment`).
"""

import json
import shutil
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from speedwell.fs import durable
from speedwell.fs.addresses import parse_address
from speedwell.fs.errors import IdentityError, reason
from speedwell.fs.identity import bearer, files, register
from speedwell.fs.identity.authority import private_pem
from speedwell.fs.identity.bundle import Identity, explain
from speedwell.fs.identity.invitations import Token, fingerprint, name_of
from speedwell.fs.identity.places import controllers_in
from speedwell.fs.identity.roles import AUTHORITY, CONTROLLER, ETCD, host_of

JOINED = "joined.json"
SECONDS = 10.0
_KEYS = "joining.pem"
"""It stays until all is done: so long the same token may come again."""


def join(directory: Path, token: Token, settle: Callable[[dict[str, str]], object] = dict) -> dict[str, str]:
    """Get the certificates that a token is for into `directory`, a new or empty one; returns what the authority says
    of the installation, once `settle` has taken it. Where nobody answered, `settle` failed or this was killed, it may
    be repeated with the same token. Raises IdentityError; of a refusal nothing is left."""
    made = not directory.exists()
    if not made and not is_begun(directory) and any(_KEYS not in path.name for path in directory.iterdir()):
        raise IdentityError(f"{directory} is not empty: name a new directory")
    authority = authority_at(token.authority)
    if fingerprint(authority) != token.fingerprint:
        raise IdentityError(f"who listens at {token.authority} is not the authority that the token is of")
    context = _context()
    context.load_verify_locations(cadata=authority.decode())
    keys = _keys(files.make_directory(directory) / _KEYS, token.roles)
    try:
        answer = _ask(token.authority, "POST", "/v1/join", {
            "token": token.secret, "requests": {role: _request(key) for role, key in keys.items()}}, context)
        settings = dict(answer["settings"])
        for role, key in keys.items():
            name = name_of(token.machine, role, settings.get("host", ""))
            place = files.make_directory(directory / name)
            durable.replace(place / files.AUTHORITY, authority)
            _take_news(place, answer, role, private_pem(key))
            durable.replace(place / files.CERTIFICATE, answer["certificates"][name].encode() + private_pem(key))
        port = token.authority.rpartition(":")[2]
        keepers = [f"{each.rpartition(':')[0]}:{port}" for each in settings.get("nameserver", "").split(",") if each]
        _remember(directory, [*dict.fromkeys([token.authority, *keepers])])
    except _Lost:
        raise
    except IdentityError:
        shutil.rmtree(directory)
        if not made:
            files.make_directory(directory)
        raise
    except (KeyError, TypeError, AttributeError, ValueError):
        raise _Lost(f"{token.authority} answers as no authority does") from None
    settle(settings)
    (directory / _KEYS).unlink()
    return settings


def is_begun(directory: Path) -> bool:
    """Whether a machine has begun to join there, and has not ended it."""
    return (directory / _KEYS).exists()


def authority_at(address: str) -> bytes:
    """The certificate of the authority that listens there, as it says. Raises IdentityError."""
    return str(_ask(address, "GET", "/v1/authority", {}, _untrusting()).get("authority")).encode()


def answering(directory: Path, but: str) -> str:
    """Where an authority answers the machine that joined in `directory`, other than at `but`; empty if nowhere."""
    for address in _known(directory):
        with suppress(IdentityError):
            if address != but and authority_at(address):
                return address
    return ""


def hear(directory: Path) -> None:
    """Learn what was revoked, for each of the identities in `directory`, and where the controllers are. Raises
    IdentityError."""
    def ask(place: Path, authority: str) -> None:
        identity = Identity(place)
        news = _ask(authority, "GET", "/v1/revoked", {}, identity.client_context())
        _take_news(place, news, identity.own.role, files.key_in((place / files.CERTIFICATE).read_bytes()))

    _for_each(directory, ask)


def renew_due(directory: Path, now: float) -> list[str]:
    """Renew what is due of the identities in `directory`; returns whose. Raises IdentityError."""
    def renew(place: Path, authority: str) -> None:
        if not certificate_of(place).is_due(now):
            return
        key = ec.generate_private_key(ec.SECP256R1())
        answer = _ask(authority, "POST", "/v1/renew", {"request": _request(key)}, Identity(place).client_context())
        durable.replace(place / files.CERTIFICATE, answer["certificate"].encode() + private_pem(key))
        renewed.append(place.name)

    renewed: list[str] = []
    _for_each(directory, renew)
    return renewed


def _for_each(directory: Path, act: Callable[[Path, str], None]) -> None:
    """One that is refused keeps the others from nothing."""
    known = _known(directory)
    refused: dict[str, None] = {}
    for place in sorted(path.parent for path in directory.glob(f"*/{files.CERTIFICATE}")):
        silent: list[str] = []
        for authority in known:
            try:
                act(place, authority)
            except _Lost as error:
                silent.append(str(error))
                continue
            except IdentityError as error:
                refused[str(error)] = None
            except (KeyError, TypeError, AttributeError, ValueError):
                refused[f"{place} is damaged, or {authority} answers as no authority does"] = None
            if authority != known[0]:
                known = [authority, *(each for each in known if each != authority)]
                _remember(directory, known)
            break
        else:
            refused["; ".join(silent)] = None
    if refused:
        raise IdentityError("; ".join(refused))


def _known(directory: Path) -> list[str]:
    said = files.read_json(directory / JOINED)
    return [str(said.get("authority")), *map(str, said.get("others", []))]


def _remember(directory: Path, authorities: Sequence[str]) -> None:
    """The first one apart, which an earlier version reads."""
    first, *others = authorities
    durable.replace(directory / JOINED, json.dumps({"authority": first, "others": others}).encode())


class _Lost(IdentityError):
    """Whether the authority did it is not known."""


def certificate_of(place: Path) -> register.Certificate:
    """Of the identity in `place`. Raises OSError, ValueError or TypeError for one that is damaged."""
    with (place / files.CERTIFICATE).open("rb") as stream:
        return register.Certificate(**json.loads(stream.readline()))


def _take_news(place: Path, news: Mapping[str, Any], role: str, key: bytes) -> None:
    if role == CONTROLLER:
        files.replace_with(place / files.TO_SWITCHES, news["to_switches"].encode(), key)
    wanted = {files.REVOKED: "revoked", **({bearer.TOKENS: "tokens"} if role == CONTROLLER else {})}
    found = [(place / name, json.dumps(dict(news[field])).encode()) for name, field in wanted.items()]
    if role == ETCD:
        found.append((place.parent / files.REVOCATION_LIST, str(news["revocation_list"]).encode()))
    if controllers := controllers_in(news.get("controllers")):  # earlier versions of authorities say nothing
        found.append((place.parent / files.CONTROLLERS, controllers.encode()))
    durable.replace_others(found)


def _keys(path: Path, roles: tuple[str, ...]) -> dict[str, ec.EllipticCurvePrivateKey]:
    """Those of a try that was interrupted, or new ones."""
    end = b"-----END PRIVATE KEY-----\n"
    left = path.read_bytes().split(end)[:-1] if path.exists() else []
    if len(left) != len(roles):
        left = [private_pem(ec.generate_private_key(ec.SECP256R1())).removesuffix(end) for _ in roles]
        durable.replace(path, b"".join(each + end for each in left))
    keys = {role: serialization.load_pem_private_key(each + end, None)
            for role, each in zip(roles, left, strict=True)}
    return {role: key for role, key in keys.items() if isinstance(key, ec.EllipticCurvePrivateKey)}


def _request(key: ec.EllipticCurvePrivateKey) -> str:
    return x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(
        key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


def _untrusting() -> ssl.SSLContext:
    """To fetch what is compared with a hash that is known."""
    context = _context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _ask(authority: str, method: str, path: str, question: Mapping[str, Any],
         context: ssl.SSLContext) -> dict[str, Any]:
    """Raises IdentityError with what the authority says; `_Lost` if it says nothing."""
    host, port = parse_address(authority, "authority")
    connection = HTTPConnection(host, port)
    try:
        with (socket.create_connection((host, port), SECONDS) as plain,
              context.wrap_socket(plain, server_hostname=host_of(AUTHORITY)) as secured):
            connection.sock = secured
            connection.request(method, path, json.dumps(question), {"Content-Type": "application/json"})
            reply = connection.getresponse()
            answer = json.loads(reply.read(1 << 20))
    except ssl.SSLError as error:
        raise _Lost(f"the authority at {authority}: {explain(error) or reason(error)}") from None
    except (OSError, HTTPException, ValueError) as error:
        raise _Lost(f"the authority at {authority} does not answer: {reason(error)}") from None
    if not isinstance(answer, dict):
        raise _Lost(f"{authority} answers as no authority does")
    if reply.status != 200:
        raise IdentityError(f"the authority at {authority}: {answer.get('detail')}")
    return answer
