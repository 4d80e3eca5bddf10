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
from fs.nameserver.dispatch import Requests
from fs.nameserver.server import ListenFailed
from fs.proto.speedwell_pb2 import Call, CallReply

_BACKLOG = 1024


class NameserverFrames(FrameServer):
    """Answers `Call` frames with what `requests` says."""

    def __init__(self, requests: Requests, listener: socket.socket) -> None:
        super().__init__(listener, local_listener=local.listen(*listener.getsockname()[:2]))
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
            reply = CallReply(reply=self._requests.answer(request.method, request.request))
        except SpeedwellError as error:
            reply = self._error(error)
        try:
            channel.send(reply)
        except MalformedFrame as error:  # too large: the connection itself is fine
            channel.send(self._error(error))

    def refusal(self, message: str) -> CallReply:
        return CallReply(error="InvalidArgument", message=message)

    @staticmethod
    def _error(error: SpeedwellError) -> CallReply:
        return CallReply(error=type(error).__name__, message=error.message)


def listen(host: str) -> socket.socket:
    """A listening socket on any free port of `host`. Raises ListenFailed."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(family, kind, protocol)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        raise ListenFailed(f"--listen: cannot listen on {host}: {error.strerror}") from error
    return listener
