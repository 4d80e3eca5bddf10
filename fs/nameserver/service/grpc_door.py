"""gRPC at the nameserver: the documented way for programs in other languages. Frames answer all the same."""

import secrets
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from tempfile import TemporaryDirectory
from typing import Any

import grpc

from speedwell.fs import tracing
from speedwell.fs.errors import NotAuthenticated, SpeedwellError
from speedwell.fs.nameserver.service import grpc_errors as rpc
from speedwell.fs.wire.channel import Channel, ConnectionLost
from speedwell.fs.wire.frame_server import IDLE_SECONDS, NO_CERTIFICATE, SEND_STALL_SECONDS

WORKERS = 4
"""Handlers take microseconds and mostly hold Python's lock: two run as many requests a second as eight."""

PROTOCOL = "h2"
"""As TLS names it (RFC 7301); whoever does not ask for it sends frames."""

_OPTIONS = [
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.max_concurrent_streams", 128),
    ("grpc.max_connection_idle_ms", int(IDLE_SECONDS * 1000)),
]
_CARRIED_BYTES = 65536

Answer = Callable[[str, bytes, str], bytes]
"""To a request's name and message, from whom gRPC names so. Raises SpeedwellError."""


class _Conversation:
    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.wait_seconds = 0.0     # before the next bytes of the answer


class GrpcDoor:
    """gRPC on the port of frames. TLS, if there is any, ends where it does for frames, and is the same; a local
    socket of our own carries the rest to gRPC, which knows whose it is by the name of that socket. Thread-safe."""

    def __init__(self, answer: Callable[[str, bytes, Channel], tuple[bytes | SpeedwellError, float]],
                 names: Iterable[str]) -> None:
        """`answer` says, too, for how many seconds to hold the answer back."""
        self._answer = answer
        self._names = names
        self._conversations: dict[str, _Conversation] = {}
        self._lock = threading.Lock()
        self._place: TemporaryDirectory[str] | None = None      # which nobody else may enter
        self._server: Any = None
        self._stopped = False

    def converse(self, channel: Channel, moved: Callable[[], None]) -> None:
        """Until one end has had enough; `moved` is called with each part. Raises ConnectionLost."""
        own = f"speedwell-{secrets.token_hex(16)}"
        with suppress(OSError), socket.socket(socket.AF_UNIX) as inner:
            inner.settimeout(SEND_STALL_SECONDS)    # gRPC reads no more from who floods it, until it is read from
            inner.bind(f"\0{own}")
            conversation = self._conversations[f"unix-abstract:{own}"] = _Conversation(channel)
            try:
                inner.connect(self._path())
                _carry(conversation, inner, moved)
            finally:
                del self._conversations[f"unix-abstract:{own}"]

    def stop(self, grace_seconds: float) -> None:
        """Take no more requests, and give those under way so long."""
        with self._lock:
            self._stopped = True
            if self._server is not None:
                self._server.stop(grace_seconds).wait()
            if self._place is not None:
                self._place.cleanup()

    def _path(self) -> str:
        """Where gRPC listens, which begins with the first who wants it."""
        with self._lock:
            if self._stopped:
                raise ConnectionLost("the nameserver is stopping")
            if self._place is None:
                self._place = TemporaryDirectory(prefix="speedwell-", dir="/tmp")   # short enough for a socket
                self._server = _start(self._answered, self._names, f"unix:{self._place.name}/grpc")
            return f"{self._place.name}/grpc"

    def _answered(self, name: str, data: bytes, peer: str) -> bytes:
        conversation = self._conversations.get(peer)
        if conversation is None:
            raise NotAuthenticated(NO_CERTIFICATE)
        answer, conversation.wait_seconds = self._answer(name, data, conversation.channel)
        if isinstance(answer, SpeedwellError):
            raise answer
        return answer


def _carry(conversation: _Conversation, inner: socket.socket, moved: Callable[[], None]) -> None:
    outer = conversation.channel
    buffer = memoryview(bytearray(_CARRIED_BYTES))
    poll = select.poll()
    poll.register(inner, select.POLLIN)
    poll.register(outer.socket, select.POLLIN)
    while True:
        ready = [descriptor for descriptor, _ in poll.poll(0 if outer.is_pending else None)]
        if outer.is_pending or outer.socket.fileno() in ready:
            inner.sendall(buffer[:outer.receive_some(buffer)])
        if inner.fileno() in ready:
            count = inner.recv_into(buffer)
            if not count:
                return
            time.sleep(conversation.wait_seconds)
            outer.send_bytes([buffer[:count]])
        moved()


def _start(answer: Answer, names: Iterable[str], address: str) -> Any:
    server = grpc.server(ThreadPoolExecutor(WORKERS, thread_name_prefix="rpc"), options=_OPTIONS)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(rpc.SERVICE, {
        name: grpc.unary_unary_rpc_method_handler(
            _handler(answer, name),
            request_deserializer=None,  # here it would turn a malformed message into an INTERNAL error
            response_serializer=None)
        for name in names}),))
    server.add_insecure_port(address)
    server.start()
    return server


def _handler(answer: Answer, name: str) -> Callable[[bytes, Any], bytes]:
    def handle(data: bytes, context: Any) -> bytes:
        try:
            with tracing.serving(name, dict(context.invocation_metadata()).get(tracing.HEADER, "")):
                return answer(name, data, context.peer())
        except SpeedwellError as error:
            code, details, metadata = rpc.status_of(error)
        context.set_trailing_metadata(metadata)
        context.abort(code, details)
        raise AssertionError  # abort does not return
    return handle
