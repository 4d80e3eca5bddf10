"""Which dataservers are known, and which are alive; time is passed in."""

import pytest

from speedwell.fs.errors import AlreadyExists, StorageFailed
from speedwell.fs.nameserver.replicas.registry import FIRST_CONTACT_SECONDS, LEASE_SECONDS, Registry
from speedwell.fs.store import Batch, MemoryStore


def beat(registry: Registry, dataserver_id: str, now: float, *, port: int = 7000, available: int = 100) -> int:
    return registry.heartbeat(dataserver_id, f"host-{dataserver_id}", port, "r0", "p0", capacity_bytes=1000,
                              available_bytes=available, now_seconds=now).number


def order(registry: Registry, numbers: list[int], now: float) -> list[tuple[int, bool]]:
    return [(server.number, alive) for server, alive in registry.with_state(numbers, now)]


def test_a_dataserver_is_dead_after_three_seconds_of_silence() -> None:
    registry = Registry(MemoryStore(), now_seconds=0)
    number = beat(registry, "a", 10)
    assert registry.is_alive(number, 10 + LEASE_SECONDS)
    assert not registry.is_alive(number, 10 + LEASE_SECONDS + 0.01)
    beat(registry, "a", 20)
    assert registry.is_alive(number, 20)


def test_replicas_keep_their_order_and_say_whether_they_are_alive() -> None:
    registry = Registry(MemoryStore(), now_seconds=0)
    a, b, c = beat(registry, "a", 0), beat(registry, "b", 0), beat(registry, "c", 0)
    assert order(registry, [c, a, b], 1) == [(c, True), (a, True), (b, True)]
    beat(registry, "a", 5)
    beat(registry, "b", 5)
    assert order(registry, [c, b, a], 5) == [(c, False), (b, True), (a, True)]


def test_only_live_dataservers_with_space_are_candidates() -> None:
    registry = Registry(MemoryStore(), now_seconds=0)
    beat(registry, "dead", 0)
    beat(registry, "full", 9, available=0)
    good = beat(registry, "good", 9)
    assert [candidate.number for candidate in registry.candidates(10)] == [good]


def test_dataservers_keep_their_numbers_over_a_restart_and_a_change_of_address() -> None:
    store = MemoryStore()
    registry = Registry(store, now_seconds=0)
    a, b = beat(registry, "a", 0), beat(registry, "b", 0)
    again = Registry(store, now_seconds=100)
    assert beat(again, "b", 100, port=7001) == b
    assert beat(again, "c", 100) not in (a, b)
    assert [(server.dataserver_id, server.port) for server, _ in Registry(store, now_seconds=0).statuses()] == [
        ("a", 7000), ("b", 7001), ("c", 7000)]


def test_after_a_restart_dataservers_have_time_to_report() -> None:
    store = MemoryStore()
    number = beat(Registry(store, now_seconds=0), "a", 0)
    again = Registry(store, now_seconds=100)
    assert [candidate.number for candidate in again.candidates(101)] == [number]
    assert [each.number for each in again.candidates(100 + FIRST_CONTACT_SECONDS)] == [number]
    assert again.candidates(100 + FIRST_CONTACT_SECONDS + 0.1) == []


def test_once_one_has_reported_after_a_restart_the_silent_ones_count_as_dead() -> None:
    store = MemoryStore()
    registry = Registry(store, now_seconds=0)
    heard, silent = beat(registry, "a", 0), beat(registry, "b", 0)
    again = Registry(store, now_seconds=100)
    beat(again, "a", 100 + LEASE_SECONDS)
    assert not again.is_alive(silent, 100 + LEASE_SECONDS + 0.1)
    assert again.is_alive(heard, 100 + LEASE_SECONDS + 0.1)


def test_a_second_dataserver_with_the_id_of_a_live_one_is_refused() -> None:
    registry = Registry(MemoryStore(), now_seconds=0)
    beat(registry, "a", 0)
    with pytest.raises(AlreadyExists, match=r"server.dataserver_id: 'a' is taken .* host-a:7000"):
        beat(registry, "a", 1, port=9999)
    assert beat(registry, "a", 1 + LEASE_SECONDS, port=9999) == 0


def test_a_dataserver_without_heartbeats_has_no_replica_of_unknown_number() -> None:
    registry = Registry(MemoryStore(), now_seconds=0)
    assert order(registry, [42], 0) == []
    assert not registry.is_alive(42, 0)


def test_a_damaged_record_is_refused_with_a_message() -> None:
    store, batch = MemoryStore(), Batch()
    batch.put(b"sbad", b"{}")
    store.write(batch)
    with pytest.raises(StorageFailed, match="damaged"):
        Registry(store, now_seconds=0)


def test_a_disk_that_several_dataservers_share_counts_once() -> None:
    registry = Registry(MemoryStore(), now_seconds=0)
    for dataserver_id, disk, now in (("a", "m:1", 9), ("b", "m:1", 9), ("c", "m:2", 9), ("unknown", "", 9),
                                     ("other unknown", "", 9), ("dead", "m:3", 0)):
        registry.heartbeat(dataserver_id, dataserver_id, 7000, "r0", "p0", capacity_bytes=1000, available_bytes=100,
                           disk=disk, now_seconds=now)
    assert registry.capacity(9) == (4000, 400)
