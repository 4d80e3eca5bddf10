"""What a process holds to prove who it is and to know the others: the directory named with `--identity`.

    DIRECTORY/identity.pem     its key and certificate, for their owner alone
    DIRECTORY/authority.pem    the certificate of the authority that it trusts; of a switch: that of controllers alone
    DIRECTORY/to-switches.pem  of a controller: the key and the certificate that it shows to switches
    DIRECTORY/revoked.json     the certificates that count for nothing any more: whose they were, by serial number
    DIRECTORY/tokens.json      of a controller: the tokens that are as good as a certificate (`fs.identity.bearer`)
"""

import json
import logging
import os
import ssl
import stat
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from speedwell.fs import durable
from speedwell.fs.errors import IdentityError
from speedwell.fs.identity import bearer, files
from speedwell.fs.identity.roles import CONTROLLER, NAMESERVER, host_of
from speedwell.fs.identity.scope import SCHEME, Scope, parsed

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.5
"""So late at most a renewed certificate or a revoked one is noticed."""

MOST_REVOKED = 16384
"""Revoked certificates that are told on to other machines: the last ones."""


@dataclass(frozen=True)
class Peer:
    """Who is at the other end of a connection, by a certificate of the authority. Times are seconds since 1970."""

    name: str
    role: str
    serial: str
    expires_at: float
    scope: Scope | None = None      # None: for everybody, everywhere

    def __str__(self) -> str:
        return self.text

    @cached_property
    def text(self) -> str:
        """As `str`, for who asks at each request."""
        return f"{self.role} {self.name}"


class Identity:
    """The identity in `directory`. Thread-safe. Files that change are read again while it is in use."""

    def __init__(self, directory: Path | str) -> None:
        """Raises IdentityError, saying what is wrong with the files."""
        self.directory = Path(directory)
        self._lock = threading.Lock()
        self._look_at = time.monotonic() + LOOK_SECONDS
        self._signs = self._now_there()
        self._load()

    def require_role(self, role: str) -> "Identity":
        """Raises IdentityError if it is another one's."""
        if self.own.role != role:
            raise IdentityError(f"{self.directory} is the identity of the {self.own}, not of a {role}")
        return self

    @property
    def own(self) -> Peer:
        """Who we are."""
        self._refresh()
        return self._own

    @property
    def generation(self) -> int:
        """Another number when something has changed."""
        self._refresh()
        return self._generation

    def server_context(self, *, anonymous: bool = False, to_switches: bool = False) -> ssl.SSLContext:
        """For the listening end: TLS 1.3, and only peers with a certificate of the authority; `anonymous` ones with
        none, too. `to_switches`, which trust another authority, a controller shows what that has signed."""
        self._refresh()
        return self._to_switches[ssl.PROTOCOL_TLS_SERVER] if to_switches else (
            self._anonymous if anonymous else self._server)

    def wrap_client(self, connection: Any, role: str) -> ssl.SSLSocket:
        """Shake hands with a server of that role, within the connection's timeout. Raises OSError; ssl.SSLError
        says what is wrong with the server, `explain` in plain words."""
        return self.client_context().wrap_socket(connection, server_hostname=host_of(role))

    def client_context(self, *, to_switches: bool = False) -> ssl.SSLContext:
        """For the connecting end: TLS 1.3, and only servers with a certificate of the authority for the host name
        that is asked for. `to_switches` as for `server_context`."""
        self._refresh()
        return self._to_switches[ssl.PROTOCOL_TLS_CLIENT] if to_switches else self._client

    def grpc_credentials(self) -> Any:
        """For the connecting end of gRPC: they are what they were when something changes. Raises IdentityError."""
        import grpc

        try:
            own = (self.directory / files.CERTIFICATE).read_bytes()
            return grpc.ssl_channel_credentials((self.directory / files.AUTHORITY).read_bytes(), own, own)
        except OSError as error:
            raise IdentityError(f"{self.directory} is no identity: {error.strerror}") from None

    def refusal(self, peer: Peer) -> str:
        """Why a peer is not served or trusted any more; empty for most."""
        self._refresh()
        if peer.serial in self._revoked:
            return f"the certificate of the {peer} was revoked"
        if time.time() >= peer.expires_at:
            return f"the certificate of the {peer} has expired"
        return ""

    @property
    def revoked(self) -> Mapping[str, str]:
        """Whose certificates count for nothing any more, by serial number: another object when there are more."""
        self._refresh()
        return self._revoked

    def learn(self, revoked: Mapping[str, str]) -> None:
        """What another machine knows of revoked certificates, for the next start, too."""
        with self._lock:
            if revoked.items() <= self._revoked.items():
                return
            self._revoked = {**self._revoked, **revoked}
            try:
                durable.replace(self.directory / files.REVOKED, json.dumps(self._revoked).encode())
            except OSError as error:
                log.error("cannot keep what was revoked in %s: %s", self.directory, error.strerror)

    def peer_by_token(self, token: str) -> Peer | None:
        """Who has that bearer token; None if it is not good, or no longer."""
        self._refresh()
        hashed = bearer.digest(token)
        found = self._tokens.get(hashed)
        if found is None or time.time() >= found.expires_at:
            return None
        return Peer(found.name, found.role, hashed, found.expires_at)

    # ------------------------------------------------------------------ private

    _generation = 0
    _revoked: Mapping[str, str] = {}
    _to_switches: Mapping[int, ssl.SSLContext] = {}

    def _refresh(self) -> None:
        now = time.monotonic()
        if now < self._look_at:
            return
        with self._lock:
            if now < self._look_at:
                return
            self._look_at = now + LOOK_SECONDS
            try:
                signs = self._now_there()
                if signs != self._signs:
                    self._load()
                    self._signs = signs
            except IdentityError as error:
                log.error("%s: going on with what was there before", error)

    def _now_there(self) -> list[tuple[int, int]]:
        return [_sign(self.directory / name) for name in (
            files.CERTIFICATE, files.TO_SWITCHES, files.AUTHORITY, files.REVOKED, bearer.TOKENS)]

    def _load(self) -> None:
        place = self.directory / files.CERTIFICATE
        try:
            own = json.loads(_private(place).partition(b"\n")[0])
            scope = parsed(own["scope"]) if own.get("scope") else None
            self._own = Peer(own["name"], own["role"], own["serial"], own["expires_at"], scope)
            self._server, self._anonymous, self._client = (self._context(kind) for kind in (
                ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT))
            self._anonymous.verify_mode = ssl.CERT_OPTIONAL
            if self._own.role == NAMESERVER:
                self._server.set_alpn_protocols(["h2"])     # else gRPC does not talk to us
            if self._own.role == CONTROLLER:
                shown = self.directory / files.TO_SWITCHES
                if shown.exists():
                    _private(shown)
                else:
                    shown = place       # it comes within seconds from an authority that an earlier version made
                self._to_switches = {kind: self._context(kind, shown.name) for kind in (
                    ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT)}
            self._tokens = bearer.known(self.directory)
            revoked = self.directory / files.REVOKED
            if revoked.exists():
                self._revoked = {**self._revoked, **files.read_json(revoked)}
        except OSError as error:    # ssl.SSLError is one too
            raise IdentityError(f"{self.directory} is no identity: {error.strerror or error}") from None
        except (KeyError, TypeError, ValueError):
            raise IdentityError(f"{place} is damaged") from None
        self._generation += 1

    def _context(self, protocol: int, shown: str = files.CERTIFICATE) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(self.directory / shown)
        context.load_verify_locations(self.directory / files.AUTHORITY)
        if protocol == ssl.PROTOCOL_TLS_SERVER:
            context.num_tickets = 0     # nothing arrives that was not asked for: an idle connection is silent
        return context


def peer_of(connection: ssl.SSLSocket | ssl.SSLObject) -> Peer:
    """Whom the handshake has proved the other end to be. Raises IdentityError for a certificate that says neither."""
    certificate: dict[str, Any] = connection.getpeercert() or {}
    subject = {key: value for part in certificate.get("subject", ()) for key, value in part}
    scopes = [value for kind, value in certificate.get("subjectAltName", ()) if kind == "URI"
              and value.startswith(SCHEME)]
    try:
        return Peer(subject["commonName"], subject["organizationalUnitName"],
                    certificate["serialNumber"].lstrip("0"), ssl.cert_time_to_seconds(certificate["notAfter"]),
                    parsed(scopes[0]) if scopes else None)
    except (KeyError, ValueError):
        raise IdentityError("the certificate has no name and role") from None


_ALERTS = {
    "CERTIFICATE_EXPIRED": "it does not take our certificate, which has expired",
    "UNKNOWN_CA": "it does not take our certificate: that is of another installation",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it shows no certificate",
    "CERTIFICATE_REQUIRED": "it takes only clients with a certificate",
    "HANDSHAKE_FAILURE": "it takes only clients with a certificate",
    "UNSUPPORTED_CERTIFICATE": "it does not take our certificate for this purpose",
    "BAD_CERTIFICATE": "it does not take our certificate",
    "PROTOCOL_VERSION": "it speaks another version of TLS",
    "WRONG_VERSION_NUMBER": "it does not speak TLS: is it --insecure?",
}


def explain(error: ssl.SSLError) -> str | None:
    """What an error of a handshake means, None if it is about no certificate: the connection broke."""
    if isinstance(error, ssl.SSLCertVerificationError):
        if "Hostname mismatch" in error.verify_message:
            return "its certificate is of another role"
        return f"its certificate is not good: {error.verify_message}"
    return next((text for name, text in _ALERTS.items() if name in (error.reason or "")), None)


def _private(place: Path) -> bytes:
    """What is in a file with a key. Raises IdentityError if others can read it, OSError."""
    with place.open("rb") as stream:
        if stat.S_IMODE(os.fstat(stream.fileno()).st_mode) & 0o077:
            raise IdentityError(f"{place} can be read by others: chmod 600 {place}")
        return stream.read()


def _sign(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:
        return 0, 0
    return found.st_ino, found.st_mtime_ns
