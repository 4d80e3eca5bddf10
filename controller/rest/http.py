"""HTTP/1.1 on the wire (RFC 9112), as far as an interface of small JSON documents needs it: requests and answers."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import Protocol
from urllib.parse import parse_qsl, unquote

from speedwell.controller.rest.problems import BadRequest, BodyTooLarge, RequestTimedOut, UnsupportedMediaType
from speedwell.fs.identity.bundle import Peer

MAX_HEAD_BYTES = 32 * 1024
MAX_BODY_BYTES = 256 * 1024
# A body somewhat too large is read to its end, so that the client sees the refusal instead of a reset.
MAX_DISCARDED_BYTES = 8 * 1024 * 1024
RECEIVE_BYTES = 64 * 1024
MAX_CHUNK_LINE_BYTES = 1024
TOKEN = frozenset(b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")

Headers = list[tuple[str, str]]


class Pieces(Protocol):
    """A body that is sent piece by piece, for as long as there are any; `close` is called at its end in any case."""

    def __iter__(self) -> Iterator[bytes]: ...

    def close(self) -> None: ...


Answer = tuple[int, Headers, bytes | Pieces]
"""Status, headers but for the body's length, and body."""


class Stream(Protocol):
    """The connection. Both raise OSError; `receive` gives no bytes at the connection's end. `peer` is the address
    at its other end, `sender` who that is by a certificate."""

    @property
    def peer(self) -> str: ...

    @property
    def sender(self) -> Peer | None: ...

    def receive(self) -> bytes: ...

    def send(self, data: bytes) -> None: ...


class Request:
    """One request. `path` is decoded, `query` is not; names of `headers` are in lower case.

    `unread` holds what has come behind the head. When the body was read or discarded, what is left of it is the
    beginning of the next request.
    """

    __slots__ = ("_is_read", "_stream", "headers", "is_last", "is_proven", "is_still_known", "method", "path", "peer",
                 "query", "sender", "unread")

    def __init__(self, head: bytes, unread: bytes, stream: Stream) -> None:
        """Raises BadRequest."""
        line, *fields = head.split(b"\r\n")
        words = line.split(b" ")
        if len(words) != 3 or not TOKEN.issuperset(words[0]) or words[2] not in (b"HTTP/1.1", b"HTTP/1.0"):
            raise BadRequest("This is not HTTP/1.1.")
        self.method = words[0].decode()
        self.headers = _fields(fields)
        target, _, self.query = words[1].decode("latin-1").partition("?")
        self.path = _path(target)
        connection = self.headers.get("connection", "").lower()
        self.is_last = "close" in connection or (words[2] == b"HTTP/1.0" and "keep-alive" not in connection)
        """Whether the connection ends with the answer."""
        self.unread = unread
        self._stream = stream
        self.peer, self.sender = stream.peer, stream.sender
        self.is_proven = False
        """Whether it is known who sent it."""
        self.is_still_known: Callable[[Request], bool] = lambda request: True
        """Whether it is known even now, while the answer goes on."""
        self._is_read = "content-length" not in self.headers and "transfer-encoding" not in self.headers
        if not self._is_read and len(self.headers.keys() & {"content-length", "transfer-encoding"}) == 2:
            raise BadRequest("The body has two lengths: Content-Length and Transfer-Encoding.")

    def parameters(self) -> list[tuple[str, str]]:
        """What follows the question mark. Raises BadRequest."""
        if not self.query:
            return []
        try:
            return parse_qsl(self.query, keep_blank_values=True, errors="strict")
        except (UnicodeDecodeError, ValueError):
            raise BadRequest("The URL is not UTF-8.") from None

    def json_body(self) -> bytes:
        """The body, which must be declared as JSON.

        Raises UnsupportedMediaType, BodyTooLarge, BadRequest or RequestTimedOut.
        """
        content_type = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        if content_type != "application/json":
            raise UnsupportedMediaType(
                f"Send the body with Content-Type: application/json, not {content_type or 'without one'}.")
        body = self._read(MAX_BODY_BYTES)
        if body is None:
            raise BodyTooLarge(f"The body may have at most {MAX_BODY_BYTES} bytes.")
        return body

    def discard_body(self) -> None:
        """Read what nobody wanted of the body, or give up the connection."""
        if self._is_read:
            return
        if "expect" in self.headers:    # it waits to be asked for it
            self._is_read = self.is_last = True
            return
        with contextlib.suppress(BadRequest, RequestTimedOut):      # then the connection ends
            self._read(0)

    def _read(self, most_bytes: int) -> bytes | None:
        """The whole body; None if it has more than `most_bytes`. The rest is discarded, or the connection given up
        if there is absurdly much."""
        if self._is_read:
            return b""
        self._is_read = True
        is_last, self.is_last = self.is_last, True      # unless its end is found
        pieces, size = [], 0
        try:
            if self.headers.get("expect", "").lower() == "100-continue":
                self._stream.send(b"HTTP/1.1 100 Continue\r\n\r\n")
            for piece in self._pieces():
                size += len(piece)
                if size <= most_bytes:
                    pieces.append(piece)
                elif size > most_bytes + MAX_DISCARDED_BYTES:
                    return None
        except TimeoutError:
            raise RequestTimedOut("The body did not arrive in time.") from None
        except OSError:
            raise BadRequest("The body broke off.") from None
        self.is_last = is_last
        return b"".join(pieces) if size <= most_bytes else None

    def _pieces(self) -> Iterator[bytes]:
        if "transfer-encoding" not in self.headers:
            yield from self._take(_number(self.headers["content-length"], 10))
            return
        if self.headers["transfer-encoding"].lower() != "chunked":
            raise BadRequest("The body's transfer encoding is not chunked.")
        while size := _number(self._line().partition(b";")[0].decode("latin-1").strip(), 16):
            yield from self._take(size)
            if self._line():
                raise BadRequest("A chunk of the body is longer than it says.")
        while self._line():     # trailers
            pass

    def _take(self, size: int) -> Iterator[bytes]:
        while size:
            if not self.unread:
                self._receive()
            piece, self.unread = self.unread[:size], self.unread[size:]
            size -= len(piece)
            yield piece

    def _line(self) -> bytes:
        while b"\r\n" not in self.unread:
            if len(self.unread) > MAX_CHUNK_LINE_BYTES:
                raise BadRequest("The body's transfer encoding is wrong.")
            self._receive()
        line, _, self.unread = self.unread.partition(b"\r\n")
        return line

    def _receive(self) -> None:
        received = self._stream.receive()
        if not received:
            raise BadRequest("The body broke off.")
        self.unread += received


def response(answer: Answer, is_head: bool, is_last: bool) -> bytes:
    """An answer on the wire; only its head, if the body comes in pieces."""
    status, headers, body = answer
    lines = [_first_line(status), *(f"{name}: {value}\r\n" for name, value in headers), _date(int(time.time()))]
    if is_last:
        lines.append("Connection: close\r\n")
    # An answer without content has no length either (RFC 9110, section 8.6).
    if status != HTTPStatus.NO_CONTENT and isinstance(body, bytes):
        lines.append(f"Content-Length: {len(body)}\r\n")
    lines.append("\r\n")
    return "".join(lines).encode("latin-1") + (body if isinstance(body, bytes) and not is_head else b"")


@lru_cache(maxsize=64)
def _first_line(status: int) -> str:
    return f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n"


@lru_cache(maxsize=2)
def _date(second: int) -> str:
    return f"Date: {formatdate(second, usegmt=True)}\r\n"


def _fields(lines: list[bytes]) -> dict[str, str]:
    fields: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or not name or not TOKEN.issuperset(name):
            raise BadRequest("A header is not a name and a value.")
        key, text = name.decode().lower(), value.strip(b" \t").decode("latin-1")
        if key in fields and key in ("content-length", "transfer-encoding", "host"):
            raise BadRequest(f"The header {key} is given twice.")
        fields[key] = f"{fields[key]}, {text}" if key in fields else text
    return fields


def _path(target: str) -> str:
    if not target.startswith("/"):
        # Clients of proxies send the whole URL.
        target = "/" + target.partition("://")[2].partition("/")[2] if "://" in target else target
    if "%" not in target and target.isascii():
        return target
    try:
        return unquote(target, encoding="utf-8", errors="strict").encode("latin-1").decode("utf-8")
    except UnicodeError:
        raise BadRequest("The URL is not UTF-8.") from None


def _number(text: str, base: int) -> int:
    try:
        if not text.isalnum() or not text.isascii():
            raise ValueError(text)
        return int(text, base)
    except ValueError:
        raise BadRequest("The body's length is not a number.") from None
