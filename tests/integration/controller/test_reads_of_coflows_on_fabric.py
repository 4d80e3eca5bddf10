"""A transfer that is a read and a coflow's flow, on real switches: one entry, and everybody sees what it moves."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import pytest

from speedwell.coflow.report import Flow
from speedwell.coflow.reporter import Reporter
from speedwell.coflow.settings import scheduler
from speedwell.topo.fabric import spine_leaf
from tests.integration.controller.northbound import MACHINE, REPLICA_PORT, northbound
from tests.integration.controller.test_coflows_on_fabric import Transfers
from tests.waiting import wait_until

pytestmark = pytest.mark.root

LINK_BPS = 20e6
SIZE_BYTES, CLIENT_PORT = 20_000_000, 40000
IDLE_SECONDS = 3
SETTINGS = f"""
queues = "mincof"
coflow_host = "{MACHINE}"
coflow_lifetime_seconds = 3
probe_interval_seconds = 0.4
read_idle_timeout_seconds = {IDLE_SECONDS}
poll_interval_seconds = 0.5
"""


@pytest.fixture(scope="module")
def fabric(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Transfers]:
    directory = tmp_path_factory.mktemp("reads-of-coflows")
    (directory / "key").write_bytes(b"a key of good length")
    description = spine_leaf(leaves=2, spines=2, hosts_per_leaf=1, host_bps=LINK_BPS, oversubscription=1)
    settings = SETTINGS + f'coflow_key_file = "{directory / "key"}"\n'
    with northbound(description, directory, settings, Transfers, queues=True) as running:
        running.key_file, running.sending = directory / "key", []
        running.meet_all_hosts()
        yield running


def counted_bytes(fabric: Transfers) -> int:
    """What the one entry of the transfer has counted, by the switch's own word, headers included."""
    [entry] = [line for line in fabric.entries() if f"tp_dst={CLIENT_PORT}" in line]
    found = re.search(r"n_bytes=(\d+)", entry)
    assert found is not None, entry
    return int(found[1])


def test_a_read_that_is_a_coflow_is_counted_for_both_and_never_taken_for_an_idle_one(fabric: Transfers) -> None:
    body = fabric.body("r1h0", "r0h0", port=CLIENT_PORT, size_bytes=SIZE_BYTES)
    read = fabric.ask("POST", "/v1/reads", body).json()
    stream = fabric.stream("r0h0", "r1h0", CLIENT_PORT, SIZE_BYTES)
    flow = Flow(fabric.ip("r0h0"), fabric.ip("r1h0"), REPLICA_PORT, CLIENT_PORT)
    seen: list[tuple[float, int, dict[str, Any], dict[str, Any]]] = []
    with Reporter(scheduler(MACHINE, fabric.key_file)) as reporter:
        [progress] = reporter.add([(flow, SIZE_BYTES)])
        told = 0
        while not stream.ended():
            time.sleep(0.5)
            state = fabric.ask("GET", f"/v1/reads/{read['id']}")
            assert state.status_code == 200, f"the read has ended while its bytes move: {state.text}"
            [part] = state.json()["parts"]
            members = [member for coflow in fabric.coflows() for member in coflow["members"]]
            if stream.ended():
                break
            if members:
                seen.append((time.monotonic(), counted_bytes(fabric), part, members[0]))
            progress.moved(part["transferred_bytes"] - told)
            told = part["transferred_bytes"]
        duration_seconds = seen[-1][0] - seen[0][0]
        assert duration_seconds > 1.5 * IDLE_SECONDS, "it ran too short to idle out"
        assert any(member["state"] == "placed" and member["rate_bps"] for *_, member in seen)
        assert all(part["transferred_bytes"] <= 1.1 * counted for _, counted, part, _ in seen)
        assert len({part["transferred_bytes"] for *_, part, _ in seen}) > 5, "it grows"
        assert sum(bool(part["measured_bps"]) for *_, part, _ in seen) > 5

        def all_is_counted() -> bool:
            [part] = fabric.get(f"/v1/reads/{read['id']}")["parts"]
            [member] = [member for coflow in fabric.coflows() for member in coflow["members"]]
            return (part["transferred_bytes"] == pytest.approx(counted_bytes(fabric), rel=0.1)
                    and part["transferred_bytes"] == pytest.approx(SIZE_BYTES, rel=0.1)
                    and member["measured_bytes"] == pytest.approx(SIZE_BYTES, rel=0.15))

        wait_until(all_is_counted, 10, "the counts are not those of the transfer")
    fabric.end(read)
    fabric.wait_until_empty()
