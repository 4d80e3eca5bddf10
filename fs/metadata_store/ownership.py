"""Which blocks a server owns, and how one comes to it from another server without an acknowledged record lost.

A block that is to come is `incoming`: its requests are forwarded to the former owner, who still decides. `take` has
the former owner release it, which from then on refuses; what is put now is kept here, what is not here yet is fetched
from the former owner, one key when it is asked for and the others behind.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from ipaddress import IPv4Address, IPv4Network, collapse_addresses
from typing import NamedTuple

from fs.errors import SpeedwellError, StorageFailed, reason
from fs.metadata_store.addresses import address_of, block_of
from fs.metadata_store.engines import Engine
from fs.metadata_store.peers import Peer, call_peer
from fs.metadata_store.wire import Refused

log = logging.getLogger(__name__)

KEY_LOCKS = 256
KEYS_AT_ONCE = 500


class NotMine(SpeedwellError):
    """The key's block is another server's."""


class Holding(NamedTuple):
    """Where the records of a block are: `former` has all of them while the block is incoming, else perhaps some."""

    block: IPv4Network
    former: Peer | None
    is_owned: bool


class Ownership:
    """Get and put by whoever owns the key's block. Thread-safe."""

    def __init__(self, engine: Engine, name: str) -> None:
        self._engine = engine
        self._name = name
        self._lock = threading.Lock()
        self._owned: set[IPv4Network] = set()
        self._fetching: dict[IPv4Network, Peer] = {}
        self._incoming: dict[IPv4Network, Peer] = {}
        self._leaving: dict[IPv4Network, str] = {}
        self._key_locks = [threading.Lock() for _ in range(KEY_LOCKS)]

    # --- what is whose ---

    @property
    def owned(self) -> list[IPv4Network]:
        with self._lock:
            return sorted(self._owned)

    @property
    def incoming(self) -> list[IPv4Network]:
        with self._lock:
            return sorted(self._incoming)

    @property
    def fetching(self) -> list[IPv4Network]:
        """Owned blocks of which not all records are here yet."""
        with self._lock:
            return sorted(self._fetching)

    def set_owned(self, blocks: Iterable[IPv4Network]) -> None:
        """These are this server's, whatever it owned before."""
        with self._lock:
            self._owned = set(collapse_addresses(blocks))

    def set_moves(self, incoming: Mapping[IPv4Network, Peer], leaving: Mapping[IPv4Network, str]) -> None:
        """Blocks that are to come, and from whom; those that are to go, and the address of who may take them."""
        with self._lock:
            self._incoming = {block: former for block, former in incoming.items()
                              if not any(block.subnet_of(owned) for owned in self._owned)}
            self._leaving = dict(leaving)

    # --- requests ---

    def get(self, key: bytes) -> bytes | None:
        """Raises NotMine, StorageFailed."""
        with self._key(key) as holding:
            value = self._engine.get(key) if holding.is_owned else None
            if value is None and holding.former is not None:
                value = _bytes(self._ask(holding, b"GET" if not holding.is_owned else b"FETCH", key))
                if value is not None and holding.is_owned:
                    self._engine.put(key, value)
            return value

    def put(self, key: bytes, value: bytes) -> None:
        """Raises NotMine, StorageFailed."""
        with self._key(key) as holding:
            if holding.is_owned:
                self._engine.put(key, value)
            else:
                self._ask(holding, b"SET", key, value)

    @contextmanager
    def _key(self, key: bytes) -> Iterator[Holding]:
        with self._key_locks[hash(key) % KEY_LOCKS]:
            yield self._holding(address_of(key))

    def _holding(self, address: IPv4Address) -> Holding:
        with self._lock:
            if block := block_of(address, self._owned):
                fetching = block_of(address, self._fetching)
                return Holding(block, self._fetching[fetching] if fetching else None, True)
            if block := block_of(address, self._incoming):
                return Holding(block, self._incoming[block], False)
        raise NotMine(f"NOTMINE {address} is not within the blocks that {self._name} owns")

    def _ask(self, holding: Holding, *parts: bytes) -> object:
        assert holding.former is not None
        try:
            return call_peer(holding.former, *parts)
        except Refused as error:
            raise NotMine(str(error)) from None
        except (OSError, EOFError, SpeedwellError) as error:
            raise StorageFailed(f"{holding.former}, who owned {holding.block} before, does not answer: "
                                f"{reason(error)}") from None

    # --- moves: the new owner's part ---

    def take(self, block: IPv4Network) -> None:
        """An incoming block is this server's from now on. Raises StorageFailed, NotMine: it is not."""
        with self._lock:
            former = self._incoming[block]
        self._ask(Holding(block, former, False), b"RELEASE", str(block).encode())
        with self._lock:
            self._incoming.pop(block, None)
            self._fetching[block] = former
            self._owned = set(collapse_addresses([*self._owned, block]))

    def fetch(self, block: IPv4Network) -> None:
        """Bring what the former owner still has of a block. Raises StorageFailed: try again later."""
        with self._lock:
            former = self._fetching[block]
        holding = Holding(block, former, True)
        while keys := self._ask(holding, b"KEYS", str(block).encode(), b"%d" % KEYS_AT_ONCE):
            assert isinstance(keys, list)
            for key in keys:
                with self._key_locks[hash(key) % KEY_LOCKS]:
                    if self._engine.get(key) is None:
                        value = _bytes(self._ask(holding, b"FETCH", key))
                        if value is not None:
                            self._engine.put(key, value)
                self._ask(holding, b"FORGET", key)
        with self._lock:
            self._fetching.pop(block, None)

    # --- moves: the former owner's part ---

    def release(self, block: IPv4Network, peer: str) -> None:
        """The one at `peer` owns a block from now on: no put of it is under way any more. Raises NotMine."""
        with self._lock:
            if self._leaving.get(block) != peer:
                raise NotMine(f"NOTMINE {block} of {self._name} is not for {peer} to take")
            self._owned = set(without(self._owned, block))
        for lock in self._key_locks:
            with lock:
                pass

    def handed_over(self, peer: str, key: bytes) -> None:
        """Require that a key is in a block that `peer` took. Raises NotMine."""
        address = address_of(key)
        with self._lock:
            block = block_of(address, self._leaving)
            if block is None or self._leaving[block] != peer or block_of(address, self._owned):
                raise NotMine(f"NOTMINE {address} was not handed over to {peer}")


def without(blocks: Iterable[IPv4Network], taken: IPv4Network) -> Iterator[IPv4Network]:
    """What is left of disjoint blocks."""
    for block in blocks:
        if taken.subnet_of(block):
            yield from block.address_exclude(taken)
        elif not block.subnet_of(taken):
            yield block


def _bytes(reply: object) -> bytes | None:
    assert reply is None or isinstance(reply, bytes)
    return reply
