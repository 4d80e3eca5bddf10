"""Requests to one nameserver as frames over TLS, or over its local socket."""

from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from speedwell.fs.addresses import parse_address
from speedwell.fs.channel import ConnectionLost
from speedwell.fs.client.calls import CallFailed, Calls, FrameCalls
from speedwell.fs.connections import ConnectionPool
from speedwell.fs.errors import FileClosed, NamespaceRebuilding, NotAuthenticated, NotLeader
from speedwell.fs.identity.bundle import Identity
from speedwell.fs.identity.roles import NAMESERVER, READER
from speedwell.fs.proto import speedwell_pb2 as pb
from speedwell.fs.secure_channel import connect


class NameserverCalls(Protocol):
    """Connections to one nameserver."""

    namespace: bytes
    encrypts_data: bool

    def call(self, method: str, request: Any, timeout_seconds: float) -> Any:
        """The reply message. Raises what the nameserver answered (`fs.errors`), NotAuthenticated, CallFailed,
        FileClosed."""

    def close(self) -> None:
        """Calls afterwards raise FileClosed."""


def calls_to(address: str, stall_timeout_seconds: float, identity: Identity | None, *, wait_until_there: bool = True,
             local_host: str | None = None) -> NameserverCalls:
    """Of the kind that goes with the `identity`; the rest as `speedwell.fs.client.calls.Calls` has it. Raises
    InvalidArgument."""
    if identity is None:
        return Calls(address, stall_timeout_seconds, wait_until_there=wait_until_there, local_host=local_host)
    return SecureCalls(address, stall_timeout_seconds, identity, local_host)


class SecureCalls(FrameCalls):
    """Thread-safe. The connections are made with the first call; a nameserver at `local_host` is on this host."""

    def __init__(self, address: str, stall_timeout_seconds: float, identity: Identity,
                 local_host: str | None = None) -> None:
        host, self._port = parse_address(address, "nameserver")
        super().__init__(host, ConnectionPool(stall_timeout_seconds=stall_timeout_seconds,
                                              connector=partial(connect, identity=identity, role=NAMESERVER)))
        self._identity = identity
        # Over a local socket the server knows a user only, who might do more than a reader may.
        self._is_local = host == local_host and identity.own.role != READER and identity.own.scope is None
        self._take = self._pool.take_on_this_host if self._is_local else self._pool.take
        self._closed = False

    def call(self, method: str, request: Any, timeout_seconds: float) -> Any:
        if not self.namespace and method not in ("Statistics", "Owners"):
            with suppress(NamespaceRebuilding, NotLeader):  # then dataservers' and owners' are answered all the same
                self.call("Statistics", pb.StatisticsRequest(), timeout_seconds)
        reply = self._call(method, request, timeout_seconds)
        if method == "Statistics":
            self.namespace, self.encrypts_data = reply.namespace, reply.encrypts_data
        return reply

    def close(self) -> None:
        self._closed = True
        self._pool.close()

    def _call(self, method: str, request: Any, timeout_seconds: float) -> Any:
        if self._closed:
            raise FileClosed("the client is closed")
        refusal = self._identity.refusal(self._identity.own) if self._is_local else ""
        if refusal:
            raise NotAuthenticated(refusal)
        try:
            connection = self._take(self._host, self._port)
        except ConnectionLost as error:
            raise CallFailed(str(error)) from None
        return self._as_frame(self._port, connection, method, request, timeout_seconds)
