"""The listening end: a thread per connection, one request after the other on each."""

from __future__ import annotations

import contextlib
import logging
import socket
import socketserver
import threading
import time
from collections.abc import Callable
from io import BufferedReader
from ipaddress import IPv4Network
from itertools import islice
from typing import Any

from speedwell.fs.errors import InvalidArgument, NoSpace, ProtocolError, StorageFailed
from speedwell.fs.identity.bundle import Identity, Peer, peer_of
from speedwell.fs.identity.roles import CONTROLLER, DATASERVER, NAMESERVER, READER, WRITERS
from speedwell.fs.metadata_store.addresses import Key, address_of, parse_block
from speedwell.fs.metadata_store.engines import STATE_KEY, Engine
from speedwell.fs.metadata_store.ownership import KEYS_AT_ONCE, NotMine, Ownership
from speedwell.fs.metadata_store.wire import (
    HOT,
    MAX_KEY_BYTES,
    VERSION,
    TLSFile,
    encode,
    encode_bulk,
    encode_error,
    read_request,
)
from speedwell.fs.wire.frame_server import NO_CERTIFICATE
from speedwell.fs.wire.handshakes import Handshakes
from speedwell.fs.wire.tls import TLS

log = logging.getLogger(__name__)

IDLE_SECONDS = 60.0
MAX_CONNECTIONS = 1024
OK = b"+OK\r\n"


class MetadataServer(socketserver.ThreadingTCPServer):
    """Serves GET, SET, BLOCKS and PING, and to other servers what moves need, until `shutdown`."""

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 1024

    measure: Callable[[str, float, bool], None] | None = None
    """Is told of each request its command, the seconds that it took, and whether it was refused."""

    def __init__(self, address: tuple[str, int], engine: Engine, ownership: Ownership,
                 identity: Identity | None = None) -> None:
        """With an `identity` over TLS, for who has a certificate. Raises OSError if the address cannot be had."""
        self.engine = engine
        self.ownership = ownership
        self.identity = identity
        self.places = threading.Semaphore(MAX_CONNECTIONS)
        super().__init__(address, _Session)
        self.handshakes = None if identity is None else Handshakes(
            identity, self._begin, encode_error(f"NOAUTH {NO_CERTIFICATE}"))

    def process_request(self, request: Any, client_address: Any) -> None:
        if self.handshakes is None:
            super().process_request(request, client_address)
        else:
            self.handshakes.begin(request)

    def _begin(self, proven: TLS) -> None:
        """`proven` takes the place of its socket from here on."""
        request: Any = proven
        try:
            super().process_request(request, proven.socket.getpeername())
        except (OSError, RuntimeError):     # it is gone, or we are out of threads
            proven.socket.close()

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request.socket if isinstance(request, TLS) else request)

    def server_close(self) -> None:
        super().server_close()
        if self.handshakes is not None:
            self.handshakes.stop()

    def handle_error(self, request: object, client_address: object) -> None:
        log.exception("a request of %s failed", client_address)


class _Session(socketserver.StreamRequestHandler):
    server: MetadataServer
    timeout = IDLE_SECONDS

    sender: Peer | None = None      # without an identity

    def setup(self) -> None:
        tls = self.request if isinstance(self.request, TLS) else None
        if tls is not None:
            self.request = tls.socket
        self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        super().setup()
        if tls is not None:
            self.sender = peer_of(tls.session)
            self.rfile = BufferedReader(TLSFile(tls))
            self.wfile = TLSFile(tls)   # type: ignore[assignment]  # it is written to alone

    def handle(self) -> None:
        if not self.server.places.acquire(blocking=False):
            self.wfile.write(encode_error(f"ERR {MAX_CONNECTIONS} connections are open: try again later"))
            return
        try:
            while (parts := read_request(self.rfile)) is not None:
                self.wfile.write(self._measured(parts))
        except ProtocolError as error:
            self.wfile.write(encode_error(f"ERR {error}"))
        except (OSError, EOFError):
            pass
        finally:
            self.server.places.release()

    def finish(self) -> None:
        with contextlib.suppress(OSError):
            super().finish()

    def _measured(self, parts: list[bytes]) -> bytes:
        measure = self.server.measure
        if measure is None:
            return self._answer(parts)
        began, command = time.perf_counter(), (parts or [b""])[0].upper()
        answer = self._answer(parts)
        measure(command.decode() if command in COMMANDS else "unknown", time.perf_counter() - began,
                answer.startswith(b"-"))
        return answer

    def _answer(self, parts: list[bytes]) -> bytes:
        name, *arguments = parts or [b""]
        command = COMMANDS.get(name.upper())
        try:
            if command is None:
                raise InvalidArgument(f"unknown command {name[:32]!r}: there are "
                                      f"{', '.join(sorted(known.decode() for known in COMMANDS))}")
            count, function = command
            if refusal := self._refusal(name.upper()):
                return encode_error(f"NOPERM {refusal}")
            if len(arguments) != count:
                raise InvalidArgument(f"{name.upper().decode()} takes {count} arguments, not {len(arguments)}")
            return function(self, *arguments)
        except NotMine as error:
            return encode_error(str(error))
        except (InvalidArgument, StorageFailed, NoSpace) as error:
            return encode_error(f"ERR {error}")

    def _refusal(self, name: bytes) -> str:
        """Why who asks may not ask that; empty if they may."""
        sender = self.sender
        if sender is None or self.server.identity is None:
            return ""
        if refusal := self.server.identity.refusal(sender):
            return refusal
        if sender.scope is not None:
            return f"the {sender} is for some users or a directory, and records are nobody's"
        roles = _ROLES.get(name, (DATASERVER,))
        return "" if sender.role in roles else (
            f"the {sender} may not ask for {name.decode()}: that is for {', '.join(roles)}")

    # --- for clients ---

    def _ping(self) -> bytes:
        return b"+PONG\r\n"

    def _version(self, theirs: bytes) -> bytes:
        if not theirs.isdigit() or len(theirs) > 9:
            raise InvalidArgument(f"VERSION: {theirs[:32]!r} is no number")
        if int(theirs) == VERSION:
            return OK
        return encode_error(f"VERSION {VERSION} is spoken here: upgrade "
                            f"{'this server' if int(theirs) > VERSION else 'the client'} (docs/upgrades.md)")

    def _blocks(self) -> bytes:
        return encode(*(str(block).encode() for block in self.server.ownership.owned))

    def _get(self, key: bytes) -> bytes:
        ownership, asker, known = self.server.ownership, self.client_address[0], _key(key)
        if asker not in ownership.members:
            address = known.address
            ownership.reads.note(int(address))
            if address in ownership.spread and self.request.getsockname()[0] != str(address):
                return encode_error(f"{HOT} {address} has replicas: ask at its own address")
        return encode_bulk(ownership.get(known, asker))

    def _set(self, key: bytes, value: bytes) -> bytes:
        self.server.ownership.put(_key(key), value, self.client_address[0])
        return OK

    # --- for other servers ---

    def _copy(self, key: bytes) -> bytes:
        return encode_bulk(self.server.ownership.copy(_key(key), self.client_address[0]))

    def _drop(self, key: bytes) -> bytes:
        self.server.ownership.drop(_key(key))
        return OK

    def _release(self, block: bytes) -> bytes:
        self.server.ownership.release(parse_block(_text(block), "RELEASE"), self.client_address[0])
        return OK

    def _keys(self, block: bytes, most: bytes) -> bytes:
        if not most.isdigit() or int(most) > KEYS_AT_ONCE:
            raise InvalidArgument(f"KEYS: {most[:32]!r} is no number up to {KEYS_AT_ONCE}")
        wanted = parse_block(_text(block), "KEYS")
        self.server.ownership.handed_over(self.client_address[0], wanted)
        keys = islice(self.server.engine.keys_in(wanted), int(most))
        return encode(*(key for key in dict.fromkeys(keys) if key != STATE_KEY))

    def _fetch(self, key: bytes) -> bytes:
        self.server.ownership.handed_over(self.client_address[0], IPv4Network(address_of(key)))
        return encode_bulk(self.server.engine.get(key))

    def _forget(self, key: bytes) -> bytes:
        self.server.ownership.handed_over(self.client_address[0], IPv4Network(address_of(key)))
        self.server.engine.delete(key)
        return OK


COMMANDS: dict[bytes, tuple[int, Callable[..., bytes]]] = {
    b"PING": (0, _Session._ping), b"VERSION": (1, _Session._version), b"BLOCKS": (0, _Session._blocks),
    b"GET": (1, _Session._get),
    b"SET": (2, _Session._set), b"RELEASE": (1, _Session._release), b"KEYS": (2, _Session._keys),
    b"FETCH": (1, _Session._fetch), b"FORGET": (1, _Session._forget),
    b"COPY": (1, _Session._copy), b"DROP": (1, _Session._drop)}
"""How many arguments each takes, and who answers it."""

_READERS = (READER, *WRITERS, NAMESERVER, CONTROLLER)
_ROLES = {b"PING": _READERS, b"VERSION": _READERS, b"BLOCKS": _READERS, b"GET": _READERS, b"SET": WRITERS}
"""Who may ask for what; the rest is for other metadata servers, which have that of their host's dataserver."""


def _key(key: bytes) -> Key:
    if not 0 < len(key) <= MAX_KEY_BYTES:
        raise InvalidArgument(f"a key of {len(key)} bytes: 1 to {MAX_KEY_BYTES} are taken")
    if key == STATE_KEY:
        raise InvalidArgument(f"the key {key!r} is the server's own")
    return Key(key)


def _text(word: bytes) -> str:
    return word.decode(errors="replace")
