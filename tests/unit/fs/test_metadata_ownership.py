"""Metadata servers without a network between them: whose records are whose while blocks come and go."""

from __future__ import annotations

import contextlib
import hashlib
import socket
import threading
import time
from collections.abc import Iterator
from ipaddress import IPv4Network
from pathlib import Path
from types import SimpleNamespace

import pytest

from speedwell.fs.errors import ProtocolError, SpeedwellError
from speedwell.fs.metadata_store import wire
from speedwell.fs.metadata_store.addresses import PREFIX, address_of
from speedwell.fs.metadata_store.engines import STATE_KEY, LevelDBEngine
from speedwell.fs.metadata_store.ownership import NotMine, Ownership
from speedwell.fs.metadata_store.peers import TIMEOUT_SECONDS, Peer, call_peer
from speedwell.fs.metadata_store.server import COMMANDS, MetadataServer
from speedwell.fs.metadata_store.wire import Refused
from tests.waiting import wait_until

FORMER, NEW = "127.0.0.2", "127.0.0.1"
"""The new owner asks from 127.0.0.1, as all connections on the loopback do."""
LOW, HIGH = PREFIX.subnets()
KEYS = [b"key %d" % number for number in range(60)]
IN_LOW = [key for key in KEYS if address_of(key) in LOW]


class Node:
    def __init__(self, host: str, directory: Path, *blocks: IPv4Network, port: int = 0) -> None:
        self.engine = LevelDBEngine(directory, sync=False)
        self.ownership = Ownership(self.engine, f"{host}:{port}")
        self.ownership.set_owned(blocks)
        self.server = MetadataServer((host, port), self.engine, self.ownership)
        self.peer = Peer(host, self.server.server_address[1])
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.engine.close()


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[tuple[Node, Node]]:
    """One with all keys, and one with none."""
    with contextlib.ExitStack() as stack:
        former, new = Node(FORMER, tmp_path / "former", PREFIX), Node(NEW, tmp_path / "new")
        stack.callback(former.close)
        stack.callback(new.close)
        yield former, new


def order(former: Node, new: Node, block: IPv4Network) -> None:
    """A block is to move."""
    former.ownership.set_moves({}, {block: new.peer})
    new.ownership.set_moves({block: former.peer}, {})


def test_the_key_of_a_request_is_hashed_once(nodes, monkeypatch):
    former, _ = nodes
    hashed = []
    monkeypatch.setattr("speedwell.fs.metadata_store.addresses.hashlib", SimpleNamespace(
        sha256=lambda key: (hashed.append(bytes(key)), hashlib.sha256(key))[1]))
    assert call_peer(former.peer, b"SET", b"k", b"v", timeout_seconds=10) == b"OK"
    assert call_peer(former.peer, b"GET", b"k", timeout_seconds=10) == b"v"
    assert hashed == [b"k", b"k"]


def test_a_block_comes_with_its_records(nodes):
    former, new = nodes
    for key in KEYS:
        former.ownership.put(key, b"of " + key)
    order(former, new, LOW)
    new.ownership.take(LOW)
    new.ownership.fetch(LOW)
    assert [new.engine.get(key) for key in IN_LOW] == [b"of " + key for key in IN_LOW]
    assert new.ownership.owned == [LOW] and former.ownership.owned == [HIGH]
    assert not list(former.engine.keys_in(LOW))


def test_who_forwards_to_an_owner_that_is_gone_says_that_the_key_is_elsewhere(nodes):
    former, _ = nodes
    with socket.create_server((NEW, 0)) as closed:
        gone = Peer(NEW, closed.getsockname()[1])
    former.ownership.set_moves({}, {LOW: gone})
    former.ownership.release(LOW, NEW)
    former.ownership.set_moves({}, {})
    for ask in (lambda: former.ownership.get(IN_LOW[0]), lambda: former.ownership.put(IN_LOW[0], b"1")):
        with pytest.raises(NotMine, match=f"NOTMINE {LOW} is {gone}'s, which does not answer: Connection refused"):
            ask()


def test_who_gets_a_block_back_from_a_lost_server_still_has_what_was_not_fetched(nodes):
    former, new = nodes
    former.ownership.put(IN_LOW[0], b"kept")
    order(former, new, LOW)
    new.ownership.take(LOW)
    former.ownership.set_moves({LOW: former.peer}, {LOW: former.peer})
    with pytest.raises(NotMine):
        former.ownership.get(IN_LOW[0])
    former.ownership.take(LOW)
    assert former.ownership.get(IN_LOW[0]) == b"kept"
    assert not former.ownership.fetching


def test_what_a_lost_server_still_had_is_not_waited_for(nodes):
    former, new = nodes
    former.ownership.put(IN_LOW[0], b"lost")
    order(former, new, LOW)
    new.ownership.take(LOW)
    former.close()
    with pytest.raises(SpeedwellError):
        new.ownership.get(IN_LOW[0])
    new.ownership.set_moves({LOW: None}, {})
    assert new.ownership.get(IN_LOW[0]) is None
    assert not new.ownership.fetching and new.ownership.recall() == ([LOW], {})
    new.ownership.fetch(LOW)


def test_what_is_given_up_is_not_fetched_any_more(nodes):
    former, new = nodes
    order(former, new, LOW)
    new.ownership.take(LOW)
    quarter = next(LOW.subnets())
    new.ownership.restrict([quarter])
    assert new.ownership.recall() == ([quarter], {quarter: former.peer})


def test_records_of_an_earlier_time_do_not_come_back_with_a_block(nodes):
    former, new = nodes
    old, changed = IN_LOW[:2]
    for key in (old, changed, STATE_KEY):
        new.engine.put(key, b"{}")
    former.ownership.put(changed, b"newer")
    order(former, new, LOW)
    new.ownership.take(LOW)
    assert (new.ownership.get(old), new.ownership.get(changed)) == (None, b"newer")
    for key in (old, STATE_KEY):
        former.engine.put(key, b"{}")
    former.ownership.set_moves({LOW: None}, {})
    former.ownership.take(LOW)
    assert former.ownership.get(old) is None
    assert [each.recall()[0] for each in (former.ownership, new.ownership)] == [[PREFIX], [LOW]]


def test_a_server_that_took_a_block_and_starts_again_keeps_what_was_put_since(nodes):
    former, new = nodes
    former.ownership.put(IN_LOW[0], b"older")
    order(former, new, LOW)
    new.ownership.take(LOW)
    new.ownership.put(IN_LOW[0], b"newer")
    again = Ownership(new.engine, f"{NEW}:0")
    again.set_owned(*again.recall())
    again.set_moves({LOW: former.peer}, {})
    assert not again.incoming and again.get(IN_LOW[0]) == b"newer"


def test_a_block_is_remembered_before_it_takes_puts(nodes, monkeypatch):
    former, new = nodes
    put, owned = new.engine.put, []
    monkeypatch.setattr(new.engine, "put", lambda *record: (owned.append(new.ownership.owned), put(*record)))
    order(former, new, LOW)
    new.ownership.take(LOW)
    assert owned == [[]] and new.ownership.recall()[0] == [LOW]


def test_what_changes_while_it_is_written_is_written_last(nodes, monkeypatch):
    former, _ = nodes
    put, came = former.engine.put, threading.Semaphore(0)

    def write(key: bytes, value: bytes) -> None:
        came.release()
        is_first = b"100.64.0.0/11" in value
        if is_first:
            came.acquire()
            came.acquire(timeout=0.3)
        put(key, value)

    monkeypatch.setattr(former.engine, "put", write)
    threads = []
    for block in (LOW, next(LOW.subnets())):
        threads.append(threading.Thread(target=former.ownership.restrict, args=([block],)))
        threads[-1].start()
        wait_until(lambda: former.ownership.owned == [block], 10, "nothing is given up")    # noqa: B023
    for thread in threads:
        thread.join()
    assert former.ownership.recall()[0] == former.ownership.owned


def test_keys_are_listed_to_who_took_their_block_only_and_a_few_at_once(nodes):
    former, new = nodes
    former.ownership.put(IN_LOW[0], b"value")
    listed = [b"KEYS", str(LOW).encode(), b"500"]
    with pytest.raises(Refused, match="NOTMINE"):
        call_peer(former.peer, *listed)
    order(former, new, LOW)
    with pytest.raises(Refused, match="NOTMINE"):
        call_peer(former.peer, *listed)
    new.ownership.take(LOW)
    assert call_peer(former.peer, *listed) == [IN_LOW[0]]
    for block, most, problem in ((PREFIX, b"500", "NOTMINE"), (LOW, b"501", "no number up to 500")):
        with pytest.raises(Refused, match=problem):
            call_peer(former.peer, b"KEYS", str(block).encode(), most)


def test_the_former_owner_forgets_only_what_is_on_the_new_owners_disk(nodes, monkeypatch):
    former, new = nodes
    for key in KEYS:
        former.ownership.put(key, b"value")
    sync, still_there = new.engine.sync, []
    count = lambda: still_there.append(len(list(former.engine.keys_in(LOW))))    # noqa: E731
    monkeypatch.setattr(new.engine, "sync", lambda: (count(), sync()))
    monkeypatch.setattr("speedwell.fs.metadata_store.ownership.KEYS_AT_ONCE", 20)
    order(former, new, LOW)
    new.ownership.take(LOW)
    new.ownership.fetch(LOW)
    assert still_there == list(range(len(IN_LOW), 0, -20))


def test_who_may_have_records_is_remembered(nodes):
    former, _ = nodes
    former.ownership.set_members(["10.0.0.1", "10.0.0.2"])
    again = Ownership(former.engine, f"{FORMER}:0")
    assert again.recall() == ([PREFIX], {}) and again.members == {"10.0.0.1", "10.0.0.2"}


def test_a_server_that_speaks_another_version_of_the_commands_is_left_with_a_word_on_what_to_upgrade(
        nodes: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch) -> None:
    assert call_peer(nodes[0].peer, b"VERSION", b"1") == b"OK"
    with pytest.raises(Refused, match="VERSION 1 is spoken here: upgrade the client"):
        call_peer(nodes[0].peer, b"VERSION", b"0")
    for number in (b"-1", b"9" * 5000):
        with pytest.raises(Refused, match=r"VERSION: .* is no number"):
            call_peer(nodes[0].peer, b"VERSION", number)
    monkeypatch.setattr(wire, "VERSION", 2)
    with pytest.raises(ProtocolError, match=r"we speak version 2 .* VERSION 1 is spoken here: upgrade this server"):
        call_peer(nodes[1].peer, b"PING")
    monkeypatch.delitem(COMMANDS, b"VERSION")       # as a server of before the first version had it
    assert call_peer(nodes[1].peer, b"PING") == b"PONG"


def test_two_that_forward_to_each_other_while_a_block_changes_hands_do_not_wait_for_each_other(nodes):
    former, new = nodes
    order(former, new, LOW)
    former.ownership.release(LOW, NEW)      # and the new one has not heard the answer yet
    slowest = []

    def ask(node: Node) -> None:
        for _ in range(100):
            began = time.monotonic()
            with contextlib.suppress(NotMine):
                node.ownership.get(IN_LOW[0])
            slowest.append(time.monotonic() - began)

    threads = [threading.Thread(target=ask, args=(node,)) for node in nodes for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(slowest) < TIMEOUT_SECONDS
