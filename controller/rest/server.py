"""The HTTP server under the REST application, on Ryu's hub: one green thread for each connection."""

import contextlib
import logging
import socket
from collections.abc import Callable
from typing import Any

import eventlet

from speedwell.controller.loops import Loops
from speedwell.controller.reader import Reader
from speedwell.controller.rest.http import MAX_HEAD_BYTES, RECEIVE_BYTES, Answer, Pieces, Request, response
from speedwell.controller.rest.problems import BadRequest, HttpProblem, RequestTimedOut, answer_to
from speedwell.controller.secure import Door, NotAdmitted
from speedwell.fs.identity.bundle import Identity, Peer
from speedwell.fs.wire.handshakes import DEADLINE_SECONDS

LOG = logging.getLogger(__name__)
KEEP_ALIVE_SECONDS = 75.0
REQUEST_TIMEOUT_SECONDS = 20.0
MAX_CONNECTIONS = 1024

Application = Callable[[Request], Answer]


def listen(host: str, port: int) -> socket.socket:
    """A listening socket on `host:port` (port 0: any free one). Raises OSError if it cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening: socket.socket = eventlet.listen((host, port), family=family, backlog=256, reuse_port=False)
    # Accepted sockets inherit it: an answer must not wait for the acknowledgement of the one before.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def door_of(identity: Identity, refused: Callable[[], None]) -> Door:
    """For REST over TLS: browsers and scripts have no certificate. `refused` is called for each that is refused."""
    no_tls = BadRequest("TLS 1.3 is spoken here: ask https://, with the installation's authority.pem.")
    return Door(identity, lambda *_: refused(), anonymous=True, most=MAX_CONNECTIONS // 2,
                plain_answer=response(answer_to(no_tls), is_head=False, is_last=True))


def serve(listening: socket.socket, application: Application, loops: Loops, door: Door | None = None) -> None:
    """Serve `application` for ever, through the `door` if there is one."""
    pool = eventlet.GreenPool(MAX_CONNECTIONS)
    while True:
        accepted, address = loops.insist("REST connections", listening.accept)
        pool.spawn_n(_Connection(accepted, address, application, door).serve)


class _Connection:
    sender: Peer | None = None

    def __init__(self, accepted: Any, address: Any, application: Application, door: Door | None) -> None:
        accepted.settimeout(REQUEST_TIMEOUT_SECONDS)
        self._socket = accepted
        self.peer: str = address[0]
        self._application = application
        self._door = door
        self._is_proven = door is None

    def serve(self) -> None:
        try:
            if self._door is not None:
                self._socket, self.sender = self._door.admit(self._socket, self.peer)
                self._is_proven = self.sender is not None
            self._reader = Reader(self._socket)
            try:
                self._converse()
            finally:
                self._reader.close()
        except NotAdmitted as error:
            LOG.debug("%s was refused: %s", self.peer, error)
        finally:
            if self._door is not None:
                self._door.proven(self._socket)
            self._socket.close()

    def _converse(self) -> None:
        try:
            unread = b""
            while True:
                head, unread = self._head(unread)
                if not head:
                    return
                request = Request(head, unread, self)
                answer = self._application(request)
                if request.is_proven and not self._is_proven:
                    assert self._door is not None
                    self._door.proven(self._socket)
                    self._is_proven = True
                request.discard_body()
                unread = request.unread
                body, is_head = answer[2], request.method == "HEAD"
                is_last = request.is_last or not isinstance(body, bytes)
                self._socket.sendall(response(answer, is_head, is_last))
                if not isinstance(body, bytes):
                    self._send_pieces(body, is_head, request)
                if is_last:
                    return
        except HttpProblem as problem:
            self._refuse(problem)
        except OSError:
            pass        # the client is gone, or silent
        except Exception:
            LOG.exception("a connection fails")

    def _send_pieces(self, body: Pieces, is_head: bool, request: Request) -> None:
        with contextlib.closing(body):
            for piece in () if is_head else body:
                if not request.is_still_known(request):
                    return
                with eventlet.Timeout(REQUEST_TIMEOUT_SECONDS, TimeoutError):
                    self._socket.sendall(piece)

    def _head(self, unread: bytes) -> tuple[bytes, bytes]:
        """A request's first lines, and what follows them; no lines at the connection's end.

        Raises BadRequest or RequestTimedOut, OSError.
        """
        unread = unread.lstrip(b"\r\n")
        if not unread:
            unread = self._first_bytes().lstrip(b"\r\n")
        while b"\r\n\r\n" not in unread:
            if len(unread) > MAX_HEAD_BYTES:
                raise _too_long()
            try:
                received = self.receive()
            except TimeoutError:
                raise RequestTimedOut("The request did not arrive in time.") from None
            if not received:
                return b"", b""
            unread += received
        head, _, rest = unread.partition(b"\r\n\r\n")
        if len(head) > MAX_HEAD_BYTES:
            raise _too_long()
        return head, rest

    def _first_bytes(self) -> bytes:
        self._socket.settimeout(KEEP_ALIVE_SECONDS if self._is_proven else DEADLINE_SECONDS)
        try:
            return self.receive()
        finally:
            self._socket.settimeout(REQUEST_TIMEOUT_SECONDS)

    def _refuse(self, problem: HttpProblem) -> None:
        """Answer what never became a request, and end the connection."""
        with contextlib.suppress(OSError):
            self._socket.sendall(response(answer_to(problem), is_head=False, is_last=True))

    # --- see `http.Stream` ---

    def receive(self) -> bytes:
        return self._reader.recv(RECEIVE_BYTES)

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)


def _too_long() -> BadRequest:
    return BadRequest(f"A request's headers may have at most {MAX_HEAD_BYTES} bytes.")
