"""Where an authority answers other machines: over TLS 1.3, in JSON.

    GET /v1/authority    its certificate, for everybody: a join token has its hash
    POST /v1/join        {"token", "requests": {ROLE: PEM}}: the certificates that the token is for
    POST /v1/renew       {"request": PEM}, of who has a certificate: one for a new key
    GET /v1/revoked      of who has a certificate: which ones are revoked, also as etcd takes it, and where the
                         controllers are; of a controller, too, the bearer tokens and what it shows to switches

What is refused is answered as application/problem+json (RFC 9457).
"""

import json
import logging
import ssl
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, NamedTuple

from cryptography import x509

from speedwell.fs.addresses import parse_address
from speedwell.fs.errors import IdentityError, InvalidArgument, reason
from speedwell.fs.identity import bearer, files, invitations, register
from speedwell.fs.identity.authority import Authority, Holder
from speedwell.fs.identity.bundle import Identity, Peer, peer_of
from speedwell.fs.identity.places import controllers_for
from speedwell.fs.identity.roles import AUTHORITY, CONTROLLER
from speedwell.fs.identity.secured_http import SecuredHTTPServer

log = logging.getLogger(__name__)

MOST_BYTES = 64 << 10
RENEWED_AGAIN_AT = 1 / 60
"""Of a new certificate's time its holder gets another one with the old one: the answer may have been lost."""


class Refused(Exception):
    """A request that is not granted."""

    def __init__(self, status: HTTPStatus, detail: str) -> None:
        super().__init__(detail)
        self.status = status


class Enrollment(SecuredHTTPServer):
    """Of the authority in `directory`, whose identity for other machines is `identity`."""

    def __init__(self, directory: Path, listen: str) -> None:
        """Raises IdentityError, InvalidArgument."""
        host, port = parse_address(listen, "--listen", lowest_port=0)
        self.directory = directory
        self.note_answer: Callable[[str, int], None] = lambda request, status: None
        identity = Identity(directory / AUTHORITY).require_role(AUTHORITY)
        try:
            super().__init__(host, port, _Handler, identity)
        except OSError as error:
            raise InvalidArgument(f"--listen: cannot listen on {listen}: {reason(error)}") from None

    # ------------------------------------------------------------------ what is asked for

    def certificate(self, connection: ssl.SSLSocket, question: dict[str, Any]) -> dict[str, Any]:
        return {"authority": (self.directory / files.AUTHORITY).read_text()}

    def join(self, connection: ssl.SSLSocket, question: dict[str, Any]) -> dict[str, Any]:
        token, requests = question.get("token"), question.get("requests")
        if not isinstance(token, str) or not isinstance(requests, dict) or not all(
                isinstance(each, str) and each.isascii() for each in (token, *requests, *requests.values())):
            raise Refused(HTTPStatus.BAD_REQUEST, "token, requests: a text, and texts by role")
        invitation, certificates = invitations.redeem(
            self.directory, token, {role: request.encode() for role, request in requests.items()})
        log.info("%s has joined as %s", invitation.machine, ", ".join(certificates))
        controller = certificates.get(invitations.name_of(invitation.machine, CONTROLLER))
        return {"certificates": {name: each.decode() for name, each in certificates.items()},
                "settings": invitation.settings,
                **self._news(x509.load_pem_x509_certificate(controller) if controller else None)}

    def renew(self, connection: ssl.SSLSocket, question: dict[str, Any]) -> dict[str, Any]:
        known = self._require(connection)
        authority = Authority(self.directory)
        issued = {each.serial: each for each in register.read(self.directory)[0] if each.name == known.name}
        shown, newest = issued.get(known.serial), next(reversed(issued.values()), None)
        if shown is None or newest is None or not newest.elsewhere or newest.role != known.role:
            raise Refused(HTTPStatus.FORBIDDEN, f"the {known} has not joined from another machine")
        now = time.time()
        again_at = newest.issued_at + RENEWED_AGAIN_AT * (newest.expires_at - newest.issued_at)
        if not shown.is_due(now) or (newest is not shown and now < again_at):
            raise Refused(HTTPStatus.CONFLICT, f"the certificate of the {known} is not due for renewal")
        key = invitations.requested_key(str(question.get("request")).encode(errors="replace"))
        made = authority.enrol({Holder(newest.name, newest.role, newest.scope, newest.address): key}, renews=True)
        log.info("renewed the certificate of %s", newest.name)
        return {"certificate": made[newest.name].decode()}

    def revoked(self, connection: ssl.SSLSocket, question: dict[str, Any]) -> dict[str, Any]:
        peer = self._require(connection)
        shown = x509.load_der_x509_certificate(connection.getpeercert(binary_form=True) or b"")
        return self._news(shown if peer.role == CONTROLLER else None)

    def _require(self, connection: ssl.SSLSocket) -> Peer:
        if not connection.getpeercert():
            raise Refused(HTTPStatus.FORBIDDEN, "only clients with a certificate may ask this")
        peer = peer_of(connection)
        if refusal := self.identity.refusal(peer):
            raise Refused(HTTPStatus.FORBIDDEN, refusal)
        if all(each.serial != peer.serial for each in register.read(self.directory)[0]):
            Authority(self.directory).learn(_shown(connection, peer))
        return peer

    def _news(self, controller: x509.Certificate | None) -> dict[str, Any]:
        news: dict[str, Any] = {"revoked": files.read_json(self.directory / AUTHORITY / files.REVOKED),
                                "revocation_list": (self.directory / files.REVOCATION_LIST).read_text(),
                                "controllers": controllers_for(self.directory / AUTHORITY)}
        if controller is not None:
            tokens = self.directory / bearer.TOKENS
            news["tokens"] = files.read_json(tokens) if tokens.exists() else {}
            news["to_switches"] = Authority(self.directory).to_switches(controller).decode()
        return news


class _Route(NamedTuple):
    method: str
    path: str


_ROUTES = {_Route("GET", "/v1/authority"): Enrollment.certificate, _Route("POST", "/v1/join"): Enrollment.join,
           _Route("POST", "/v1/renew"): Enrollment.renew, _Route("GET", "/v1/revoked"): Enrollment.revoked}


class _Handler(BaseHTTPRequestHandler):
    server: Enrollment
    connection: ssl.SSLSocket
    server_version, sys_version = "Speedwell", ""

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002  (its name in the library)
        log.debug(format, *arguments)

    def _answer(self) -> None:
        try:
            route = _ROUTES.get(_Route(self.command, self.path))
            if route is None:
                raise Refused(HTTPStatus.NOT_FOUND, f"there is no {self.command} {self.path[:60]}")
            self._send(HTTPStatus.OK, route(self.server, self.connection, self._question()))
        except Refused as refusal:
            self._refuse(refusal.status, str(refusal))
        except IdentityError as error:
            self._refuse(HTTPStatus.FORBIDDEN, str(error))

    def _question(self) -> dict[str, Any]:
        length = self.headers.get("Content-Length", "0")
        if not (length.isascii() and length.isdigit() and len(length) < 10 and int(length) <= MOST_BYTES):
            raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a request has {MOST_BYTES} bytes at most")
        try:
            question = json.loads(self.rfile.read(int(length)) or b"{}")
        except (ValueError, RecursionError):
            question = None
        if not isinstance(question, dict):
            raise Refused(HTTPStatus.BAD_REQUEST, "the request is no JSON object")
        return question

    def _refuse(self, status: HTTPStatus, detail: str) -> None:
        log.warning("%s: %s %s was refused: %s", self.client_address[0], self.command, self.path[:60], detail)
        self._send(status, {"type": "about:blank", "title": status.phrase, "status": status.value,
                            "detail": detail}, "application/problem+json")

    def _send(self, status: HTTPStatus, answer: dict[str, Any], kind: str = "application/json") -> None:
        body = json.dumps(answer).encode()
        known = _Route(self.command, self.path) in _ROUTES
        self.server.note_answer(f"{self.command} {self.path}" if known else "unknown", status.value)
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _shown(connection: ssl.SSLSocket, peer: Peer) -> register.Certificate:
    shown: dict[str, Any] = connection.getpeercert() or {}
    addresses = [value for kind, value in shown["subjectAltName"] if kind == "IP Address"]
    return register.Certificate(peer.name, peer.role, peer.serial, ssl.cert_time_to_seconds(shown["notBefore"])
                                + register.CLOCK_SKEW_SECONDS, peer.expires_at, scope=str(peer.scope or ""),
                                address=addresses[0] if addresses else "", elsewhere=True)
