"""Queues of links between switches: the controller slices them, and traffic gets its shares."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from speedwell.controller.policy.network.traffic_classes import BEST_EFFORT, MINCOF_QUEUES, SCHEDULED
from speedwell.evaluation.queue_shares import measure, steer, two_leaves
from tests.integration.controller.northbound import Northbound, northbound
from tests.waiting import wait_until

pytestmark = pytest.mark.root

LINK_BPS = 20e6
SETTINGS = 'queues = "mincof"\novsdb_interval_seconds = 1.0\n'
SENDERS = {f"r0h{queue.number}": queue for queue in MINCOF_QUEUES}


@pytest.fixture(scope="module")
def fabric(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Northbound]:
    directory = tmp_path_factory.mktemp("queues")
    description = two_leaves(LINK_BPS)
    with northbound(description, directory, SETTINGS, queues=True) as running:
        running.meet_all_hosts()
        wait_until(lambda: all_sliced(running), 10, "the controller does not slice all ports")
        steer(running.emulation, SENDERS)
        yield running


def all_sliced(fabric: Northbound) -> bool:
    ports = fabric.get("/v1/queues")["ports"]
    return len(ports) == 4 and all(port["problem"] is None for port in ports)


def queue_rates(fabric: Northbound, switch: str) -> list[int]:
    """Guaranteed rates that a switch's own database holds for its queues."""
    listed = fabric.emulation.ovs_vsctl(switch, "--bare", "--columns=other_config", "list", "Queue")
    return sorted(int(word.removeprefix("min-rate=")) for word in listed.split() if word.startswith("min-rate="))


def test_each_class_gets_its_share_against_the_others(fabric: Northbound, tmp_path: Path) -> None:
    """Exact shares: `scripts/bench-queues`. A fabric that tells no classes apart gives each a third."""
    before = sent(fabric)
    measure(fabric.emulation, SENDERS, 6, tmp_path)
    moved = {name: sent(fabric)[name] - before[name] for name in before}
    assert moved["scheduled"] > 1.25 * max(moved["best-effort"], moved["starved"]), moved
    assert moved["starved"] > 0.1 * sum(moved.values()), moved


def test_a_dscp_that_a_program_chooses_leads_into_no_queue(fabric: Northbound) -> None:
    """Open vSwitch by itself would copy its low bits into the label's traffic class."""
    before, count, size = sent(fabric, "leaf1"), 50, 1000
    for dscp in range(1, 8):
        fabric.emulation.run("r1h0", ["ping", "-c", str(count), "-i", "0.002", "-s", str(size), "-Q", str(dscp << 2),
                                      fabric.fabric.host("r0h0").ip])

    def moved() -> dict[str, int]:
        return {name: number - before[name] for name, number in sent(fabric, "leaf1").items()}

    wait_until(lambda: moved()["best-effort"] > 7 * count * size, 20, lambda: str(moved()))
    assert sum(moved().values()) - moved()["best-effort"] < count * size, moved()


def sent(fabric: Northbound, leaf: str = "leaf0") -> dict[str, int]:
    """Bytes that each queue from a leaf to the spine has sent, as the interface tells."""
    def counted() -> dict[str, int]:
        [port] = [port for port in fabric.get("/v1/queues")["ports"]
                  if (port["switch_name"], port["neighbour_name"]) == (leaf, "spine0")]
        bytes_of = {queue["name"]: queue["sent_bytes"] for queue in port["queues"]}
        return {} if None in bytes_of.values() else bytes_of

    return wait_until(counted, 20, "the queues have not been counted")


@pytest.mark.parametrize("host", SENDERS)
def test_alone_each_class_gets_more_than_its_share(fabric: Northbound, tmp_path: Path, host: str) -> None:
    rates = measure(fabric.emulation, [host], 3, tmp_path)
    assert rates[host] > 1.3 * SENDERS[host].share * LINK_BPS


def test_no_entry_of_a_userspace_switch_relies_on_set_queue(fabric: Northbound) -> None:
    for switch in fabric.fabric.switches:
        datapath = fabric.emulation.ovs_vsctl(switch.name, "get", "Bridge", "br0", "datapath_type").strip()
        uses = "set_queue" in fabric.emulation.ovs_ofctl(switch.name, "dump-flows")
        assert uses is (datapath != "netdev"), switch.name


def test_what_somebody_changes_in_a_database_is_put_right(fabric: Northbound) -> None:
    wanted = queue_rates(fabric, "leaf0")
    assert round(SCHEDULED.share * LINK_BPS) in wanted
    record = fabric.emulation.ovs_vsctl("leaf0", "get", "Port", uplink(fabric), "qos").strip()
    queue = fabric.emulation.ovs_vsctl("leaf0", "get", "QoS", record, f"queues:{SCHEDULED.number}").strip()
    fabric.emulation.ovs_vsctl("leaf0", "set", "Queue", queue, "other_config:min-rate=1000")
    wait_until(lambda: queue_rates(fabric, "leaf0") == wanted, 10, "the queues stay as somebody changed them")


def uplink(fabric: Northbound) -> str:
    return f"eth{fabric.fabric.port_toward('leaf0', 'spine0').number}"


def test_classes_are_told_apart_after_a_switch_died(fabric: Northbound, tmp_path: Path) -> None:
    fabric.emulation.kill_switch("leaf0")
    fabric.emulation.start_switch("leaf0")
    fabric.emulation.wait_connected(20)
    wait_until(lambda: all_sliced(fabric), 20, "the controller does not slice all ports again")
    steer(fabric.emulation, SENDERS)
    fabric.meet_all_hosts()
    both = [host for host, queue in SENDERS.items() if queue in (SCHEDULED, BEST_EFFORT)]
    before = sent(fabric)
    measure(fabric.emulation, both, 4, tmp_path)
    moved = {name: sent(fabric)[name] - before[name] for name in before}
    assert moved["scheduled"] > 1.25 * moved["best-effort"] > 1_000_000, moved
