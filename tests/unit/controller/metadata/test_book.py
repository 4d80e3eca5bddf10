"""Who owns which keys, and how blocks come from one server to another."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Iterable

import pytest

from speedwell.controller.metadata.book import (
    MetadataBook,
    MetadataServerRefused,
    Phase,
    Server,
    Transfer,
    UnknownMetadataServer,
)
from speedwell.controller.policy.errors import NoIdleServer, TableFull
from speedwell.controller.policy.metadata.blocks import SPACE, runs, size
from speedwell.controller.policy.network.prefixes import Prefix


class Cluster:
    """A book, and servers that do what it tells them."""

    def __init__(self, check=lambda blocks: None) -> None:
        self.now = 100.0
        self.book = MetadataBook(lambda hosts: {host: (("e" + host[0],), ("a",), ("c",)) for host in hosts}, check,
                                 self.now)
        self.owned: dict[str, set[Prefix]] = {}
        self.silent: set[str] = set()
        self.ids: dict[str, str] = {}
        self._numbers = itertools.count()

    def announce(self, host: str, **said) -> None:
        if host not in self.owned:
            self.owned[host] = set()
            self.ids[host] = f"process {next(self._numbers)}"
        ready = [each.block for each in self.book.transfers if each.target == host]
        self.book.announced(Server(**{
            "host": host, "port": 9000, "id": self.ids.get(host, host), "heard_at": self.now,
            "owned": tuple(self.owned[host]), "ready": tuple(ready)} | said))

    def go_on(self, seconds: float = 20.0) -> None:
        for _ in range(int(seconds / 0.1)):
            self.now += 0.1
            for host in [host for host in self.owned if host not in self.silent]:
                with contextlib.suppress(MetadataServerRefused):    # one that has left
                    self.announce(host)
            self.book.go_on(self.now)
            self.book.synced_version = self.book.version
            for each in self.book.transfers:
                if (each.phase is Phase.TAKING and each.target not in self.silent
                        and not common(each.block, self.owned[each.target])):
                    self.owned[each.target].add(each.block)
            for host in self.owned:
                if self.book.layout is not None and host in self.book.servers:
                    allowed = self.book.may_own(host)
                    self.owned[host] = {part for block in self.owned[host] for part in common(block, allowed)}
        self.assert_whole()

    def assert_whole(self) -> None:
        """Every key is sent to one server, which owns it."""
        blocks = [block for blocks in self.book.blocks.values() for block in blocks]
        assert sum(map(size, blocks)) == size(SPACE)
        assert list(runs(blocks)) == [(SPACE[0], SPACE[0] + size(SPACE))]
        assert not self.book.transfers
        for host, steered in self.book.blocks.items():
            if host not in self.silent:
                assert sum(map(size, self.owned[host])) == sum(map(size, steered)), host


def common(block: Prefix, others: Iterable[Prefix]) -> list[Prefix]:
    found = []
    for other in others:
        low, high = max(block[0], other[0]), min(block[0] + size(block), other[0] + size(other))
        if low < high:
            found.append(max(block, other, key=lambda each: each[1]))
    return found


def settled(*hosts: str) -> Cluster:
    cluster = Cluster()
    for host in hosts:
        cluster.announce(host)
    cluster.go_on()
    return cluster


def test_servers_that_own_nothing_share_all_keys_once_the_controller_has_listened():
    cluster = Cluster()
    for host in ("a1", "a2", "b1"):
        cluster.announce(host)
    cluster.book.go_on(cluster.now + 1)
    assert cluster.book.layout is None and not cluster.book.blocks
    cluster.go_on()
    assert {host for host, blocks in cluster.book.blocks.items() if blocks} == {"a1", "a2", "b1"}


def test_a_controller_without_servers_waits_for_the_first_which_gets_all_keys():
    cluster = Cluster()
    for second in range(60):
        cluster.book.go_on(cluster.now + second)
    cluster.now += 60
    cluster.announce("a1")
    cluster.go_on()
    assert sum(map(size, cluster.book.blocks["a1"])) == size(SPACE)


def test_a_new_controller_takes_over_what_servers_own_and_moves_nothing():
    cluster = settled("a1", "a2", "b1")
    before = dict(cluster.book.blocks)
    again = Cluster()
    again.owned = cluster.owned
    again.now = cluster.now
    for host in again.owned:
        again.announce(host)
    again.book.go_on(again.now)
    assert again.book.layout is not None, "all keys are claimed: there is nothing to wait for"
    assert {host: set(blocks) for host, blocks in again.book.blocks.items()} == {
        host: set(blocks) for host, blocks in before.items()}
    again.book.go_on(again.now)
    assert not again.book.transfers


def test_an_idle_server_that_comes_first_gets_no_keys_that_others_had_until_all_of_these_are_lost():
    cluster = settled("a1", "b1")
    assert cluster.book.members == ["a1", "b1"]
    again = Cluster()
    again.now = cluster.now
    for _ in range(100):
        again.announce("c1", members=("a1", "b1"))
        again.now += 0.1
        again.book.go_on(again.now)
    assert again.book.layout is None and again.book.members == ["a1", "b1"]
    with pytest.raises(UnknownMetadataServer):
        again.book.left("a1", lost=False)
    again.book.left("a1", lost=True)
    again.announce("c1", members=("a1", "b1"))
    again.book.go_on(again.now)
    assert again.book.layout is None and again.book.awaited == {"b1"}
    again.book.left("b1", lost=True)
    again.go_on()
    assert sum(map(size, again.book.blocks["c1"])) == size(SPACE)


def test_keys_that_nobody_owns_are_given_out_once_all_who_had_keys_are_heard_or_lost():
    cluster = settled("a1", "b1", "c1")
    again = Cluster()
    again.now, again.owned = cluster.now, {"a1": cluster.owned["a1"]}
    for _ in range(100):
        again.announce("a1", members=("a1", "b1", "c1"))
        again.now += 0.1
        again.book.go_on(again.now)
        again.book.synced_version = again.book.version
    holes = sum(map(size, again.book.holes))
    assert again.book.layout is not None and holes
    with pytest.raises(UnknownMetadataServer):
        again.book.left("d1", lost=True)
    again.book.left("b1", lost=True)
    assert sum(map(size, again.book.holes)) == holes, "c1 may still come"
    again.book.left("c1", lost=True)
    again.go_on()
    assert sum(map(size, again.book.blocks["a1"])) == size(SPACE)


def test_what_two_servers_claim_is_the_ones_with_the_lower_address():
    cluster = Cluster()
    for host in ("10.0.0.10", "10.0.0.9"):
        cluster.announce(host)
        cluster.owned[host] = {SPACE}
        cluster.announce(host)
    cluster.book.go_on(cluster.now)
    assert cluster.book.blocks == {"10.0.0.9": (SPACE,), "10.0.0.10": ()}


def test_a_server_that_comes_back_late_still_has_its_keys():
    cluster = settled("a1", "a2", "b1")
    kept = cluster.owned.pop("b1")
    again = Cluster()
    again.owned, again.now = cluster.owned, cluster.now
    for _ in range(100):
        again.now += 0.1
        for host in list(again.owned):
            again.announce(host)
        again.book.go_on(again.now)
        again.book.synced_version = again.book.version
    assert again.book.layout is not None and again.book.holes
    again.owned["b1"] = kept
    fetched = next(iter(kept))
    again.announce("b1", fetching={fetched: "a1"})
    assert (fetched, "a1", "b1", Phase.FETCHING) in [(each.block, each.source, each.target, each.phase)
                                                     for each in again.book.transfers]
    again.go_on()
    assert sum(map(size, again.book.blocks["b1"])) > 0


def test_tables_lead_to_the_new_owner_only_once_it_has_routes_and_it_takes_only_once_they_do():
    cluster = settled("a1")
    cluster.announce("a2")
    cluster.book.go_on(cluster.now)
    [transfer, *_] = cluster.book.transfers
    cluster.book.synced_version = cluster.book.version
    cluster.book.go_on(cluster.now)
    assert transfer.phase is Phase.PREPARING and not cluster.book.blocks.get("a2")
    assert transfer.block in cluster.book.senders["a2"]
    cluster.announce("a2")
    cluster.book.go_on(cluster.now)
    assert transfer.phase is Phase.STEERING and cluster.book.blocks["a2"]
    cluster.book.go_on(cluster.now)
    assert transfer.phase is Phase.STEERING, "the switches have not confirmed"
    cluster.book.synced_version = cluster.book.version
    cluster.book.go_on(cluster.now)
    assert transfer.phase is Phase.TAKING
    assert any(common(transfer.block, cluster.book.may_own("a1"))), "the former owner decides until it is taken"


def test_a_silent_server_keeps_its_keys_until_it_is_said_to_be_lost():
    cluster = settled("a1", "a2", "b1")
    before = cluster.book.blocks["b1"]
    cluster.silent.add("b1")
    cluster.go_on()
    assert cluster.book.blocks["b1"] == before
    cluster.book.left("b1", lost=True)
    cluster.owned.pop("b1")
    cluster.go_on()
    assert "b1" not in cluster.book.servers and not cluster.book.blocks.get("b1")


def moving(cluster: Cluster, target: str, phase: Phase) -> list[Transfer]:
    """The transfers to a server that joins, once all are in a phase."""
    fetching: dict[Prefix, str] = {}
    for _ in range(20):
        cluster.announce(target, fetching=fetching)
        cluster.book.go_on(cluster.now)
        coming = [each for each in cluster.book.transfers if each.target == target]
        if all(each.phase is phase for each in coming):
            return coming
        cluster.book.synced_version = cluster.book.version
        for each in coming:
            if each.phase is Phase.TAKING:
                cluster.owned[target].add(each.block)
                fetching[each.block] = each.source or ""
    raise AssertionError(cluster.book.transfers)


@pytest.mark.parametrize("phase", list(Phase))
@pytest.mark.parametrize("others", [("a1",), ("a1", "b1")])
def test_who_loses_a_block_in_transit_does_not_lose_the_records_that_its_source_has(others, phase):
    cluster = settled(*others)
    sources = {each.block: each.source for each in moving(cluster, "a2", phase)}
    assert sources
    cluster.book.left("a2", lost=True)
    cluster.owned.pop("a2")
    for block, source in sources.items():
        kept = [each for each in cluster.book.transfers if common(block, [each.block])]
        assert all(each.source == source for each in kept)
        assert sum(size(each.block) for each in kept) == size(block) * (phase is not Phase.PREPARING)
    cluster.go_on()


def test_a_former_owner_that_is_lost_is_not_waited_for_also_after_a_restart_of_the_controller():
    cluster = settled("a1", "b1")
    fetched = cluster.book.blocks["a1"][0]
    again = Cluster()
    again.owned, again.now = cluster.owned, cluster.now
    again.announce("a1", fetching={fetched: "c1"})
    again.announce("b1")
    again.book.go_on(again.now)
    assert [each.source for each in again.book.transfers] == ["c1"]
    again.book.left("c1", lost=True)
    assert [(each.block, each.source) for each in again.book.transfers] == [(fetched, None)]
    with pytest.raises(UnknownMetadataServer):
        again.book.left("c1", lost=True)


def test_a_block_that_is_to_leave_a_lost_server_goes_to_one_other_only():
    cluster = settled("a1", "b1", "c1")
    moving(cluster, "a2", Phase.PREPARING)
    for host in ("a1", "b1"):
        cluster.book.left(host, lost=True)
        cluster.owned.pop(host)
    blocks = [each.block for each in cluster.book.transfers]
    assert not any(common(one, [other]) for one, other in itertools.combinations(blocks, 2))
    cluster.go_on()


def test_blocks_on_their_way_from_nobody_are_granted_anew_when_their_target_is_lost():
    cluster = settled("a1", "b1", "c1")
    for host in ("c1", "b1"):
        cluster.book.left(host, lost=True)
        cluster.owned.pop(host)
    cluster.go_on()


def test_tables_are_not_planned_anew_for_a_server_that_is_silent_before_its_blocks_come():
    cluster = settled("a1", "b1")
    moving(cluster, "a2", Phase.PREPARING)
    cluster.silent.add("a2")
    cluster.now += 10
    cluster.go_on(1)
    version = cluster.book.version
    cluster.go_on(5)
    assert cluster.book.version == version and not cluster.book.blocks.get("a2")
    cluster.silent.remove("a2")
    cluster.go_on()
    assert cluster.book.blocks["a2"]


@pytest.mark.parametrize("seed", range(5))
def test_after_any_joins_leaves_and_losses_every_key_has_one_owner(seed):
    rng = random.Random(seed)
    cluster = settled("a1", "b1")
    names = [f"{rack}{number}" for rack in "abcd" for number in range(4)]
    for _ in range(12):
        there = sorted(set(cluster.owned) & set(cluster.book.servers))
        if len(there) > 1 and rng.random() < 0.5:
            host = rng.choice(there)
            is_lost = rng.random() < 0.5
            cluster.book.left(host, is_lost)
            if is_lost:
                cluster.owned.pop(host)
        else:
            cluster.announce(rng.choice([name for name in names if name not in there]))
        cluster.go_on(rng.choice((0.0, 20.0)) or 20.0)
        for host in [host for host in cluster.owned if host not in cluster.book.servers]:
            del cluster.owned[host]


def test_what_cannot_be_is_refused_and_changes_nothing():
    def full(blocks):
        if len(blocks) > 2:
            raise TableFull("s1", 99, 9)

    cluster = settled("a1", "a2")
    before = dict(cluster.book.blocks), set(cluster.book.servers)
    with pytest.raises(MetadataServerRefused, match="another metadata server has joined at a1"):
        cluster.announce("a1", id="another")
    with pytest.raises(MetadataServerRefused, match="port 9001 of b1 is not 9000"):
        cluster.announce("b1", port=9001)
    with pytest.raises(UnknownMetadataServer, match="there is no metadata server at b9"):
        cluster.book.left("b9", lost=False)
    cluster.book._check = full
    with pytest.raises(TableFull):
        cluster.announce("b1")
    del cluster.owned["b1"]
    assert (dict(cluster.book.blocks), set(cluster.book.servers)) == before
    lone = settled("a1")
    with pytest.raises(NoIdleServer):
        lone.book.left("a1", lost=False)
    assert not lone.book.servers["a1"].is_leaving
