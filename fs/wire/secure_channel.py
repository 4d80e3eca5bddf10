"""Frames over TLS 1.3, both ends known by their certificates (`identity`)."""

import socket
import ssl
import time
from collections.abc import Iterable
from functools import partial

from speedwell.fs.errors import IdentityError, NotAuthenticated, SpeedwellError
from speedwell.fs.identity.bundle import Identity, Peer, explain, peer_of
from speedwell.fs.identity.roles import DATASERVER, host_of
from speedwell.fs.wire.channel import (
    CONNECT_TIMEOUT_SECONDS,
    STALL_TIMEOUT_SECONDS,
    Channel,
    ConnectionLost,
    open_connection,
)
from speedwell.fs.wire.connections import Connector
from speedwell.fs.wire.tls import TLS


class SecureChannel(Channel):
    """One connection whose other end is `sender`."""

    def __init__(self, tls: TLS, identity: Identity, sender: Peer,
                 stall_timeout_seconds: float = STALL_TIMEOUT_SECONDS,
                 refused: type[SpeedwellError] = NotAuthenticated) -> None:
        """`refused` is raised where the other end does not take our certificate."""
        super().__init__(tls.socket, stall_timeout_seconds)
        self.sender = sender
        self.protocol = tls.session.selected_alpn_protocol()
        self._tls = tls
        self._sealed, self._receive_now = tls.sealed, tls.receive
        self._identity = identity
        self._refused = refused
        self._generation = identity.generation

    @property
    def refusal(self) -> str:
        """Why the other end is not served or trusted any more; empty for most."""
        return self._identity.refusal(self.sender)

    def send_bytes(self, parts: Iterable[bytes | bytearray | memoryview]) -> None:
        try:
            for part in parts:
                self._tls.write(memoryview(part).cast("B"))
            self._tls.flush()
        except OSError as error:
            raise self._lost(error) from None

    def receive_all(self, view: memoryview) -> None:
        while view:
            view = view[self.receive_some(view):]

    def receive_some(self, view: memoryview) -> int:
        try:
            received: int = self._tls.read(len(view), view)
        except OSError as error:
            raise self._lost(error) from None
        if not received:
            raise ConnectionLost(f"{self.peer} closed the connection in the middle")
        return received

    @property
    def is_pending(self) -> bool:
        return self._tls.is_pending or bool(self._begun)

    def is_readable(self, timeout_seconds: float) -> bool:
        return self._tls.is_pending or super().is_readable(timeout_seconds)

    def is_idle(self) -> bool:
        """Neither closed nor sent to, and made with the certificates that we have now."""
        return (not self._tls.is_pending and self._generation == self._identity.generation
                and super().is_idle())

    def _checksums_in_hardware(self) -> bool:
        """`sendfile` would pass TLS by."""
        return False

    def _send_frame(self, frame: bytes, more: bool) -> None:
        if more:
            self._tls.write(frame)
        else:
            self.socket.sendall(self._sealed(frame))

    def _receive_waiting(self, count: int) -> bytes:
        """All `count` bytes, or as many as come within the timeout: OpenSSL hands out a record at a time."""
        received = bytearray()
        deadline = time.monotonic() + self._timeouts[0]
        while len(received) < count:
            part = self._tls.read(count - len(received))
            received += part
            if not part or time.monotonic() > deadline:
                break
        return bytes(received)

    def _lost(self, error: OSError) -> SpeedwellError:
        why = explain(error) if isinstance(error, ssl.SSLError) else None
        return super()._lost(error) if why is None else self._refused(_told(self.peer, why, self._identity))


def connect(host: str, port: int, identity: Identity, role: str, *,
            timeout_seconds: float = CONNECT_TIMEOUT_SECONDS,
            stall_timeout_seconds: float = STALL_TIMEOUT_SECONDS, bound: socket.socket | None = None,
            refused: type[SpeedwellError] = NotAuthenticated) -> SecureChannel:
    """Connect to a server of that role, as `channel.connect`. Raises ConnectionLost, and `refused` where one end
    does not take the other's certificate."""
    deadline = time.monotonic() + timeout_seconds
    connection = open_connection(host, port, timeout_seconds=timeout_seconds, bound=bound)
    peer = f"{host}:{port}"
    try:
        secured = TLS(connection, identity.client_context(), server_hostname=host_of(role))
        secured.do_handshake(deadline)
    except OSError as error:
        connection.close()
        why = explain(error) if isinstance(error, ssl.SSLError) else None
        if why is None:
            raise ConnectionLost(f"{peer} does not shake hands: {error}") from None
        raise refused(_told(peer, why, identity)) from None
    try:
        sender = peer_of(secured.session)
        refusal = identity.refusal(sender)
    except IdentityError as error:
        refusal = str(error)
    if refusal:
        connection.close()
        raise refused(f"{peer}: {refusal}")
    return SecureChannel(secured, identity, sender, stall_timeout_seconds, refused)


def data_connector(identity: Identity) -> Connector:
    """Connects to dataservers. Where certificates are not taken that is as if nobody answered."""
    return partial(connect, identity=identity, role=DATASERVER, refused=ConnectionLost)


def _told(peer: str, why: str, identity: Identity) -> str:
    return f"{peer}: {why} (we are the {identity.own} of {identity.directory})"
