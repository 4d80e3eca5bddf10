"""Which blocks a server owns, and how one comes to it from another server without an acknowledged record lost.

A block that is to come is `incoming`: its requests are forwarded to the former owner, who still decides. `take` has
the former owner release it, which from then on refuses; what is put now is kept here, what is not here yet is fetched
from the former owner, one key when it is asked for and the others behind. The former owner forwards what still comes
to it for a while: a SYN that nobody answers costs a second.

A key that is read very often has replicas: they answer reads with copies that the owner granted (`hot_keys.py`).
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from ipaddress import IPv4Address, IPv4Network, collapse_addresses
from typing import NamedTuple

from speedwell.fs.errors import SpeedwellError, StorageFailed, reason
from speedwell.fs.identity.bundle import Identity
from speedwell.fs.metadata_store.addresses import address_of, block_of
from speedwell.fs.metadata_store.engines import STATE_KEY, Engine
from speedwell.fs.metadata_store.hot_keys import COPY_SECONDS, Copies, Grants, Reads
from speedwell.fs.metadata_store.peers import TIMEOUT_SECONDS, Peer, call_peer
from speedwell.fs.metadata_store.wire import Refused

KEY_LOCKS = 256
KEYS_AT_ONCE, KEYS_SECONDS = 500, 60.0
"""A Redis looks at all its keys to find a block's."""
FORWARD_SECONDS = 10.0
"""For so long after a move the former owner forwards."""


class NotMine(SpeedwellError):
    """The key's block is another server's."""


class Holding(NamedTuple):
    """Where the records of a block are. One that is not owned is `former`'s, to whom requests are forwarded; of one
    that is owned, `former` perhaps has some records."""

    block: IPv4Network
    former: Peer | None
    is_owned: bool
    is_replica: bool = False
    """Reads are answered with a copy, if there is one."""


class Ownership:
    """Get and put by whoever owns the key's block. Thread-safe."""

    def __init__(self, engine: Engine, name: str, identity: Identity | None = None) -> None:
        self._engine = engine
        self._name = name
        self._identity = identity
        self._lock = threading.Lock()
        self._remembering = threading.Lock()
        """From reading what is to be remembered until it is written."""
        self._owned: set[IPv4Network] = set()
        self._fetching: dict[IPv4Network, Peer] = {}
        self._incoming: dict[IPv4Network, Peer | None] = {}
        self._leaving: dict[IPv4Network, Peer] = {}
        self._gone: dict[IPv4Network, tuple[Peer, float]] = {}
        """To whom blocks went lately, and until when what comes for them is forwarded."""
        self.members: frozenset[str] = frozenset()
        """Servers of the cluster that may have records, which the next controller may not know."""
        self._key_locks = [threading.Lock() for _ in range(KEY_LOCKS)]
        self._replicated: dict[IPv4Network, Peer] = {}
        """Single addresses that this server answers beside their owners."""
        self.spread: frozenset[IPv4Address] = frozenset()
        """Own addresses that replicas answer too."""
        self.reads = Reads()
        self._grants = Grants()
        self._copies = Copies()

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
    def answered(self) -> set[IPv4Network]:
        """All blocks for which this server has something to say: those that it owns, gets, and had until lately."""
        now = time.monotonic()
        with self._lock:
            self._gone = {block: gone for block, gone in self._gone.items() if gone[1] > now}
            return {*self._owned, *self._incoming, *self._leaving, *self._gone, *self._replicated}

    @property
    def fetching(self) -> list[IPv4Network]:
        """Owned blocks of which not all records are here yet."""
        with self._lock:
            return sorted(self._fetching)

    @property
    def fetching_from(self) -> dict[IPv4Network, Peer]:
        with self._lock:
            return dict(self._fetching)

    def set_owned(self, blocks: Iterable[IPv4Network], fetching: Mapping[IPv4Network, Peer] | None = None) -> None:
        """These are this server's, whatever it owned before."""
        with self._lock:
            self._owned = set(collapse_addresses(blocks))
            self._fetching = dict(fetching or {})

    def restrict(self, blocks: Iterable[IPv4Network]) -> None:
        """Give up what is owned beside these."""
        allowed = list(blocks)
        with self._lock:
            kept = set(common(self._owned, allowed))
            is_other = kept != self._owned
            self._owned = set(collapse_addresses(kept))
            self._fetching = {part: former for block, former in self._fetching.items()
                              for part in common([block], kept)}
        if is_other:
            self._remember()

    def set_moves(self, incoming: Mapping[IPv4Network, Peer | None], leaving: Mapping[IPv4Network, Peer]) -> None:
        """Blocks that are to come, and from whom, if anybody has records (if nobody has any more, what was not
        fetched is lost); those that are to go, and who may take them."""
        until = time.monotonic() + FORWARD_SECONDS
        with self._lock:
            self._gone |= {block: (peer, until) for block, peer in self._leaving.items() if block not in leaving}
            self._incoming = {block: former for block, former in incoming.items()
                              if not any(block.subnet_of(owned) for owned in self._owned)}
            self._leaving = dict(leaving)
            lost = [block for block in self._fetching
                    if any(former is None and block.overlaps(other) for other, former in incoming.items())]
            for block in lost:
                del self._fetching[block]
        if lost:
            self._remember()

    def set_hot(self, replicated: Mapping[IPv4Address, Peer], spread: Iterable[IPv4Address]) -> None:
        """Addresses to answer beside their owners, and own ones that others answer too. What comes for one that ends
        is forwarded for a while."""
        until = time.monotonic() + FORWARD_SECONDS
        wanted = {IPv4Network(address): peer for address, peer in replicated.items()}
        with self._lock:
            self._gone |= {block: (peer, until) for block, peer in self._replicated.items() if block not in wanted}
            self._replicated = wanted
        self.spread = frozenset(spread)

    @property
    def replicated(self) -> list[IPv4Address]:
        with self._lock:
            return sorted(block.network_address for block in self._replicated)

    def set_members(self, members: Iterable[str]) -> None:
        if (wanted := frozenset(members)) != self.members:
            self.members = wanted
            self._remember()

    def recall(self) -> tuple[list[IPv4Network], dict[IPv4Network, Peer]]:
        """What was owned, and being fetched, when the process before ended. Raises StorageFailed."""
        text = self._engine.get(STATE_KEY)
        state = json.loads(text) if text else {"owned": [], "fetching": {}}
        self.members = frozenset(state.get("members", []))
        if state["owned"]:
            self._grants.unknown_until = time.monotonic() + COPY_SECONDS
        return (list(map(IPv4Network, state["owned"])),
                {IPv4Network(block): Peer(*former) for block, former in state["fetching"].items()})

    def _remember(self) -> None:
        with self._remembering:
            with self._lock:
                owned, fetching = self._owned, dict(self._fetching)
            self._write(owned, fetching)

    def _write(self, owned: Iterable[IPv4Network], fetching: Mapping[IPv4Network, Peer]) -> None:
        state = {"owned": list(map(str, sorted(owned))),
                 "fetching": {str(block): list(former) for block, former in fetching.items()},
                 "members": sorted(self.members)}
        self._engine.put(STATE_KEY, json.dumps(state).encode())

    # --- requests ---

    def get(self, key: bytes, asker: str = "") -> bytes | None:
        """What comes from the `asker`'s address is not forwarded there. Raises NotMine, StorageFailed."""
        if (copy := self._copies.get(key, time.monotonic())) is not None:
            return copy[0]
        with self._key(key, asker) as holding:
            if holding.is_replica:
                return self._copied(key, holding)
            if holding.is_owned:
                return self._value(key, holding)
        return _bytes(self._ask(holding, b"GET", key))

    def _value(self, key: bytes, holding: Holding) -> bytes | None:
        value = self._engine.get(key)
        if value is None and holding.former is not None:
            value = _bytes(self._ask(holding, b"FETCH", key))
            if value is not None:
                self._engine.put(key, value)
        return value

    def _copied(self, key: bytes, holding: Holding) -> bytes | None:
        if (copy := self._copies.get(key, time.monotonic())) is not None:
            return copy[0]      # who had the lock before has fetched it
        asked_at, drops = time.monotonic(), self._copies.drops
        value = _bytes(self._ask(holding, b"COPY", key))
        self._copies.keep(key, value, asked_at, drops)
        return value

    def copy(self, key: bytes, asker: str) -> bytes | None:
        """As `get`, of an own key, for another server that may answer with it for `COPY_SECONDS`."""
        with self._key(key, asker) as holding:
            if not holding.is_owned:
                raise NotMine(f"NOTMINE {holding.block} is not {self._name}'s")
            value = self._value(key, holding)
            self._grants.grant(key, asker, time.monotonic())
            return value

    def drop(self, key: bytes) -> None:
        """The owner is about to change a record. Waits for no lock of a key: its owner holds one."""
        self._copies.drop(key)

    def _recall(self, key: bytes) -> None:
        """Returns once nobody answers with a copy. None is granted meanwhile: the key is locked, or not owned."""
        until = self._grants.unknown_until
        for host, granted_until in self._grants.returned(key, time.monotonic()).items():
            try:
                call_peer(Peer(host, int(self._name.rpartition(":")[2])), b"DROP", key,
                          timeout_seconds=COPY_SECONDS, identity=self._identity)
            except (OSError, EOFError, SpeedwellError):
                until = max(until, granted_until)
        if (left := until - time.monotonic()) > 0:
            time.sleep(left)

    def put(self, key: bytes, value: bytes, asker: str = "") -> None:
        """As `get`."""
        with self._key(key, asker) as holding:
            if holding.is_owned:
                self._recall(key)
                self._engine.put(key, value)
                return
        self._ask(holding, b"SET", key, value)

    @contextmanager
    def _key(self, key: bytes, asker: str) -> Iterator[Holding]:
        """Whose a key is, which stays so: it is locked. Nobody may forward meanwhile: the other one can be forwarding
        to us, and both would wait until they give up."""
        with self._key_locks[hash(key) % KEY_LOCKS]:
            holding = self._holding(address_of(key), asker)
            if holding.is_owned or holding.former is None or holding.former.host != asker:
                yield holding
                return
        raise NotMine(f"NOTMINE {holding.block} is not {self._name}'s")

    def _holding(self, address: IPv4Address, asker: str) -> Holding:
        with self._lock:
            if block := block_of(address, self._owned):
                fetching = block_of(address, self._fetching)
                return Holding(block, self._fetching[fetching] if fetching else None, True)
            if block := block_of(address, self._incoming):
                return Holding(block, self._incoming[block], False)
            if block := block_of(address, self._leaving):
                return Holding(block, self._leaving[block], False)
            if block := block_of(address, self._replicated):
                return Holding(block, self._replicated[block], False, True)
            # What others forward goes no further: it could come back here, where its key is locked.
            if asker not in self.members and (block := block_of(address, self._gone)):
                return Holding(block, self._gone[block][0], False)
        raise NotMine(f"NOTMINE {address} is not within the blocks that {self._name} owns")

    def _is_own(self, peer: Peer | None) -> bool:
        return peer is not None and peer.host == self._name.rpartition(":")[0]

    def _ask(self, holding: Holding, *parts: bytes, timeout_seconds: float = TIMEOUT_SECONDS) -> object:
        if holding.former is None or self._is_own(holding.former):
            raise NotMine(f"NOTMINE {holding.block} is on its way to {self._name}")
        try:
            return call_peer(holding.former, *parts, timeout_seconds=timeout_seconds, identity=self._identity)
        except Refused as error:
            raise NotMine(str(error)) from None
        except (OSError, EOFError, SpeedwellError) as error:
            if not holding.is_owned:    # it can have handed the block on and ended: the address leads to who has it
                raise NotMine(f"NOTMINE {holding.block} is {holding.former}'s, which does not answer: "
                              f"{reason(error)}") from None
            raise StorageFailed(f"{holding.former}, who has {holding.block} too, does not answer: "
                                f"{reason(error)}") from None

    # --- moves: the new owner's part ---

    def take(self, block: IPv4Network) -> None:
        """An incoming block is this server's from now on; again, if it comes from itself, because who took it is
        lost. Raises StorageFailed, NotMine: it is not."""
        with self._lock:
            former = self._incoming[block]
            others: Iterable[IPv4Network] = [block]
            for owned in self._owned:
                others = list(without(others, owned))
        if self._is_own(former):
            former = None
        else:
            self._delete_records(others)
            if former is not None:
                self._ask(Holding(block, former, False), b"RELEASE", str(block).encode())
        fetching = {} if former is None else {block: former}
        with self._remembering:
            with self._lock:
                owned_then, fetching_then = [*self._owned, block], self._fetching | fetching
            # A put that is answered before this is written would be lost to a crash.
            self._write(collapse_addresses(owned_then), fetching_then)
            with self._lock:
                self._incoming.pop(block, None)
                self._fetching |= fetching
                self._owned = set(collapse_addresses([*self._owned, block]))

    def _delete_records(self, blocks: Iterable[IPv4Network]) -> None:
        """Those of an earlier time as the owner of these blocks: what the former owner has is newer."""
        for block in blocks:
            for key in self._engine.keys_in(block):
                if key != STATE_KEY:
                    self._engine.delete(key)

    def fetch(self, block: IPv4Network) -> None:
        """Bring what the former owner still has of a block. Raises StorageFailed: try again later."""
        with self._lock:
            former = self._fetching.get(block)
        if former is None:
            return
        holding = Holding(block, former, True)
        while keys := self._ask(holding, b"KEYS", str(block).encode(), b"%d" % KEYS_AT_ONCE,
                                timeout_seconds=KEYS_SECONDS):
            assert isinstance(keys, list)
            for key in keys:
                with self._key_locks[hash(key) % KEY_LOCKS]:
                    if self._engine.get(key) is None:
                        value = _bytes(self._ask(holding, b"FETCH", key))
                        if value is not None:
                            self._engine.put(key, value)
            self._engine.sync()
            for key in keys:
                assert isinstance(key, bytes)
                self._ask(holding, b"FORGET", key)
        with self._lock:
            self._fetching.pop(block, None)
        self._remember()

    # --- moves: the former owner's part ---

    def release(self, block: IPv4Network, peer: str) -> None:
        """The one at `peer` owns a block from now on: no put of it is under way any more. Raises NotMine."""
        with self._lock:
            if block not in self._leaving or self._leaving[block].host != peer:
                raise NotMine(f"NOTMINE {block} of {self._name} is not for {peer} to take")
            self._owned = set(without(self._owned, block))
        self._remember()
        for lock in self._key_locks:
            with lock:
                pass
        for key in self._grants.granted():
            if address_of(key) in block:
                self._recall(key)

    def handed_over(self, peer: str, block: IPv4Network) -> None:
        """Require that `peer` took a block. Raises NotMine."""
        with self._lock:
            is_for_peer = any(block.subnet_of(left) and to.host == peer for left, to in self._leaving.items())
            if not is_for_peer or any(map(block.overlaps, self._owned)):
                raise NotMine(f"NOTMINE {block} was not handed over to {peer}")


def common(blocks: Iterable[IPv4Network], others: Iterable[IPv4Network]) -> Iterator[IPv4Network]:
    """What is in both of two lists of disjoint blocks."""
    allowed = list(others)
    for block in blocks:
        for other in allowed:
            if block.overlaps(other):
                yield max(block, other, key=lambda each: each.prefixlen)


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
