"""The nameserver's requests as frames.

A request over gRPC in Python costs several hand-overs between threads at both ends, most of a small request's
time. Here the thread that waits in the kernel for the next frame answers it.
"""

import socket
import threading
import time
from functools import partial

from google.protobuf.message import Message

from speedwell.fs.errors import NotAuthenticated, NotAuthorised, SpeedwellError
from speedwell.fs.identity.bundle import Identity
from speedwell.fs.nameserver.service.audit import AUDITED, Audit, Note
from speedwell.fs.nameserver.service.dispatch import Requests
from speedwell.fs.nameserver.service.grpc_door import PROTOCOL, GrpcDoor
from speedwell.fs.nameserver.service.permissions import require_method
from speedwell.fs.proto.speedwell_pb2 import Call, CallReply
from speedwell.fs.rates import of_refused
from speedwell.fs.wire import local_sockets as local
from speedwell.fs.wire.channel import Channel, MalformedFrame, encode
from speedwell.fs.wire.common_thread import Answer, CommonThread
from speedwell.fs.wire.secure_channel import SecureChannel

LOCAL = "local"
"""Who asks over the local socket, for tokens; the names of others have a role before them."""

FRAMES = "frames"
PREFACE = b"PRI * "
"""So begins every connection of HTTP/2 (RFC 9113), which is below gRPC."""

_BACKLOG = 1024
_REFUSALS = (NotAuthenticated, NotAuthorised)


class ListenFailed(SpeedwellError):
    """The address cannot be listened on; the message says why."""


class NameserverFrames(CommonThread):
    """Answers `Call` frames with what `requests` says, and gRPC, on one port."""

    def __init__(self, requests: Requests, listener: socket.socket, identity: Identity | None = None,
                 audit: Audit | None = None) -> None:
        super().__init__(listener, local_listener=local.listen(*listener.getsockname()[:2]), identity=identity)
        if identity is not None:
            requests.permit = partial(require_method, identity)
            requests.local = LOCAL
        self._requests = requests
        self._audit = audit
        self._refused = of_refused()
        self._grpc = GrpcDoor(self._answer, requests.names)
        self.port = int(listener.getsockname()[1])

    def start(self) -> None:
        """Serve in threads of its own until `stop`."""
        threading.Thread(target=self.serve, name="frames", daemon=True).start()

    def stop(self, grace_seconds: float = 1.0) -> None:
        self._grpc.stop(grace_seconds)
        super().stop(grace_seconds)

    def receive_request(self, channel: Channel) -> Call | None:
        if channel.protocol is None and not isinstance(channel, SecureChannel):
            channel.protocol = PROTOCOL if channel.first_bytes(len(PREFACE)) == PREFACE else FRAMES
        if channel.protocol == PROTOCOL:
            self._grpc.converse(channel, partial(self._set_busy, channel, False))
            return None
        return channel.receive_alone(Call)

    def is_short(self, request: Call) -> bool:
        return request.method in self._requests.short

    def answer(self, channel: Channel, request: Call) -> Answer:
        answer, wait_seconds = self._answer(request.method, request.request, channel)
        try:
            frame = encode(CallReply(reply=answer) if isinstance(answer, bytes) else self.refusal(answer))
        except MalformedFrame as error:  # too large: the connection itself is fine
            frame = encode(self.refusal(error))
        return Answer(frame, wait_seconds, isinstance(answer, NotAuthenticated))

    def _answer(self, name: str, data: bytes, channel: Channel) -> tuple[bytes | SpeedwellError, float]:
        """And for how many seconds to hold it back."""
        sender = channel.sender if isinstance(channel, SecureChannel) else None
        who = channel.source if sender is None else sender.text
        wait_seconds = self._requests.pace(who)
        answer: bytes | SpeedwellError
        try:
            answer = self._requests.answer(name, data, sender)
        except SpeedwellError as error:
            answer = error
        was_refused = isinstance(answer, _REFUSALS)
        if self._audit is not None and (was_refused or name in AUDITED):
            self._audit.note(Note(time.time(), who, channel.source, name, data,
                                  "ok" if isinstance(answer, bytes) else type(answer).__name__,
                                  sender is not None and sender.scope is not None and not sender.scope.root))
        return answer, max(wait_seconds, self._refused.take(who, time.monotonic()) if was_refused else 0.0)

    def name_of(self, request: Message) -> str:
        assert isinstance(request, Call)
        return request.method if request.method in self._requests.names else "unknown"

    def refusal(self, error: SpeedwellError) -> CallReply:
        return CallReply(error=type(error).__name__, message=error.message)


def listen(host: str, port: int = 0) -> socket.socket:
    """A listening socket; port 0: any free one. Raises ListenFailed."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        raise ListenFailed(f"--listen: cannot listen on {host}:{port}: {error.strerror}") from error
    return listener
