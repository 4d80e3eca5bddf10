"""The protocol of Redis (RESP 2), of which requests are arrays of bulk strings.

What a peer may send is bounded before it is read: nobody has memory taken by a length alone.
"""

from __future__ import annotations

import io
import socket
import ssl
import time
from typing import Any, Protocol

from speedwell.fs.errors import IdentityError, NotAuthenticated, ProtocolError, SpeedwellError
from speedwell.fs.identity.bundle import Identity, explain, peer_of
from speedwell.fs.identity.roles import DATASERVER, host_of
from speedwell.fs.wire.tls import TLS

MAX_KEY_BYTES, MAX_VALUE_BYTES = 1024, 1 << 20
MAX_PARTS = 16
_LINE_BYTES = 1024
_BULK_BYTES = 64 << 20
"""Of an answer."""

HANDSHAKE_SECONDS = 2.0

VERSION = 1
"""Of the commands (docs/upgrades.md)."""

HOT = "NOTMINE HOT"
"""How a refusal begins of a key that is read at its own address alone, whoever owns it."""

Reply = bytes | int | list["Reply"] | None


class Stream(Protocol):
    """What is read of a buffered stream."""

    def readline(self, size: int, /) -> bytes: ...

    def read(self, size: int, /) -> bytes: ...


class Refused(SpeedwellError):
    """The server answered with an error; the first word is its kind."""


def encode(*parts: bytes) -> bytes:
    """A request, or an array in an answer."""
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)


def encode_bulk(value: bytes | None) -> bytes:
    return b"$-1\r\n" if value is None else b"$%d\r\n%b\r\n" % (len(value), value)


def encode_error(message: str) -> bytes:
    return b"-%b\r\n" % " ".join(message.split()).encode(errors="replace")


def read_request(stream: Stream) -> list[bytes] | None:
    """The parts of the next request; None where the peer is done. Raises ProtocolError, EOFError."""
    line = stream.readline(_LINE_BYTES)
    if not line:
        return None
    count = _number(line, b"*", MAX_PARTS)
    return [_bulk(stream, MAX_VALUE_BYTES) or b"" for _ in range(count)]


def read_reply(stream: Stream) -> Reply:
    """The next answer. Raises Refused for an error, ProtocolError, EOFError."""
    line = stream.readline(_LINE_BYTES)
    if not line.endswith(b"\r\n"):
        raise EOFError
    kind, rest = line[:1], line[1:-2]
    if kind == b"-":
        raise Refused(rest.decode(errors="replace"))
    if kind == b"+":
        return rest
    if kind == b":":
        return int(rest)
    if kind == b"*":
        return [read_reply(stream) for _ in range(_number(line, b"*", _BULK_BYTES))]
    length = _number(line, b"$", _BULK_BYTES, lowest=-1)
    return None if length < 0 else _exactly(stream, length)


def _bulk(stream: Stream, most: int) -> bytes | None:
    return _exactly(stream, _number(stream.readline(_LINE_BYTES), b"$", most))


def _number(line: bytes, kind: bytes, most: int, lowest: int = 0) -> int:
    if not line:
        raise EOFError
    if not line.startswith(kind) or not line.endswith(b"\r\n"):
        raise ProtocolError(f"Protocol error: expected '{kind.decode()}', got {line[:16]!r}")
    try:
        number = int(line[1:-2])
    except ValueError:
        raise ProtocolError(f"Protocol error: {line[1:17]!r} is not a length") from None
    if not lowest <= number <= most:
        raise ProtocolError(f"Protocol error: a length of {number}, at most {most} is taken")
    return number


def _exactly(stream: Stream, length: int) -> bytes:
    data = stream.read(length + 2)
    if len(data) < length + 2:
        raise EOFError
    if data[-2:] != b"\r\n":
        raise ProtocolError(f"Protocol error: no end of line after {length} bytes")
    return data[:-2]


class Connection:
    """A connection to a server that speaks the protocol; one request at a time."""

    def __init__(self, connected: socket.socket, tls: TLS | None = None) -> None:
        self._socket = connected
        self._stream: io.BufferedIOBase = connected.makefile("rb") if tls is None else io.BufferedReader(TLSFile(tls))
        self._send = connected.sendall if tls is None else TLSFile(tls).write

    def set_timeout(self, seconds: float) -> None:
        self._socket.settimeout(seconds)

    def call(self, *parts: bytes) -> Reply:
        """Ask. Raises Refused, NotAuthenticated, ProtocolError, OSError, EOFError; after all but the first it is of
        no use."""
        try:
            self._send(encode(*parts))
            return read_reply(self._stream)
        except ssl.SSLError as error:
            raise _refused(error) from None

    def require_version(self) -> None:
        """Raises ProtocolError, OSError, EOFError."""
        try:
            self.call(b"VERSION", b"%d" % VERSION)
        except Refused as error:
            if str(error).startswith("VERSION"):
                raise ProtocolError(f"we speak version {VERSION} of the commands: {error}") from None

    def close(self) -> None:
        self._stream.close()
        self._socket.close()


class TLSFile(io.RawIOBase):
    """What `TLS` carries, as a stream."""

    def __init__(self, tls: TLS) -> None:
        self._tls = tls

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        read: int = self._tls.read(len(buffer), memoryview(buffer))
        return read

    def write(self, data: Any) -> int:
        self._tls.write(data)
        self._tls.flush()
        return len(data)


def connect(address: tuple[str, int], timeout_seconds: float, identity: Identity | None) -> Connection:
    """To a metadata server; with an `identity` over TLS. Raises NotAuthenticated where one end does not take the
    other's certificate, OSError."""
    connected = socket.create_connection(address, timeout_seconds)
    try:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if identity is None:
            return Connection(connected)
        tls = TLS(connected, identity.client_context(), server_hostname=host_of(DATASERVER))
        tls.do_handshake(time.monotonic() + HANDSHAKE_SECONDS)
        if refusal := identity.refusal(peer_of(tls.session)):
            raise NotAuthenticated(refusal)
        return Connection(connected, tls)
    except ssl.SSLError as error:
        connected.close()
        raise _refused(error) from None
    except IdentityError as error:
        connected.close()
        raise NotAuthenticated(str(error)) from None
    except BaseException:
        connected.close()
        raise


def _refused(error: ssl.SSLError) -> Exception:
    why = explain(error)
    return error if why is None else NotAuthenticated(why)
