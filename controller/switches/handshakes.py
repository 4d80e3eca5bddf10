"""TLS with switches: both ends show a certificate of the installation's authority, a switch's for its datapath id."""

from __future__ import annotations

import logging
import resource
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import eventlet
from eventlet.green.ssl import GreenSSLSocket

from fs.errors import IdentityError
from fs.handshakes import DEADLINE_SECONDS, MOST
from fs.identity.bundle import Identity, Peer, explain, peer_of
from fs.identity.roles import SWITCH, host_of

ENDED = (ssl.SSLEOFError, ssl.SSLZeroReturnError)
NO_TLS = {"WRONG_VERSION_NUMBER", "HTTP_REQUEST"}

log = logging.getLogger(__name__)


class NotProven(Exception):
    """The other end is no switch of the installation. `why` is one of a few words, the message for the operator."""

    def __init__(self, why: str, message: str) -> None:
        super().__init__(message)
        self.why = why


class SecureSocket(GreenSSLSocket):
    """A green socket over TLS that can be used as `GreenSocket` is."""

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


def proven(connection: Any, identity: Identity, *, as_server: bool) -> tuple[SecureSocket, Peer]:
    """A connection over TLS, and which switch is at its other end.

    Blocks the calling green thread only. Raises NotProven, or OSError where the connection ends; it is closed then.
    """
    context = identity.server_context() if as_server else identity.client_context()
    secured = None
    try:
        secured = GreenSSLSocket(connection, server_side=as_server, do_handshake_on_connect=False, _context=context,
                                 server_hostname=None if as_server else host_of(SWITCH))
        secured.__class__ = SecureSocket    # which eventlet would not make
        secured.do_handshake()
        peer = peer_of(secured)
        if peer.role != SWITCH:
            raise NotProven("role", f"its certificate is that of the {peer}, not of a switch")
        if refusal := identity.refusal(peer):
            raise NotProven("revoked", refusal)
        return secured, peer
    except BaseException as error:
        (secured or connection).close()
        if isinstance(error, ssl.SSLError) and not isinstance(error, ENDED):
            raise _meaning(error) from None
        if isinstance(error, IdentityError):
            raise NotProven("certificate", str(error)) from None
        raise


def _meaning(error: ssl.SSLError) -> NotProven:
    if error.reason in NO_TLS:
        return NotProven("plain", "it does not speak TLS: is its target ssl: and not tcp:?")
    return NotProven("certificate", explain(error) or str(error.reason or error))


class Door:
    """Where switches' connections come in. Who is slow, or says nothing, delays nobody: each handshake is a green
    thread of its own, and of more than `MOST` the oldest ends."""

    def __init__(self, identity: Identity, count: Callable[[str, str, float], bool]) -> None:
        """`count` counts what is refused, and why, and says whether to log it."""
        self._identity = identity
        self._count = count
        self._under_way: dict[Any, None] = {}
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        self._most = min(MOST, most // 2)

    def let_in(self, connection: Any, address: Any) -> tuple[SecureSocket, Peer] | None:
        """As `proven`, within a deadline; None for a connection that is refused, which is closed and counted."""
        this = eventlet.getcurrent()
        if len(self._under_way) >= self._most:
            eventlet.kill(next(iter(self._under_way)))
        self._under_way[this] = None
        deadline = eventlet.Timeout(DEADLINE_SECONDS)
        try:
            return proven(connection, self._identity, as_server=True)
        except NotProven as error:
            self._refuse(address, error.why, str(error))
        except eventlet.Timeout as expired:
            if expired is not deadline:
                raise
            self._refuse(address, "slow", f"it did not shake hands within {DEADLINE_SECONDS:g} s")
        except OSError as error:
            log.debug("the connection from %s ended in its handshake: %s", address[0], error)
        finally:
            deadline.cancel()
            self._under_way.pop(this, None)
        return None

    def trusts(self, peer: Peer, address: Any) -> bool:
        """Whether the certificate of an open connection still counts: it may have ended, or been revoked."""
        refusal = self._identity.refusal(peer)
        if refusal:
            self._refuse(address, "revoked", refusal)
        return not refusal

    def _refuse(self, address: Any, why: str, message: str) -> None:
        if self._count("connection", why, time.monotonic()):
            log.warning("the switch at %s is refused: %s", address[0], message)
