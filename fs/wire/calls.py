"""Requests to one nameserver as frames: over its local socket, and over TLS to one with an identity."""

import math
from contextlib import suppress
from functools import partial
from typing import Any

from speedwell.fs import errors
from speedwell.fs.addresses import parse_address
from speedwell.fs.errors import FileClosed, NamespaceRebuilding, NotAuthenticated, NotLeader, NotSupported
from speedwell.fs.identity.bundle import Identity
from speedwell.fs.identity.roles import NAMESERVER, READER
from speedwell.fs.proto import speedwell_pb2 as pb
from speedwell.fs.wire.channel import (
    CONNECT_TIMEOUT_SECONDS,
    STALL_TIMEOUT_SECONDS,
    ConnectionLost,
    MalformedFrame,
    OtherVersion,
)
from speedwell.fs.wire.connections import ConnectionPool
from speedwell.fs.wire.secure_channel import connect


class CallFailed(Exception):
    """No nameserver answered. The request may have been carried out."""


class Calls:
    """Connections to one nameserver, made when they are needed. Thread-safe."""

    def __init__(self, address: str, stall_timeout_seconds: float = STALL_TIMEOUT_SECONDS,
                 identity: Identity | None = None, *, local_host: str | None = None,
                 connect_timeout_seconds: float = CONNECT_TIMEOUT_SECONDS) -> None:
        """A nameserver at `local_host` is on this host. Raises InvalidArgument."""
        self.namespace = b""     # of the nameserver, when it was last asked for its statistics
        self.encrypts_data = False
        self._address = address
        self._host, self._port = parse_address(address, "nameserver")
        self._identity = identity
        self._pool = ConnectionPool(
            connect_timeout_seconds=min(connect_timeout_seconds, stall_timeout_seconds),
            stall_timeout_seconds=stall_timeout_seconds,
            connector=None if identity is None else partial(connect, identity=identity, role=NAMESERVER))
        # Over a local socket the server knows a user only, who might do more than a reader may.
        self._is_local = self._host == local_host and (
            identity is None or (identity.own.role != READER and identity.own.scope is None))
        self._take = self._pool.take_on_this_host if self._is_local else self._pool.take
        self._closed = False

    def call(self, method: str, request: Any, timeout_seconds: float) -> Any:
        """The reply message. Raises what the nameserver answered (`fs.errors`), NotAuthenticated, NotSupported if it
        is no nameserver, CallFailed, FileClosed."""
        # An owner that is asked whether it has seen a change may wait for our answer: ask it nothing else first.
        if not self.namespace and method not in ("Statistics", "Owners"):
            with suppress(NamespaceRebuilding, NotLeader):  # then dataservers' and owners' are answered all the same
                self.call("Statistics", pb.StatisticsRequest(), timeout_seconds)
        reply = self._call(method, request, timeout_seconds)
        if method == "Statistics":
            self.namespace, self.encrypts_data = reply.namespace, reply.encrypts_data
        return reply

    def close(self) -> None:
        """Calls afterwards raise FileClosed."""
        self._closed = True
        self._pool.close()

    def _call(self, method: str, request: Any, timeout_seconds: float) -> Any:
        if self._closed:
            raise FileClosed("the client is closed")
        if self._is_local and self._identity is not None and (
                refusal := self._identity.refusal(self._identity.own)):
            raise NotAuthenticated(refusal)
        try:
            connection = self._take(self._host, self._port)
        except ConnectionLost as error:
            raise CallFailed(str(error)) from None
        try:
            connection.set_timeout(math.ceil(timeout_seconds))  # whole seconds: most calls then leave it as it is
            connection.send(pb.Call(method=method, request=request.SerializeToString()))
            answer = connection.expect_alone(pb.CallReply)
        except ConnectionLost:
            connection.close()
            if connection.is_local:     # a server ends others' there, and says why over the network
                self._pool.avoid_local(self._host, self._port)
            raise CallFailed from None
        except BaseException as error:
            connection.close()
            if isinstance(error, MalformedFrame) and not isinstance(error, OtherVersion):
                raise NotSupported(f"the server at {self._address} is no nameserver: {error}") from None
            raise
        self._pool.give_back(self._host, self._port, connection)
        if answer.error:
            answered = errors.named(answer.error, answer.message)
            if isinstance(answered, NotAuthenticated) and self._identity is None:
                raise NotAuthenticated(f"{self._address}: {answered.message}")
            raise answered
        return getattr(pb, f"{method}Reply").FromString(answer.reply)
