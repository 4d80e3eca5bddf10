"""Keys that are read very often: replicas answer with copies, and nobody ever sees an older record than before."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speedwell.fs.metadata_store.addresses import PREFIX, address_of
from speedwell.fs.metadata_store.hot_keys import COPY_SECONDS, Reads
from speedwell.fs.metadata_store.ownership import NotMine, Ownership
from speedwell.fs.metadata_store.peers import Peer, call_peer
from speedwell.fs.metadata_store.wire import Refused
from tests.etcd import free_ports
from tests.unit.fs.test_metadata_ownership import FORMER, IN_LOW, LOW, NEW, Node

HOT = IN_LOW[0]


@pytest.fixture
def replica(tmp_path: Path) -> Iterator[tuple[Node, Node]]:
    """One that owns all, and its replica for one key. They listen at the same port, as all metadata servers do."""
    port, = free_ports(1)
    with contextlib.ExitStack() as stack:
        owner = Node(FORMER, tmp_path / "owner", PREFIX, port=port)
        stack.callback(owner.close)
        replica = Node(NEW, tmp_path / "replica", port=port)
        stack.callback(replica.close)
        owner.ownership.set_members([NEW, FORMER])
        replica.ownership.set_hot({address_of(HOT): owner.peer}, [])
        yield owner, replica


def test_a_replica_answers_reads_itself_and_no_read_after_a_change_sees_what_was_before(replica):
    owner, new = replica
    owner.ownership.put(HOT, b"first")
    assert new.ownership.get(HOT) == b"first"
    owner.engine.put(HOT, b"by the back door")
    assert new.ownership.get(HOT) == b"first"
    owner.ownership.put(HOT, b"second")
    assert new.ownership.get(HOT) == b"second"
    new.ownership.put(HOT, b"third")
    assert owner.ownership.get(HOT) == new.ownership.get(HOT) == b"third"
    assert new.engine.get(HOT) is None


def test_a_key_that_is_not_there_is_none_at_a_replica_until_somebody_puts_it(replica):
    owner, new = replica
    assert new.ownership.get(HOT) is None
    owner.ownership.put(HOT, b"there")
    assert new.ownership.get(HOT) == b"there"


def test_a_change_waits_for_a_replica_that_does_not_answer_until_its_copy_has_run_out(replica):
    owner, new = replica
    owner.ownership.put(HOT, b"first")
    assert new.ownership.get(HOT) == b"first"
    granted_at = time.monotonic()
    new.server.shutdown()
    new.server.server_close()
    owner.ownership.put(HOT, b"second")
    assert time.monotonic() - granted_at >= COPY_SECONDS - 0.1
    assert new.ownership.get(HOT) == b"second"


def test_a_block_goes_to_its_next_owner_only_without_copies(replica):
    owner, new = replica
    owner.ownership.put(HOT, b"first")
    assert new.ownership.get(HOT) == b"first"
    owner.ownership.set_moves({}, {LOW: Peer("127.0.0.9", 1)})
    owner.ownership.release(LOW, "127.0.0.9")
    with pytest.raises(NotMine):
        new.ownership.get(HOT)


def test_who_owned_keys_before_a_restart_changes_none_until_copies_of_then_have_run_out(replica):
    owner, _ = replica
    again = Ownership(owner.engine, owner.ownership._name)
    began = time.monotonic()
    again.set_owned(*again.recall())
    again.put(HOT, b"second")
    assert time.monotonic() - began >= COPY_SECONDS - 0.01


def test_reads_and_changes_at_owner_and_replicas_in_any_order_look_like_one_record(replica):
    owner, new = replica
    put, problems, ended = [0], [], threading.Event()

    def read(node: Node) -> None:
        last = 0
        while not ended.is_set():
            least = put[0]
            found = int(node.ownership.get(HOT) or b"0")
            if found < max(least, last):
                problems.append((node.peer, found, least, last))
            last = found

    readers = [threading.Thread(target=read, args=(node,)) for node in (new, new, owner)]
    for reader in readers:
        reader.start()
    for number in range(1, 100):
        (owner, new)[number % 2].ownership.put(HOT, b"%d" % number)
        put[0] = number
    ended.set()
    for reader in readers:
        reader.join()
    assert not problems


def test_an_owner_sends_reads_of_a_spread_key_to_its_own_address_and_takes_changes_anywhere(replica):
    owner, _ = replica
    owner.ownership.set_members([])      # who asks is a client
    owner.ownership.put(HOT, b"here")
    owner.ownership.set_hot({}, [address_of(HOT)])
    with pytest.raises(Refused, match=r"NOTMINE HOT .* has replicas: ask at its own address"):
        call_peer(owner.peer, b"GET", HOT)
    assert call_peer(owner.peer, b"SET", HOT, b"there") == b"OK"
    assert call_peer(owner.peer, b"GET", next(key for key in IN_LOW if key != HOT)) is None


@given(st.lists(st.integers(0, 40), max_size=2000), st.integers(1, 10))
def test_counted_reads_are_never_too_many_and_miss_few(addresses, most):
    reads = Reads(most)
    for address in addresses:
        reads.note(address)
    total, found = reads.take()
    assert total == len(addresses)
    for address, count in Counter(addresses).items():
        assert count - total / (most + 1) <= found.get(address, 0) <= count
    assert reads.take() == (0, {})
