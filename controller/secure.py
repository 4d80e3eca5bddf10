"""TLS on Ryu's hub: who comes in at a listening socket of the controller has proved who it is, or is told why not.

As `fs.handshakes`, whose thread waits in the kernel, does it for servers without a hub.
"""

import socket
import ssl
from _socket import socket as kernel_socket
from contextlib import closing, suppress
from typing import Any

import eventlet
from eventlet.green.socket import socket as green_socket
from prometheus_client import Counter

from fs.errors import IdentityError
from fs.handshakes import DEADLINE_SECONDS, LINGER_SECONDS, TLS_RECORD
from fs.identity.bundle import Identity, Peer, peer_of

DROPPED_BYTES = 1 << 16


class NotAdmitted(Exception):
    """A connection ends that proved nothing; the message says why."""


class Door:
    """Callable from any green thread. `refusals` counts the connections that were not admitted."""

    def __init__(self, name: str, identity: Identity, *, anonymous: bool = False, plain_answer: bytes = b"",
                 most: int = 512, deadline_seconds: float = DEADLINE_SECONDS) -> None:
        """`anonymous` peers, who have no certificate, may come in, too. `plain_answer` is for who does not begin a
        handshake. Of connections that have proved nothing there are `most`: one more ends the oldest."""
        self.identity = identity
        self._anonymous = anonymous
        self._plain_answer = plain_answer
        self._most = most
        self._deadline_seconds = deadline_seconds
        self._unproven: dict[Any, None] = {}    # the oldest first
        self.refusals = Counter(f"speedwell_{name}_refused_connections",
                                "Connections that ended before their other end had proved who it is.", registry=None)

    def admit(self, accepted: Any) -> tuple[Any, Peer | None]:
        """Shake hands over a green socket that was accepted; returns the secured one, which takes its place and has
        its timeout, and whose it is. Raises NotAdmitted, and has closed it then."""
        connection = accepted
        try:
            with eventlet.Timeout(self._deadline_seconds, NotAdmitted("it did not end the handshake in time")):
                self._watch(accepted)
                self._begins_with_tls(accepted)
                connection = self.identity.server_context(anonymous=self._anonymous).wrap_socket(
                    accepted, server_side=True, do_handshake_on_connect=False)
                self.proven(accepted)   # whose place it takes
                self._watch(connection)
                connection.do_handshake()
            peer = peer_of(connection) if connection.getpeercert() else None
            if peer is not None:
                self._require_good(peer)
                self.proven(connection)
            return connection, peer
        except (NotAdmitted, IdentityError, OSError, ValueError) as error:
            self.refusals.inc()
            self._end(connection)
            reason = error.reason if isinstance(error, ssl.SSLError) else error
            raise NotAdmitted(str(reason)) from None

    def proven(self, connection: Any) -> None:
        """Who is at its other end is known by now, or it was closed."""
        self._unproven.pop(connection, None)

    # ------------------------------------------------------------------ private

    def _begins_with_tls(self, accepted: Any) -> None:
        if accepted.recv(1, socket.MSG_PEEK) != TLS_RECORD:
            accepted.sendall(self._plain_answer)
            raise NotAdmitted("it does not speak TLS")

    def _watch(self, connection: Any) -> None:
        if len(self._unproven) >= self._most:
            oldest = next(iter(self._unproven))
            del self._unproven[oldest]
            with suppress(OSError):     # not SSLSocket's, which lets go of TLS first
                kernel_socket.shutdown(getattr(oldest, "fd", oldest), socket.SHUT_RDWR)
        self._unproven[connection] = None

    def _require_good(self, peer: Peer) -> None:
        refusal = self.identity.refusal(peer)
        if refusal:
            raise NotAdmitted(refusal)

    def _end(self, connection: Any) -> None:
        """So that an answer or an alert arrives: unread bytes would turn the close into a reset."""
        self.proven(connection)
        # ValueError: `wrap_socket` has closed what was reset meanwhile
        with (suppress(OSError, ValueError, eventlet.Timeout), eventlet.Timeout(LINGER_SECONDS),
              closing(green_socket(fileno=connection.detach())) as plain):
            plain.shutdown(socket.SHUT_WR)
            while plain.recv(DROPPED_BYTES):
                pass
