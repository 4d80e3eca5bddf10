"""Requests to one nameserver: as frames where it takes them, over gRPC otherwise."""

import math
import threading
import time
from contextlib import suppress
from typing import Any

import grpc

from speedwell.fs import rpc, tracing
from speedwell.fs.addresses import parse_address
from speedwell.fs.channel import STALL_TIMEOUT_SECONDS, Channel, ConnectionLost, MalformedFrame, connect
from speedwell.fs.connections import ConnectionPool
from speedwell.fs.errors import FileClosed, NamespaceRebuilding, NotLeader
from speedwell.fs.proto import speedwell_pb2 as pb

FRAMES_AGAIN_SECONDS = 10.0
"""How long gRPC serves alone after the frame port could not be reached (a firewall, say)."""

REFUSAL_SECONDS = 0.3

_CHANNEL_OPTIONS = [
    *rpc.RECONNECTION,
    ("grpc.keepalive_time_ms", 10000),
    ("grpc.keepalive_timeout_ms", 3000),
]


class CallFailed(Exception):
    """No nameserver answered. The request may have been carried out."""


class FrameCalls:
    """Frame connections to a nameserver on `host`. Thread-safe."""

    def __init__(self, host: str, pool: ConnectionPool) -> None:
        self.namespace = b""     # of the nameserver, when it was last connected to
        self.encrypts_data = False
        self._host = host
        self._pool = pool

    def _as_frame(self, port: int, connection: Channel, method: str, request: Any, timeout_seconds: float) -> Any:
        try:
            connection.set_timeout(math.ceil(timeout_seconds))  # whole seconds: most calls then leave it as it is
            connection.send(pb.Call(method=method, request=request.SerializeToString()))
            answer = connection.expect_alone(pb.CallReply)
        except ConnectionLost:
            connection.close()
            raise CallFailed from None
        except BaseException:
            connection.close()
            raise
        self._pool.give_back(self._host, port, connection)
        if answer.error:
            raise rpc.named_error(answer.error, answer.message)
        return getattr(pb, f"{method}Reply").FromString(answer.reply)


class Calls(FrameCalls):
    """Connections to one nameserver. Thread-safe. They are made with the first call."""

    def __init__(self, address: str, stall_timeout_seconds: float = STALL_TIMEOUT_SECONDS, *,
                 wait_until_there: bool = True, local_host: str | None = None) -> None:
        """A nameserver at `local_host` is on this host. With `wait_until_there` a call waits for a nameserver that
        refuses connections, as long as it may."""
        self._wait_until_there = wait_until_there
        self._failed = False     # when last asked over gRPC
        self._address = address
        super().__init__(parse_address(address, "nameserver")[0],
                         ConnectionPool(stall_timeout_seconds=stall_timeout_seconds))
        self._take = self._pool.take_on_this_host if self._host == local_host else self._pool.take
        self._frame_port: int | None = None     # None: not asked for yet
        self._grpc_only_until = 0.0
        self._channel: Any = None
        self._methods: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._closed = False

    def call(self, method: str, request: Any, timeout_seconds: float) -> Any:
        """The reply message. Raises what the nameserver answered (`speedwell.fs.errors`), CallFailed, FileClosed."""
        if self._closed:
            raise FileClosed("the client is closed")
        # An owner that is asked whether it has seen a change may wait for our answer: ask it nothing else first.
        is_first_word = method == "Owners" and self._frame_port is None
        connected = None if is_first_word else self._connection(timeout_seconds)
        if connected is None:
            return self._over_grpc(method, request, timeout_seconds)
        return self._as_frame(*connected, method, request, timeout_seconds)

    def close(self) -> None:
        """Calls afterwards raise FileClosed."""
        with self._lock:
            self._closed = True
            if self._channel is not None:
                self._channel.close()
        self._pool.close()

    # ------------------------------------------------------------------ frames

    def _connection(self, timeout_seconds: float) -> tuple[int, Channel] | None:
        """A frame connection and its port, None if there is none to be had now."""
        if time.monotonic() < self._grpc_only_until:
            return None
        for _ in range(2):  # a nameserver that was restarted has another port: ask again
            port = self._frame_port
            if port is None:
                try:
                    statistics = self._over_grpc("Statistics", pb.StatisticsRequest(), timeout_seconds)
                except (NamespaceRebuilding, NotLeader):
                    return None     # dataservers' requests, and other owners', are answered all the same
                port = self._frame_port = statistics.frame_port
                self.namespace = statistics.namespace
            if port == 0:
                return None
            try:
                return port, self._take(self._host, port)
            except ConnectionLost:
                self._frame_port = None
        self._grpc_only_until = time.monotonic() + FRAMES_AGAIN_SECONDS
        return None

    # ------------------------------------------------------------------ gRPC

    def _over_grpc(self, method: str, request: Any, timeout_seconds: float) -> Any:
        call = self._methods.get(method) or self._method(method)
        wait = self._wait_until_there or (self._failed and rpc.listens(self._address, timeout_seconds))
        part_of = [(tracing.HEADER, tracing.current())] if tracing.current() else None
        try:
            reply = call(request, timeout=timeout_seconds, wait_for_ready=wait, metadata=part_of)
        except grpc.RpcError as error:
            self._failed = rpc.is_transport_failure(error)
            if not self._failed:
                raise rpc.error_from(error, self._address) from None
            if self._closed:
                raise FileClosed("the client is closed") from None
            self._raise_refusal()
            raise CallFailed from None
        except ValueError:
            raise FileClosed("the client is closed") from None
        self._failed = False
        return reply

    def _raise_refusal(self) -> None:
        """Raises NotAuthenticated if whoever listens takes TLS alone: it says so to a frame."""
        with suppress(ConnectionLost, MalformedFrame):
            channel = connect(*parse_address(self._address, "nameserver"), timeout_seconds=REFUSAL_SECONDS,
                              stall_timeout_seconds=REFUSAL_SECONDS)
            try:
                channel.send(pb.Call(method="Statistics"))
                answer = channel.expect(pb.CallReply)
            finally:
                channel.close()
            if answer.error:
                raise rpc.named_error(answer.error, f"{self._address}: {answer.message}")

    def _method(self, method: str) -> Any:
        with self._lock:
            if self._closed:
                raise FileClosed("the client is closed")
            if self._channel is None:
                self._channel = grpc.insecure_channel(self._address, options=_CHANNEL_OPTIONS)
            call = self._channel.unary_unary(f"/{rpc.SERVICE}/{method}", request_serializer=_serialise,
                                             response_deserializer=getattr(pb, f"{method}Reply").FromString)
            self._methods[method] = call
            return call


def _serialise(request: Any) -> bytes:
    data: bytes = request.SerializeToString()
    return data
