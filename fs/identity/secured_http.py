"""An HTTP server over TLS 1.3 whose connections are few and short: of CONNECTIONS at once one more ends the oldest,
and each has SECONDS for its requests. Who asks may show a certificate; what it is good for, the handler decides."""

import logging
import socket
import ssl
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from speedwell.fs.identity.bundle import Identity
from speedwell.fs.wire.handshakes import LINGER_SECONDS, TOLD_SECONDS

log = logging.getLogger(__name__)

CONNECTIONS = 64
SECONDS = 10.0
_LINGER_BYTES = 64 << 10


class SecuredHTTPServer(ThreadingHTTPServer):
    """Of who has that identity."""

    daemon_threads = True
    request_queue_size = CONNECTIONS

    def __init__(self, host: str, port: int, handler: type[BaseHTTPRequestHandler], identity: Identity) -> None:
        """Raises OSError where it cannot listen."""
        self.identity = identity
        self._open: dict[socket.socket, tuple[socket.socket, float]] = {}   # another descriptor, since when
        self._lock = threading.Lock()
        self._told_at = -TOLD_SECONDS
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            oldest = next(iter(self._open)) if len(self._open) >= CONNECTIONS else None
            self._open[request] = request.dup(), time.monotonic()
        self._end(oldest)
        try:
            super().process_request(request, client_address)
        except RuntimeError:    # out of threads
            self._end(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._end(request)

    def service_actions(self) -> None:
        """Called twice a second."""
        late = time.monotonic() - SECONDS
        with self._lock:
            slow = [each for each, (_, since) in self._open.items() if since < late]
        for each in slow:
            self._end(each)

    def _end(self, connection: socket.socket | None) -> None:
        with self._lock:
            same, _ = self._open.pop(connection, (None, 0.0)) if connection is not None else (None, 0.0)
        if same is not None:
            with same, suppress(OSError):
                same.shutdown(socket.SHUT_RDWR)

    def finish_request(self, request: Any, client_address: Any) -> None:
        with self.identity.server_context(anonymous=True).wrap_socket(
                request, server_side=True, do_handshake_on_connect=False) as secured:
            try:
                secured.do_handshake()
                super().finish_request(secured, client_address)
            finally:
                _linger(secured)

    def handle_error(self, request: Any, client_address: Any) -> None:
        now = time.monotonic()
        if now < self._told_at + TOLD_SECONDS:      # strangers do not fill the log
            return
        self._told_at = now
        log.info("%s was not served", client_address[0], exc_info=log.isEnabledFor(logging.DEBUG))


def _linger(connection: ssl.SSLSocket) -> None:
    """So that an answer or an alert arrives: unread bytes would turn the close into a reset."""
    with suppress(OSError):
        socket.socket.shutdown(connection, socket.SHUT_WR)
        connection.settimeout(LINGER_SECONDS)
        while socket.socket.recv(connection, _LINGER_BYTES):
            pass
