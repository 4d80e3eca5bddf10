"""Keepers of controllers' leases at a real etcd: who leads, and who would take over."""

from pathlib import Path

from speedwell.controller.leadership import now
from speedwell.controller.lease_keeper import LeaseKeeper
from speedwell.fs.etcd_client import EtcdClient
from tests.etcd import EtcdCluster, requires_etcd
from tests.waiting import wait_until

FIRST, SECOND = "https://10.0.0.1:8080", "https://10.0.0.2:8080"


@requires_etcd
def test_the_leader_knows_who_would_take_over_for_as_long_as_that_one_lives(tmp_path: Path) -> None:
    with EtcdCluster(tmp_path) as etcd:
        keepers = {url: LeaseKeeper(EtcdClient(etcd.endpoints), "/speedwell", url) for url in (FIRST, SECOND)}

        def step(*alive: str) -> dict[str, tuple[str, tuple[str, ...]]]:
            """By whom who is known to lead and to stand by."""
            for url in alive:
                keepers[url].tenure.beat(now())
            standings = {url: keepers[url].step() for url in alive}
            return {url: (standing.leader, standing.standbys) for url, standing in standings.items()}

        assert step(FIRST) == {FIRST: (FIRST, ())}
        step(FIRST, SECOND)
        assert step(FIRST, SECOND) == dict.fromkeys((FIRST, SECOND), (FIRST, (SECOND,)))
        wait_until(lambda: step(FIRST) == {FIRST: (FIRST, ())}, 30, "one that is gone is still named")
        step(FIRST, SECOND)
        keepers[FIRST].resign()
        wait_until(lambda: step(SECOND) == {SECOND: (SECOND, ())}, 30, "nobody took over")
