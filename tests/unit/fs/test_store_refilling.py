"""What etcd gets back of a namespace that it lost."""

import threading
from typing import Any

import pytest

from speedwell.fs.errors import StorageFailed
from speedwell.fs.nameserver.namespace import namespace_records as records
from speedwell.fs.nameserver.namespace.namespace_records import Superblock
from speedwell.fs.proto import etcd_pb2 as pb
from speedwell.fs.store import IDENTITY_KEY, Batch, MemoryStore
from speedwell.fs.store import refilling as implementation
from speedwell.fs.store.block_map import BlockMap, Owner
from speedwell.fs.store.refilling import SKIPPED_INODES, Mirror, Refilling
from speedwell.fs.store.shared import SharedStore

OWN = Mirror(40, 7, b"n" * 16)


class Etcd:
    """Keeps what is put, in the order in which it was, and compares nothing; `others` would do it, too."""

    endpoints = ("127.0.0.1:2379",)

    def __init__(self, *others: Mirror) -> None:
        self.revision = 50
        self.data = {b"/t/refill/other%d" % number: other.encode() for number, other in enumerate(others)}

    def range(self, key: bytes, range_end: bytes, **options: Any) -> pb.RangeResponse:
        found = [each for each in sorted(self.data) if each == key or key <= each < range_end]
        return pb.RangeResponse(header=pb.ResponseHeader(cluster_id=8, revision=self.revision),
                                kvs=[pb.KeyValue(key=each, value=self.data[each]) for each in found])

    def transaction(self, request: pb.TxnRequest) -> pb.TxnResponse:
        self.revision += 1
        for each in request.success:
            if each.HasField("request_put"):
                self.data[each.request_put.key] = each.request_put.value
        return pb.TxnResponse(header=pb.ResponseHeader(revision=self.revision), succeeded=True)

    def grant_lease(self, seconds: int) -> tuple[int, float]:
        return 7, 5.0

    def renew_lease(self, lease: int) -> float:
        return 5.0

    def revoke_lease(self, lease: int) -> None:
        pass


def refill(etcd: Etcd, pairs: list[tuple[bytes, bytes]], monkeypatch: pytest.MonkeyPatch,
           stopped: threading.Event | None = None) -> list[tuple[bytes, bytes]]:
    """The records that etcd has then, in the order in which it got them."""
    monkeypatch.setattr(implementation, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(implementation, "POLL_SECONDS", 0.001)
    Refilling(etcd, b"/t/", b"/t/data/", "a:1", stopped or threading.Event()).refill(    # type: ignore[arg-type]
        OWN, pairs, 256)
    return [(key[8:], value) for key, value in etcd.data.items() if key.startswith(b"/t/data/")]


def test_the_identity_comes_last_and_no_number_is_given_out_again(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {records.superblock_key(0): Superblock(12, 3, 4).encode(),
             records.superblock_key(9): Superblock(5, -1, 2, 9).encode(), b"i1": b"root", IDENTITY_KEY: b"n" * 16}
    found = refill(Etcd(), list(given.items()), monkeypatch)
    assert found[-1] == (IDENTITY_KEY, b"n" * 16)
    assert dict(found)[b"i1"] == b"root" and len(found) == 256 + 2
    assert Superblock.decode(dict(found)[records.superblock_key(0)]) == Superblock(12 + SKIPPED_INODES, 3, 4)
    assert Superblock.decode(dict(found)[records.superblock_key(9)], 9) == Superblock(5 + SKIPPED_INODES, -1, 2, 9)
    assert Superblock.decode(dict(found)[records.superblock_key(200)], 200) == Superblock(
        1 + SKIPPED_INODES, 0, 0, 200)


@pytest.mark.parametrize("other, why", [
    (Mirror(90, 7, b"o" * 16), "another that would fill etcd " + (b"o" * 16).hex()),
    (Mirror(30, 6, b"n" * 16), "first start the one that served last"),
])
def test_mirrors_that_cannot_be_compared_are_refused(other: Mirror, why: str,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    etcd = Etcd(other)
    with pytest.raises(StorageFailed, match=why):
        refill(etcd, [(b"i1", b"root")], monkeypatch)
    assert not any(key.startswith(b"/t/data/") for key in etcd.data)


def test_who_is_behind_waits_for_the_one_that_is_further(monkeypatch: pytest.MonkeyPatch) -> None:
    etcd = Etcd(Mirror(41, 7, b"n" * 16))

    def other_does_it() -> None:
        etcd.data[b"/t/data/" + IDENTITY_KEY] = b"n" * 16

    timer = threading.Timer(0.1, other_does_it)
    timer.start()
    assert refill(etcd, [(b"i1", b"root")], monkeypatch) == [(IDENTITY_KEY, b"n" * 16)]


def test_a_change_across_owners_is_whole_in_the_mirror_of_the_one_that_made_it() -> None:
    """Whatever it has seen of etcd since: its own records are in its mirror at once."""
    mirror = MemoryStore()
    store = SharedStore(Etcd(), mirror, "/t", "a")     # type: ignore[arg-type]
    own, another = Owner(store.owners.member, "a"), Owner("b", "b")
    store.owners._map = BlockMap((own,) * 128 + (another,) * 128)
    store._leads_until = float("inf")
    here, there = (records.inode_key(block << 56 | 5) for block in (3, 200))
    batch = Batch()
    batch.put(here, b"here")
    batch.put(there, b"there")
    store.write(batch)
    assert dict(store._newest()) == {here: b"here", there: b"there"}
    again = SharedStore(Etcd(), mirror, "/t", "a")     # type: ignore[arg-type]
    assert dict(again._newest()) == {here: b"here", there: b"there"}
    later = pb.Event(kv=pb.KeyValue(key=b"/t/data/" + there, value=b"there", mod_revision=51))
    store._see(51, [later], lambda: None)
    assert [key for key, _ in mirror.iterate(b"a", b"b")] == []
    assert dict(store._newest()) == {here: b"here", there: b"there"}
