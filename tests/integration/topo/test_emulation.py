"""A small fabric on this machine: what its hosts and switches are and do, without any controller."""

import csv
import json
import re
import statistics
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from speedwell.topo.emulation import Emulation, EmulationError
from speedwell.topo.fabric import Fabric, UnknownNode, spine_leaf
from tests.integration.topo import labelled_paths
from tests.waiting import wait_until

pytestmark = pytest.mark.root

HOST_BPS = 80_000_000
UPLINK_BPS = 20_000_000
MTU = 9000
IP_AND_ICMP_HEADER_BYTES = 28


@pytest.fixture(scope="module")
def fabric() -> Fabric:
    return spine_leaf(leaves=2, spines=2, hosts_per_leaf=2, host_bps=HOST_BPS, oversubscription=4)


@pytest.fixture(scope="module")
def emulation(fabric: Fabric, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulation]:
    with Emulation(fabric, directory=tmp_path_factory.mktemp("fabric"), controller=None, mtu=MTU,
                   congestion_control="reno") as running:
        labelled_paths.install(running, "spine1")
        yield running


def ping(emulation: Emulation, source: str, target: str, size_bytes: int = 56) -> bool:
    address = emulation.fabric.host(target).ip
    return emulation.run(source, ["ping", "-c", "1", "-W", "1", "-M", "do", "-s", str(size_bytes),
                                  address]).returncode == 0


def entry_packets(emulation: Emulation, switch: str, match: str) -> int:
    listed = emulation.ovs_ofctl(switch, "dump-flows", match)
    return sum(int(number) for number in re.findall(r"n_packets=(\d+)", listed))


def measured_bps(emulation: Emulation, tmp_path: Path, source: str, target: str) -> tuple[float, float]:
    """What arrives in the mean, and in the best half second: a machine that stalls lowers the mean."""
    server = emulation.popen(source, ["iperf3", "--server", "--one-off"], log=tmp_path / "iperf3.log")
    wait_until(lambda: ":5201" in emulation.run(source, ["ss", "-ltn"]).stdout, 15, "iperf3 does not listen")
    client = emulation.run(target, ["iperf3", "--client", emulation.fabric.host(source).ip, "--time", "2",
                                    "--omit", "1", "--interval", "0.5", "--reverse", "--json"])
    server.wait(60)
    result = json.loads(client.stdout)
    return (result["end"]["sum_received"]["bits_per_second"],
            max(interval["sum"]["bits_per_second"] for interval in result["intervals"]))


def assert_fills(capacity_bps: float, measured: tuple[float, float]) -> None:
    mean_bps, best_bps = measured
    assert mean_bps <= 1.1 * capacity_bps and best_bps > 0.85 * capacity_bps


def test_hosts_have_their_addresses_and_settings(emulation: Emulation, fabric: Fabric) -> None:
    host = fabric.host("r1h0")
    listed = json.loads(emulation.run(host.name, ["ip", "-json", "address"]).stdout)
    interfaces = {each["ifname"]: each for each in listed}
    assert set(interfaces) == {"lo", "eth0", "mgmt0"}
    assert interfaces["eth0"]["address"] == host.mac
    assert interfaces["eth0"]["mtu"] == MTU
    for name, local, prefix_length in (("eth0", host.ip, 8), ("mgmt0", host.management_ip, 16)):
        assert [(each["local"], each["prefixlen"]) for each in interfaces[name]["addr_info"]] == [
            (local, prefix_length)]
    assert emulation.congestion_control == "reno"
    setting = emulation.run(host.name, ["cat", "/proc/sys/net/ipv4/tcp_congestion_control"]).stdout
    assert setting.strip() == "reno"


def test_management_network_joins_the_machine_hosts_and_switches(emulation: Emulation, fabric: Fabric) -> None:
    for node in (fabric.host("r0h0"), fabric.switch("spine0")):
        assert subprocess.run(["ping", "-c", "1", "-W", "1", node.management_ip], capture_output=True,
                              check=False).returncode == 0
    assert emulation.run("r0h0", ["ping", "-c", "1", "-W", "1", "10.255.0.1"]).returncode == 0


def test_full_size_packets_pass_with_a_label_over_the_spine_they_are_sent_to(emulation: Emulation) -> None:
    before = {spine: entry_packets(emulation, spine, "mpls") for spine in ("spine0", "spine1")}
    assert ping(emulation, "r0h0", "r1h1", MTU - IP_AND_ICMP_HEADER_BYTES)
    assert entry_packets(emulation, "spine1", "mpls") == before["spine1"] + 2
    assert entry_packets(emulation, "spine0", "mpls") == before["spine0"] == 0


def test_packets_beyond_the_mtu_are_refused_at_the_host(emulation: Emulation) -> None:
    assert not ping(emulation, "r0h0", "r1h1", MTU - IP_AND_ICMP_HEADER_BYTES + 1)


def test_full_size_packets_pass_with_two_labels(emulation: Emulation) -> None:
    labelled_paths.install(emulation, "spine1", labels=2)
    try:
        assert ping(emulation, "r0h1", "r1h0", MTU - IP_AND_ICMP_HEADER_BYTES)
        outer = labelled_paths.FIRST_LABEL + labelled_paths.OUTER_LABEL_OFFSET + 2
        assert entry_packets(emulation, "spine1", f"mpls,mpls_label={outer}") == 1
    finally:
        labelled_paths.install(emulation, "spine1")


@pytest.mark.parametrize(("target", "capacity_bps"), [("r0h1", HOST_BPS), ("r1h0", UPLINK_BPS)])
def test_a_flow_gets_the_capacity_of_its_tightest_link(emulation: Emulation, tmp_path: Path, target: str,
                                                       capacity_bps: int) -> None:
    assert_fills(capacity_bps, measured_bps(emulation, tmp_path, "r0h0", target))


def test_queues_are_as_short_as_asked(emulation: Emulation, tmp_path: Path) -> None:
    queues_at_this_rate = 2  # into the spine and out of it
    emptying_full_queues_seconds = queues_at_this_rate * 20 * (MTU + 100) * 8 / UPLINK_BPS
    log = tmp_path / "ping.log"
    address = emulation.fabric.host("r1h0").ip
    pinging = emulation.popen("r0h0", ["ping", "-c", "15", "-i", "0.2", address], log=log)
    measured_bps(emulation, tmp_path, "r0h1", "r1h0")
    pinging.wait(60)
    delays_seconds = [float(delay) / 1000 for delay in re.findall(r"time=([\d.]+) ms", log.read_text())]
    assert statistics.median(delays_seconds) < 1.2 * emptying_full_queues_seconds


def test_a_connection_begins_without_what_earlier_ones_to_its_peer_learnt(emulation: Emulation,
                                                                          tmp_path: Path) -> None:
    measured_bps(emulation, tmp_path, "r0h1", "r1h0")
    assert emulation.run("r0h1", ["ip", "tcp_metrics", "show"]).stdout == ""


def test_capacities_are_readable_over_ovsdb_from_the_machine(emulation: Emulation, fabric: Fabric) -> None:
    switch = fabric.switch("leaf1")
    listed = subprocess.run(
        ["ovs-vsctl", f"--db=tcp:{switch.management_ip}:6640", "--timeout=5", "--format=csv", "--data=bare",
         "--no-headings", "--columns=name,ofport,external_ids", "list", "Interface"],
        capture_output=True, text=True, check=True).stdout
    found = {name: (int(number), ids) for name, number, ids in csv.reader(listed.splitlines()) if name != "br0"}
    assert found == {f"eth{port.number}": (port.number, f"capacity_bps={port.capacity_bps}")
                     for port in fabric.ports(switch.name)}


def test_switch_tells_its_name_and_datapath_id_over_openflow(emulation: Emulation, fabric: Fabric) -> None:
    assert "DP Description: spine0" in emulation.ovs_ofctl("spine0", "dump-desc")
    assert f"dpid:{fabric.switch('spine0').dpid_hex}" in emulation.ovs_ofctl("spine0", "show")


def test_switches_forward_nothing_by_themselves(emulation: Emulation) -> None:
    assert emulation.ovs_vsctl("leaf0", "get-fail-mode", "br0").strip() == "secure"
    assert "actions" not in emulation.ovs_ofctl("spine0", "dump-flows")


def test_no_interface_speaks_ipv6(emulation: Emulation) -> None:
    for pid in (emulation.host_pid("r0h0"), emulation.network["leaf0"].pid):
        entered = ["nsenter", f"--net=/proc/{pid}/ns/net", "ip", "-6", "-brief", "address"]
        assert subprocess.run(entered, capture_output=True, text=True, check=True).stdout == ""


def test_killed_switch_drops_everything_and_comes_back_empty_with_its_ports(emulation: Emulation) -> None:
    ports = re.findall(r"^ (\d+)\(", emulation.ovs_ofctl("spine1", "show"), re.MULTILINE)
    assert ping(emulation, "r0h0", "r1h0")
    used_seconds = emulation.switch_cpu_seconds()["spine1"]
    emulation.kill_switch("spine1")
    assert not ping(emulation, "r0h0", "r1h0")
    emulation.start_switch("spine1")
    assert "actions" not in emulation.ovs_ofctl("spine1", "dump-flows")
    assert re.findall(r"^ (\d+)\(", emulation.ovs_ofctl("spine1", "show"), re.MULTILINE) == ports
    labelled_paths.install(emulation, "spine1")
    wait_until(lambda: ping(emulation, "r0h0", "r1h0"), 15, "the restarted switch does not forward")
    assert emulation.switch_cpu_seconds()["spine1"] >= used_seconds > 0


def test_shaping_survives_the_restart_of_a_switch(emulation: Emulation, tmp_path: Path) -> None:
    emulation.kill_switch("leaf0")
    emulation.start_switch("leaf0")
    labelled_paths.install(emulation, "spine1")
    wait_until(lambda: ping(emulation, "r0h0", "r1h0"), 15, "the restarted switch does not forward")
    assert_fills(UPLINK_BPS, measured_bps(emulation, tmp_path, "r0h0", "r1h0"))


def test_link_goes_down_at_both_ends_and_up_again(emulation: Emulation) -> None:
    def downs() -> list[int]:
        return [emulation.ovs_ofctl(switch, "show").count("LINK_DOWN") for switch in ("leaf0", "spine1")]

    local_ports_only = downs()
    emulation.set_link("leaf0", "spine1", up=False)
    wait_until(lambda: downs() == [number + 1 for number in local_ports_only], 15, "no switch reports the link down")
    assert not ping(emulation, "r0h0", "r1h0")
    emulation.set_link("spine1", "leaf0", up=True)
    wait_until(lambda: downs() == local_ports_only, 15, "the link does not come up again")
    wait_until(lambda: ping(emulation, "r0h0", "r1h0"), 15, "nothing passes the link that is up again")


def test_nodes_leave_the_management_network_and_come_back(emulation: Emulation) -> None:
    def reached() -> list[bool]:
        nodes = [*(host.management_ip for host in emulation.fabric.hosts[:2]),
                 emulation.fabric.switch("leaf0").management_ip]
        return [subprocess.run(["ping", "-c", "1", "-W", "0.2", address], capture_output=True,
                               check=False).returncode == 0 for address in nodes]

    wait_until(lambda: reached() == [True, True, True], 15, lambda: f"the management network reaches {reached()}")
    emulation.set_management_link(emulation.fabric.hosts[0].name, up=False)
    emulation.set_management_link("leaf0", up=False)
    assert reached() == [False, True, False]
    emulation.set_management_link(emulation.fabric.hosts[0].name, up=True)
    emulation.set_management_link("leaf0", up=True)
    wait_until(lambda: reached() == [True, True, True], 15, "the nodes do not come back")
    emulation.set_management_network(up=False)
    assert reached() == [False, False, False]
    emulation.set_management_network(up=True)
    wait_until(lambda: reached() == [True, True, True], 15, "the network does not come back")


def test_service_runs_on_its_host_with_its_log_and_environment(emulation: Emulation, tmp_path: Path) -> None:
    log = tmp_path / "logs" / "service.log"
    service = emulation.popen("r1h1", ["sh", "-c", "echo $GREETING; ip -brief address; echo done >&2"], log=log,
                              env={"GREETING": "hello"})
    assert service.wait(60) == 0
    text = log.read_text()
    assert text.startswith("hello\n") and "10.0.1.2/8" in text and text.endswith("done\n")


def test_unknown_names_and_refused_commands_are_reported(emulation: Emulation) -> None:
    with pytest.raises(UnknownNode, match="nobody"):
        emulation.run("nobody", ["true"])
    with pytest.raises(UnknownNode, match="spine9"):
        emulation.kill_switch("spine9")
    with pytest.raises(UnknownNode, match="neighbour of leaf0"):
        emulation.set_link("leaf0", "leaf1", up=False)
    with pytest.raises(UnknownNode, match="spine9"):
        emulation.set_management_link("spine9", up=False)
    with pytest.raises(EmulationError, match=r"leaf0: ovs-ofctl add-flow failed: .*must specify an action"):
        emulation.ovs_ofctl("leaf0", "add-flow", "nonsense")
    with pytest.raises(EmulationError, match="leaf0: ovs-vsctl failed"):
        emulation.ovs_vsctl("leaf0", "list-ports", "br9")
    with pytest.raises(EmulationError, match="started already"):
        emulation.start()
