"""Reading a socket again and again, as green threads that serve connections do."""

from __future__ import annotations

from typing import Any

from eventlet import Timeout, getcurrent
from eventlet.greenio import GreenSocket
from eventlet.hubs import get_hub


class Reader:
    """What comes in on a green socket, for one green thread. A socket without TLS stays registered with the hub from
    one wait to the next: eventlet's own way of waiting takes three more system calls and an exception each time."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket
        self._listener: Any = None
        self._waiting: Any = None

    def recv(self, most_bytes: int) -> bytes:
        """What there is, once there is something; nothing at the connection's end. Raises TimeoutError when the
        socket's timeout is over, OSError."""
        if type(self._socket) is not GreenSocket:
            return bytes(self._socket.recv(most_bytes))
        while True:
            self._wait()
            try:
                return bytes(self._socket.fd.recv(most_bytes))
            except BlockingIOError:
                continue

    def close(self) -> None:
        """Before the socket is closed: the system gives its number to another."""
        if self._listener is not None:
            get_hub().remove(self._listener)
            self._listener = None

    def _wait(self) -> None:
        hub = get_hub()
        self._waiting = getcurrent()
        if self._listener is None:
            self._listener = hub.add(hub.READ, self._socket.fileno(), self._ready, self._lost, None)
        timeout = Timeout(self._socket.gettimeout(), TimeoutError)
        try:
            hub.switch()
        finally:
            timeout.cancel()
            self._waiting = None

    def _ready(self, _: int) -> None:
        if self._waiting is not None:
            self._waiting.switch()
        else:
            self.close()    # until the next wait

    def _lost(self, error: Exception) -> None:
        if self._waiting is not None:
            self._waiting.throw(error)
