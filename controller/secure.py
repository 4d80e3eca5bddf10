"""TLS on Ryu's hub: who comes in at a listening socket of the controller has proved who it is, or is told why not.

As `speedwell.fs.wire.handshakes`, whose thread waits in the kernel, does it for servers without a hub.
"""

import socket
import ssl
import time
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from typing import Any

import eventlet
from eventlet.green.socket import socket as green_socket
from eventlet.green.ssl import GreenSSLSocket

from speedwell.fs import rates
from speedwell.fs.errors import IdentityError
from speedwell.fs.identity.bundle import Identity, Peer, explain, peer_of
from speedwell.fs.identity.roles import SWITCH
from speedwell.fs.wire.handshakes import DEADLINE_SECONDS, LINGER_SECONDS, MOST, begins_with_tls

DROPPED_BYTES = 1 << 16
ENDED = "ended"
"""Why who says nothing, or breaks the connection off, is not admitted."""
NO_TLS = {"WRONG_VERSION_NUMBER", "HTTP_REQUEST"}


class NotAdmitted(Exception):
    """The other end of a connection did not prove who it is. `why` is one word, the message for the operator."""

    def __init__(self, why: str, message: str) -> None:
        super().__init__(message)
        self.why = why


class SecureSocket(GreenSSLSocket):
    """A green socket over TLS that can be used as `GreenSocket` is."""

    @classmethod
    def over(cls, connection: Any, context: ssl.SSLContext, **options: Any) -> Any:
        """Takes the connection's place and has its timeout. Raises OSError or ValueError for one that was reset."""
        made = GreenSSLSocket(connection, do_handshake_on_connect=False, _context=context, **options)
        made.__class__ = cls    # which eventlet would not make
        return made

    def prove(self, identity: Identity, require: str | None) -> Peer | None:
        """Shake hands; returns who is at the other end, None for somebody without a certificate. With `require` only
        that role will do. Blocks the calling green thread only. Raises NotAdmitted."""
        try:
            self.do_handshake()
            peer = peer_of(self) if self.getpeercert() else None
        except IdentityError as error:
            raise NotAdmitted("certificate", str(error)) from None
        except OSError as error:
            raise _meaning(error) from error
        if peer is not None and require not in (None, peer.role):
            raise NotAdmitted("role", f"its certificate is that of the {peer}, not of a {require}")
        if peer is not None and (refusal := identity.refusal(peer)):
            raise NotAdmitted("revoked", refusal)
        return peer

    @property
    def fd(self) -> Any:
        """What sends and does not wait."""
        return super(GreenSSLSocket, self)

    def shutdown(self, how: int) -> None:
        """Not as SSLSocket's, which lets go of TLS first: green threads that read or send would go on without."""
        self._say_goodbye()
        super(GreenSSLSocket.__base__, self).shutdown(how)

    def close(self) -> None:
        self._say_goodbye()
        super().close()

    def _say_goodbye(self) -> None:
        """Without waiting for the answer. Open vSwitch warns of connections that end without."""
        with suppress(OSError, AttributeError):
            self._sslobj.shutdown()


def _meaning(error: OSError) -> NotAdmitted:
    if not isinstance(error, ssl.SSLError) or isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return NotAdmitted(ENDED, str(error))
    if error.reason in NO_TLS:
        return NotAdmitted("plain", "it does not speak TLS")
    return NotAdmitted("certificate", explain(error) or str(error.reason or error))


class Door:
    """Callable from any green thread. Who is slow, or says nothing, delays nobody. From an address that failed too
    often no other connection is looked at for a while."""

    def __init__(self, identity: Identity, count: Callable[[str, str, str], object], *, require: str | None = None,
                 anonymous: bool = False, plain_answer: bytes = b"", most: int = MOST,
                 deadline_seconds: float = DEADLINE_SECONDS) -> None:
        """`count` is told why somebody is refused, in a word and in a message, and the address. With `require` only
        peers of that role come in; `anonymous` ones, who have no certificate, may come in, too. `plain_answer` is for
        who does not begin a handshake. Of connections that have proved nothing there are `most`: one more ends the
        oldest."""
        self.identity = identity
        self._count = count
        self._require = require
        self._context = partial(identity.server_context, anonymous=anonymous, to_switches=require == SWITCH)
        self._plain_answer = plain_answer
        self._most = most
        self._deadline_seconds = deadline_seconds
        self._unproven: dict[Any, None] = {}    # the oldest first
        self._failures = rates.of_refused()

    def admit(self, accepted: Any, address: str) -> tuple[Any, Peer | None]:
        """Shake hands over a green socket that was accepted; returns the secured one, which takes its place and has
        its timeout, and whose it is. Raises NotAdmitted, and has counted and closed it then."""
        if self._failures.wait(address, time.monotonic()):
            accepted.close()
            limited = NotAdmitted("limited", "too many connections from there did not prove who they are")
            self._count(limited.why, str(limited), address)
            raise limited
        connection = accepted
        slow = NotAdmitted("slow", f"it did not end the handshake within {self._deadline_seconds:g} s")
        try:
            with eventlet.Timeout(self._deadline_seconds, slow):
                self._watch(accepted)
                if not begins_with_tls(accepted, self._plain_answer):
                    raise NotAdmitted("plain", "it does not speak TLS")
                connection = SecureSocket.over(accepted, self._context(), server_side=True)
                self.proven(accepted)   # whose place it takes
                self._watch(connection)
                peer = connection.prove(self.identity, self._require)
            if peer is not None:
                self.proven(connection)
            return connection, peer
        except (NotAdmitted, OSError, ValueError) as error:
            refusal = error if isinstance(error, NotAdmitted) else NotAdmitted(ENDED, str(error))
            self._count(refusal.why, str(refusal), address)
            self._failures.take(address, time.monotonic())
            self._end(connection)
            raise refusal from None

    def proven(self, connection: Any) -> None:
        """Who is at its other end is known by now, or it was closed."""
        self._unproven.pop(connection, None)

    def trusts(self, peer: Peer, address: str) -> bool:
        """Whether the certificate of an open connection still counts: it may have ended, or been revoked."""
        refusal = self.identity.refusal(peer)
        if refusal:
            self._count("revoked", refusal, address)
        return not refusal

    # ------------------------------------------------------------------ private

    def _watch(self, connection: Any) -> None:
        if len(self._unproven) >= self._most:
            oldest = next(iter(self._unproven))
            del self._unproven[oldest]
            with suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)
        self._unproven[connection] = None

    def _end(self, connection: Any) -> None:
        """So that an answer or an alert arrives: unread bytes would turn the close into a reset."""
        self.proven(connection)
        # ValueError: what was reset meanwhile is closed already
        with (suppress(OSError, ValueError, eventlet.Timeout), eventlet.Timeout(LINGER_SECONDS),
              closing(green_socket(fileno=connection.detach())) as plain):
            plain.shutdown(socket.SHUT_WR)
            while plain.recv(DROPPED_BYTES):
                pass
