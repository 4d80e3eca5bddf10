"""Requests from one metadata server to another, by its own address."""

from __future__ import annotations

import threading
from typing import NamedTuple

from speedwell.fs.identity.bundle import Identity
from speedwell.fs.metadata_store.wire import Connection, Refused, Reply, connect

TIMEOUT_SECONDS = 2.0
_idle = threading.local()


class Peer(NamedTuple):
    """Where a metadata server listens: its host's address, not one of a block."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def call_peer(peer: Peer, *parts: bytes, timeout_seconds: float = TIMEOUT_SECONDS,
              identity: Identity | None = None) -> Reply:
    """Ask, over this thread's connection to it. Raises Refused, NotAuthenticated, ProtocolError, OSError,
    EOFError."""
    connections: dict[Peer, Connection] = _idle.__dict__.setdefault("connections", {})
    connection = connections.pop(peer, None)
    if connection is not None:
        try:
            return _asked(connections, peer, connection, parts, timeout_seconds)
        except (OSError, EOFError):
            pass    # it was closed meanwhile: every request may be sent twice
    connection = connect(peer, TIMEOUT_SECONDS, identity)
    try:
        connection.require_version()
    except BaseException:
        connection.close()
        raise
    return _asked(connections, peer, connection, parts, timeout_seconds)


def _asked(connections: dict[Peer, Connection], peer: Peer, connection: Connection,
           parts: tuple[bytes, ...], timeout_seconds: float) -> Reply:
    try:
        connection.set_timeout(timeout_seconds)
        reply = connection.call(*parts)
    except Refused:
        connections[peer] = connection
        raise
    except BaseException:
        connection.close()
        raise
    connections[peer] = connection
    return reply
