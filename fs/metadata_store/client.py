"""Get and put by key: a request goes to the address of its key, and the network knows whose that is."""

from __future__ import annotations

import time
from collections import deque
from ipaddress import IPv4Address, IPv4Network
from typing import NamedTuple

from speedwell.fs.errors import InvalidArgument, NotAuthenticated, ProtocolError, SpeedwellError, reason
from speedwell.fs.identity.bundle import Identity
from speedwell.fs.metadata_store.addresses import PORT, address_of, block_of
from speedwell.fs.metadata_store.wire import HOT, MAX_KEY_BYTES, MAX_VALUE_BYTES, Connection, Refused, Reply, connect

CONNECT_SECONDS = 0.2
"""A SYN that is lost while tables change would be sent again after a second only."""
FIRST_ANSWER_SECONDS, ANSWER_SECONDS = 0.5, 2.0
"""How long an answer is waited for, at first and at most: one that was on its way while its block moved is lost."""
PAUSE_SECONDS = 0.01
MAX_KEPT = 64
HOT_SECONDS = 10.0
"""For so long a key that has replicas is read over a connection of its own."""


class MetadataUnavailable(SpeedwellError):
    """Nobody answers for a key."""


class _Kept(NamedTuple):
    blocks: list[IPv4Network]
    connection: Connection
    hot: IPv4Address | None
    """The key's address that it was made for, where it is read there alone."""


class MetadataClient:
    """For one thread. Keeps one connection to each server, whatever addresses its keys have: a server says with the
    first answer which blocks it owns. One that refuses a key, or breaks, is left, and the request goes to the key's
    address again; get and put may be sent twice."""

    def __init__(self, *, port: int = PORT, timeout_seconds: float = 5.0, keep: bool = True,
                 identity: Identity | None = None) -> None:
        """`keep` False: a connection for each request, as the paper's clients have them. With an `identity` over TLS.
        """
        self._identity = identity
        self._port = port
        self._timeout_seconds = timeout_seconds
        self._keep = keep
        self._kept: deque[_Kept] = deque()
        self._hot_until: dict[IPv4Address, float] = {}

    def get(self, key: bytes) -> bytes | None:
        """The value, None if there is none. Raises InvalidArgument, MetadataUnavailable."""
        value = self._request(key, b"GET", key)
        assert value is None or isinstance(value, bytes)
        return value

    def put(self, key: bytes, value: bytes) -> None:
        """Returns once the server has it as safe as its store promises. Raises InvalidArgument, MetadataUnavailable.
        """
        if len(value) > MAX_VALUE_BYTES:
            raise InvalidArgument(f"a value of {len(value)} bytes: at most {MAX_VALUE_BYTES} are taken")
        self._request(key, b"SET", key, value)

    def close(self) -> None:
        while self._kept:
            self._kept.pop().connection.close()

    def _request(self, key: bytes, *parts: bytes) -> Reply:
        if not 0 < len(key) <= MAX_KEY_BYTES:
            raise InvalidArgument(f"a key of {len(key)} bytes: 1 to {MAX_KEY_BYTES} are taken")
        address = address_of(key)
        deadline = time.monotonic() + self._timeout_seconds
        connect_seconds, answer_seconds = CONNECT_SECONDS, FIRST_ANSWER_SECONDS
        while True:
            kept = None
            try:
                kept = self._connection(address, parts[0] == b"GET" and self._is_hot(address), connect_seconds)
                kept.connection.set_timeout(answer_seconds)
                reply = kept.connection.call(*parts)
            except (Refused, NotAuthenticated) as error:
                problem: Exception = error
                if str(error).startswith(HOT) and self._keep:
                    self._note_hot(address)
                else:
                    self._leave(kept)
                if not str(error).startswith("NOTMINE"):
                    raise MetadataUnavailable(f"{address}: {error}") from None
            except (OSError, EOFError, ProtocolError) as error:
                self._leave(kept)
                problem = error
            else:
                if not self._keep:
                    self._leave(kept)
                return reply
            connect_seconds = min(2 * connect_seconds, ANSWER_SECONDS)
            answer_seconds = min(2 * answer_seconds, ANSWER_SECONDS)
            if time.monotonic() > deadline:
                raise MetadataUnavailable(f"no server answers for {address}: {reason(problem)}")
            time.sleep(PAUSE_SECONDS)

    def _note_hot(self, address: IPv4Address) -> None:
        now = time.monotonic()
        self._hot_until = {known: until for known, until in self._hot_until.items() if until > now}
        self._hot_until[address] = now + HOT_SECONDS

    def _is_hot(self, address: IPv4Address) -> bool:
        return self._hot_until.get(address, 0.0) > time.monotonic()

    def _connection(self, address: IPv4Address, is_hot: bool, connect_seconds: float) -> _Kept:
        """To the owner, as far as we know; of a key that `is_hot`, to whoever answers at its address."""
        for kept in self._kept:
            if kept.hot == address if is_hot else block_of(address, kept.blocks):
                return kept
        connection = connect((str(address), self._port), connect_seconds, self._identity)
        connection.set_timeout(ANSWER_SECONDS)
        if not self._keep:
            return _Kept([], connection, None)
        try:
            connection.require_version()
            blocks = connection.call(b"BLOCKS")
            assert isinstance(blocks, list)
            kept = _Kept([IPv4Network(block.decode()) for block in blocks if isinstance(block, bytes)], connection,
                         address if is_hot else None)
        except BaseException:
            connection.close()
            raise
        self._kept.append(kept)
        if len(self._kept) > MAX_KEPT:
            self._kept.popleft().connection.close()
        return kept

    def _leave(self, kept: _Kept | None) -> None:
        if kept is not None:
            kept.connection.close()
            if kept in self._kept:
                self._kept.remove(kept)
