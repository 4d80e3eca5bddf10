"""`/metrics` over TLS, for readers and operators of the installation."""

import ssl
import threading
from http import HTTPStatus
from pathlib import Path

from prometheus_client import CollectorRegistry, MetricsHandler

from speedwell.fs.errors import IdentityError
from speedwell.fs.identity.bundle import Identity, peer_of
from speedwell.fs.identity.roles import OPERATOR, READER
from speedwell.fs.identity.secured_http import SecuredHTTPServer


class SecuredMetrics(SecuredHTTPServer):
    """Answers from the start on, on threads of its own. Raises IdentityError, OSError."""

    def __init__(self, host: str, port: int, registry: CollectorRegistry, identity: Path) -> None:
        super().__init__(host, port, type("Handler", (_Handler,), {"registry": registry}), Identity(identity))
        threading.Thread(target=self.serve_forever, name="metrics", daemon=True).start()


class _Handler(MetricsHandler):
    server: SecuredMetrics
    connection: ssl.SSLSocket
    server_version, sys_version = "Speedwell", ""

    def do_GET(self) -> None:  # noqa: N802  (its name in the library)
        if refusal := self._refusal():
            self.send_error(HTTPStatus.FORBIDDEN, refusal)
        else:
            super().do_GET()

    def _refusal(self) -> str:
        if not self.connection.getpeercert():
            return "here only clients with a certificate are served"
        try:
            peer = peer_of(self.connection)
        except IdentityError as error:
            return str(error)
        if peer.role not in (READER, OPERATOR):
            return f"the {peer} may not read metrics: that is for reader, operator"
        return self.server.identity.refusal(peer)
