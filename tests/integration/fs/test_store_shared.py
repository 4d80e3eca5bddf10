"""Owners of one namespace over a real etcd that do not hear each other, or etcd."""

import threading
import time
import uuid
from collections.abc import Callable, Iterator

import pytest

from speedwell.fs.errors import InvalidArgument
from speedwell.fs.etcd_client import EtcdClient
from speedwell.fs.nameserver.namespace import namespace_records as records
from speedwell.fs.store import Batch, MemoryStore
from speedwell.fs.store.shared import SharedStore
from tests.etcd import EtcdCluster, requires_etcd
from tests.waiting import wait_until

pytestmark = requires_etcd
LEASE_SECONDS = 1.0


@pytest.fixture
def owners(etcd: EtcdCluster) -> Iterator[tuple[SharedStore, SharedStore]]:
    """Of blocks 0 to 127, and of the others; whoever is told of a change says nothing."""
    prefix = f"/test/{uuid.uuid4()}"
    stores = [SharedStore(EtcdClient(etcd.endpoints), MemoryStore(), prefix, name) for name in "ab"]
    threads = [threading.Thread(target=store.serve, args=(lambda: None,)) for store in stores]
    for thread, store in zip(threads, stores, strict=True):
        thread.start()
        wait_until(lambda store=store: store.leads, 15, "it does not join")
    wait_until(lambda: [len(store.owners.own_blocks) for store in stores] == [128, 128], 15, "not both own a part")
    first, second = sorted(stores, key=lambda store: min(store.owners.own_blocks))
    yield first, second
    for store in stores:
        store.stop()
    for thread in threads:
        thread.join(10)
    for store in stores:
        store.close()


def seconds_to_change(store: SharedStore, key: bytes, value: bytes) -> float:
    """Until a change counts as written."""
    def change(_: object) -> None:
        batch = Batch()
        batch.put(key, value)
        store.write(batch)

    began = time.monotonic()
    store.decide(None, change, None)
    return time.monotonic() - began


OTHERS = records.inode_key(200 << 56)


def test_an_owner_that_lives_and_says_nothing_holds_another_up_for_the_time_of_a_lease(
        owners: tuple[SharedStore, SharedStore]) -> None:
    first, second = owners
    assert LEASE_SECONDS * 0.9 < seconds_to_change(first, OTHERS, b"new") < LEASE_SECONDS * 20
    assert second.leads and second.decide(200, second.get, OTHERS) == b"new"


def test_an_owner_whose_mirror_stands_still_answers_nothing_once_the_other_goes_on(
        owners: tuple[SharedStore, SharedStore], monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = owners
    released = threading.Event()
    see: Callable[..., None] = second._see
    monkeypatch.setattr(second, "_see", lambda *arguments: (released.wait(20), see(*arguments)))
    try:
        seconds_to_change(first, OTHERS, b"new")
        assert not second.leads
    finally:
        released.set()
    wait_until(lambda: second.leads and first.owners.owns(200) != second.owners.owns(200), 15,
               "it does not come back")
    owner = first if first.owners.owns(200) else second
    assert owner.decide(200, owner.get, OTHERS) == b"new"


def test_a_revision_that_etcd_has_not_come_to_is_refused_at_once(owners: tuple[SharedStore, SharedStore]) -> None:
    began = time.monotonic()
    with pytest.raises(InvalidArgument, match="revision: etcd has come to"):
        owners[0].wait_for_written(1 << 62, 15)
    assert time.monotonic() - began < 7.5, "half of what was asked for"
