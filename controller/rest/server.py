"""The HTTP server under the REST application: eventlet's, on Ryu's hub."""

import logging
import socket
from collections.abc import Callable
from typing import Any

import eventlet
import eventlet.wsgi

from controller.rest.problems import MEDIA_TYPE, BadRequest, describe

LOG = logging.getLogger(__name__)
KEEP_ALIVE_SECONDS = 75.0
REQUEST_TIMEOUT_SECONDS = 20.0
MAX_CONNECTIONS = 1024


class HttpProtocol(eventlet.wsgi.HttpProtocol):
    """eventlet's protocol with problem documents for what never becomes a request."""

    def get_environ(self) -> dict[str, Any]:
        environ: dict[str, Any] = super().get_environ()
        environ["speedwell.close"] = self._close_after_answer
        return environ

    def _close_after_answer(self) -> None:
        self.close_connection = True

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        problem = describe(BadRequest(message or "This is not HTTP."))
        body = problem.model_dump_json().encode()
        self.close_connection = True
        self.wfile.write(b"HTTP/1.1 400 Bad Request\r\nContent-Type: %s\r\nContent-Length: %d\r\n"
                         b"Connection: close\r\n\r\n%s" % (MEDIA_TYPE.encode(), len(body), body))
        self.wfile.flush()


def listen(host: str, port: int) -> socket.socket:
    """A listening socket on `host:port` (port 0: any free one). Raises OSError if it cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening: socket.socket = eventlet.listen((host, port), family=family, backlog=256)
    # Accepted sockets inherit it: an answer must not wait for the acknowledgement of the one before.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def serve(listening: socket.socket, application: Callable[..., Any]) -> None:
    """Serve `application` for ever, one green thread per connection, without an access log."""
    eventlet.wsgi.server(listening, application, log=LOG, log_output=False, debug=False,
                         protocol=HttpProtocol, keepalive=KEEP_ALIVE_SECONDS,
                         socket_timeout=REQUEST_TIMEOUT_SECONDS, max_size=MAX_CONNECTIONS)
