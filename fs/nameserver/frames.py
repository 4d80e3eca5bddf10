"""The nameserver's requests as frames.

A request over gRPC in Python costs several hand-overs between threads at both ends, most of a small request's
time. Here a thread waits in the kernel for its client's next frame and answers it.
"""

import socket
import threading

from google.protobuf.message import Message

from fs import local
from fs.channel import Channel, MalformedFrame
from fs.errors import SpeedwellError
from fs.frame_server import FrameServer
from fs.identity.bundle import Identity
from fs.nameserver.dispatch import Requests
from fs.nameserver.permissions import require_method
from fs.nameserver.server import ListenFailed
from fs.proto.speedwell_pb2 import Call, CallReply
from fs.secure_channel import SecureChannel

_BACKLOG = 1024


class NameserverFrames(FrameServer):
    """Answers `Call` frames with what `requests` says."""

    def __init__(self, requests: Requests, listener: socket.socket, identity: Identity | None = None) -> None:
        super().__init__(listener, local_listener=local.listen(*listener.getsockname()[:2]), identity=identity)
        self._requests = requests
        self.port = int(listener.getsockname()[1])

    def start(self) -> None:
        """Serve in threads of its own until `stop`."""
        threading.Thread(target=self.serve, name="frames", daemon=True).start()

    def receive_request(self, channel: Channel) -> Call | None:
        return channel.receive_alone(Call)

    def serve_request(self, channel: Channel, request: Message) -> None:
        assert isinstance(request, Call)
        try:
            sender = None
            if self._own_identity is not None and isinstance(channel, SecureChannel):
                sender = channel.sender
                require_method(self._own_identity, sender, request.method)
            reply = CallReply(reply=self._requests.answer(request.method, request.request, sender))
        except SpeedwellError as error:
            reply = self.refusal(error)
        try:
            channel.send(reply)
        except MalformedFrame as error:  # too large: the connection itself is fine
            channel.send(self.refusal(error))

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
