"""For how long a member takes itself for the leader, with an etcd that answers when the test says."""

import time
from types import SimpleNamespace
from typing import Any

import pytest

from speedwell.fs.errors import StorageFailed
from speedwell.fs.nameserver import leadership
from speedwell.fs.proto import etcd_pb2 as pb
from speedwell.fs.store import IDENTITY_KEY, Batch, MemoryStore
from speedwell.fs.store import replicated as implementation
from speedwell.fs.store.replicated import ReplicatedStore
from tests.waiting import wait_until

GRANTED_SECONDS = 2.0


class SlowEtcd:
    """Grants every lease at once, and answers `answer_seconds` later."""

    def __init__(self, clock: list[float], answer_seconds: float) -> None:
        self.endpoints = ("127.0.0.1:2379",)
        self.data: dict[bytes, bytes] = {}
        self.clock = clock
        self.answer_seconds = answer_seconds
        self.lease_ends = 0.0

    def range(self, key: bytes, range_end: bytes, **options: Any) -> pb.RangeResponse:
        found = [pb.KeyValue(key=key, value=self.data[key])] if key in self.data else []
        return pb.RangeResponse(header=pb.ResponseHeader(cluster_id=1, revision=1), kvs=found)

    def grant_lease(self, seconds: int) -> tuple[int, float]:
        self.lease_ends = self.clock[0] + GRANTED_SECONDS
        self.clock[0] += self.answer_seconds
        return 7, GRANTED_SECONDS

    def transaction(self, request: pb.TxnRequest) -> pb.TxnResponse:
        return pb.TxnResponse(header=pb.ResponseHeader(revision=1), succeeded=True)

    def renew_lease(self, lease: int) -> float:
        return 0.0

    def revoke_lease(self, lease: int) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.mark.parametrize("answer_seconds", [0.0, 1.5, 2.5])
def test_who_leads_believes_so_no_longer_than_its_lease_lasts(answer_seconds: float,
                                                              monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(implementation.ReplicatedStore, "_renew", lambda *arguments: None)
    etcd = SlowEtcd(clock, answer_seconds)
    store = ReplicatedStore(etcd, MemoryStore(), "/test", "a")  # type: ignore[arg-type]
    assert store.follow_until_elected()
    assert store._leads_until <= etcd.lease_ends


@pytest.mark.parametrize("there", [None, b"B" * 16])
def test_a_mirror_is_not_replaced_by_another_namespace_or_by_none(there: bytes | None) -> None:
    """A mistyped prefix, or an etcd that was wiped: the mirror may be the last copy."""
    etcd, mirror = SlowEtcd([0.0], 0.0), MemoryStore()
    if there is not None:
        etcd.data[b"/mistyped/data/" + IDENTITY_KEY] = there
    batch = Batch()
    batch.put(b"d" + IDENTITY_KEY, b"A" * 16)
    batch.put(b"s", b"1 1")
    mirror.write(batch)
    store = ReplicatedStore(etcd, mirror, "/mistyped", "a")  # type: ignore[arg-type]
    with pytest.raises(StorageFailed, match=(b"A" * 16).hex() + ".*--etcd-prefix"):
        store._follow()
    assert mirror.get(b"d" + IDENTITY_KEY) == b"A" * 16


def test_who_cannot_lead_for_whatever_reason_resigns_and_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leadership, "PAUSE_AFTER_FAILURE_SECONDS", 0.01)
    store = ReplicatedStore(SlowEtcd([0.0], 0.0), MemoryStore(), "/test", "a")  # type: ignore[arg-type]
    failed: list[bool] = []
    led: list[object] = []

    def make_service() -> Any:
        if not failed:
            failed.append(store.leads)
            raise ValueError("unheard of")
        return "service"

    requests = SimpleNamespace(lead=led.append, stand_by=lambda: None)
    member = leadership.Leadership(store, requests, make_service)  # type: ignore[arg-type]
    member.start()
    try:
        wait_until(lambda: led == ["service"], 10, "it does not lead")
    finally:
        member.stop()
    assert failed == [True]
