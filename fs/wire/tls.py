"""TLS on a connected socket, with buffers between: one system call takes all that has come, and one sends a whole
frame. `ssl.SSLSocket` reads each record with two and sends each by itself."""

import contextlib
import socket
import ssl
import time
from typing import Any

STEP_BYTES = 64 << 10
"""So much is encrypted before it is sent, and received at once, at most."""

_LEAST_RECEIVED_BYTES = 8 << 10


class TLS:
    """One end of a connection, used by one thread at a time. `session` says who is at the other end."""

    def __init__(self, connection: socket.socket, context: ssl.SSLContext, *, server_side: bool = False,
                 server_hostname: str | None = None) -> None:
        self.socket = connection
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.session: Any = context.wrap_bio(self._incoming, self._outgoing, server_side, server_hostname)
        self._may_have_more = True      # than what was read; the handshake's last part may bring some

    def do_handshake(self, deadline: float | None = None) -> None:
        """`deadline` is by the monotonic clock, for a socket that blocks. Raises ssl.SSLWantReadError where one that
        does not block has to wait, OSError."""
        while True:
            try:
                self.session.do_handshake()
            except ssl.SSLWantReadError:
                self.flush()
                if deadline is not None:
                    self.socket.settimeout(max(deadline - time.monotonic(), 0.001))
                try:
                    self._fill(_LEAST_RECEIVED_BYTES)
                except BlockingIOError:
                    raise ssl.SSLWantReadError from None
            except ssl.SSLError:
                with contextlib.suppress(OSError):
                    self.flush()    # the alert
                raise
            else:
                return self.flush()

    @property
    def is_pending(self) -> bool:
        """Whether something has come that was not read."""
        return self._may_have_more and (self._incoming.pending > 0 or self.session.pending() > 0)

    def receive(self, most: int, flags: int = 0) -> bytes:
        """At most so many bytes, none at the end. `flags` as for `socket.recv`. Raises OSError."""
        if not self._may_have_more and (record := self.socket.recv(_LEAST_RECEIVED_BYTES, flags)):
            self._incoming.write(record)
            self._may_have_more = True
        data: bytes = self.read(most, None, flags)
        return data

    def read(self, most: int, buffer: memoryview | None = None, flags: int = 0) -> Any:
        """Like `receive`; with a `buffer` into that, and how many."""
        if not self._may_have_more:
            self._fill(most, flags)
        while True:
            try:
                read = self.session.read(most, buffer)
            except ssl.SSLWantReadError:
                self._fill(most, flags)
            except ssl.SSLEOFError:
                return b"" if buffer is None else 0
            else:
                self._may_have_more = (len(read) if buffer is None else read) == most or self._incoming.pending > 0
                return read

    def write(self, data: bytes | memoryview) -> None:
        """Encrypt; what is not sent by then goes with `flush`. Raises OSError."""
        if len(data) <= STEP_BYTES:
            self.session.write(data)
            return
        for at in range(0, len(data), STEP_BYTES):
            self.session.write(data[at:at + STEP_BYTES])
            self.flush()

    def sealed(self, data: bytes) -> bytes:
        """Encrypted after what was written, for the caller to send. Raises OSError."""
        self.session.write(data)
        return self._outgoing.read()

    def flush(self) -> None:
        """Raises OSError."""
        if self._outgoing.pending:
            self.socket.sendall(self._outgoing.read())

    def _fill(self, most: int, flags: int = 0) -> None:
        data = self.socket.recv(min(max(most, _LEAST_RECEIVED_BYTES), STEP_BYTES), flags)
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()
