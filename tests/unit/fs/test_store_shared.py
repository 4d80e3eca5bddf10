"""One of several owners of a namespace, with an etcd that answers as the test says."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from speedwell.fs.errors import NotLeader
from speedwell.fs.proto import etcd_pb2 as pb
from speedwell.fs.slots import BLOCKS
from speedwell.fs.store import MemoryStore
from speedwell.fs.store.block_map import BlockMap, Owner
from speedwell.fs.store.shared import SharedStore
from tests.waiting import wait_until


class Watching:
    """A watch that etcd ends at once, as it has forgotten what is asked for."""

    def __init__(self) -> None:
        self.cancelled = threading.Event()

    def __iter__(self) -> Iterator[pb.WatchResponse]:
        yield pb.WatchResponse(canceled=True, compact_revision=9)

    def cancel(self) -> None:
        self.cancelled.set()


class Etcd:
    endpoints = ("127.0.0.1:2379",)

    def range(self, key: bytes, range_end: bytes, **options: Any) -> pb.RangeResponse:
        return pb.RangeResponse(header=pb.ResponseHeader(cluster_id=1, revision=1))

    def grant_lease(self, seconds: int) -> tuple[int, float]:
        return 7, 0.8

    def transaction(self, request: pb.TxnRequest) -> pb.TxnResponse:
        return pb.TxnResponse(header=pb.ResponseHeader(revision=1), succeeded=True)

    def watch(self, key: bytes, range_end: bytes, revision: int) -> Watching:
        return Watching()

    def renew_lease(self, lease: int) -> float:
        return 0.8

    def revoke_lease(self, lease: int) -> None:
        pass


class Store(SharedStore):
    """Notes whether it would answer while its mirror is filled; fails `failures` times where nothing should."""

    failures = 0

    def __init__(self) -> None:
        super().__init__(Etcd(), MemoryStore(), "/t", "a")     # type: ignore[arg-type]
        self.answered: list[bool] = []
        self.joined = 0

    def _load(self) -> None:
        if self.joined:
            self.answered.append(self.leads)
        super()._load()

    def _join(self) -> None:
        super()._join()
        self.joined += 1
        if self.failures:
            self.failures -= 1
            raise ValueError("unheard of")


@contextmanager
def serving(store: Store) -> Iterator[None]:
    thread = threading.Thread(target=store.serve, args=(lambda: None,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        store.stop()
        thread.join(10)
        assert not thread.is_alive()


def test_nobody_is_answered_from_a_mirror_that_is_being_filled() -> None:
    store = Store()
    with serving(store):
        wait_until(lambda: len(store.answered) > 1, 10, "it does not load")
    assert not any(store.answered)


def test_nothing_is_answered_from_an_etcd_that_has_lost_what_it_had() -> None:
    store = Store()
    with serving(store):
        wait_until(lambda: store.joined > 1, 10, "it does not join")
    store._stopped.clear()
    store._leads_until = float("inf")
    store.owners._map = BlockMap((Owner("another", "b"),) * BLOCKS)
    assert store.get(b"i" + bytes(8)) is None
    store._others.forget()
    store._turn_revision += 1
    with pytest.raises(NotLeader):
        store.get(b"i" + bytes(8))


def test_a_failure_that_nobody_thought_of_gives_the_blocks_up_and_joins_again() -> None:
    store = Store()
    store.failures = 2
    with serving(store):
        wait_until(lambda: store.joined > 3, 10, "it does not join again")
