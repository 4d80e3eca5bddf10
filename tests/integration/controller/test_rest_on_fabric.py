"""REST requests on a real fabric: what is answered is in the switches, and what is refused is not."""

import itertools
import json
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from speedwell.controller.reads.replica_search import LOCATE_SECONDS
from speedwell.topo.fabric import spine_leaf
from tests.integration.controller.northbound import REPLICA_PORT, Northbound, northbound
from tests.waiting import wait_until

pytestmark = pytest.mark.root

HOST_BPS = 40e6
SETTINGS = "poll_interval_seconds = 0.5\n"
PORTS = itertools.count(40000)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Northbound]:
    fabric = spine_leaf(leaves=2, spines=2, hosts_per_leaf=2, host_bps=HOST_BPS, oversubscription=1.0)
    with northbound(fabric, tmp_path_factory.mktemp("northbound"), SETTINGS) as running:
        running.meet_all_hosts()
        yield running


@pytest.fixture
def running(shared: Northbound) -> Iterator[Northbound]:
    """The fabric of all tests here; what one of them leaves behind, the next does not meet."""
    yield shared
    shared.clear()


def spine_of(read: dict[str, Any]) -> str:
    return read["parts"][0]["path_names"][2]


def test_read_is_in_its_first_switch_when_post_answers_and_gone_when_delete_does(running: Northbound) -> None:
    port = next(PORTS)
    read = running.place("r1h0", "r0h0", port=port)
    part = read["parts"][0]
    assert part["path_names"] == [running.ip("r0h0"), "leaf0", spine_of(read), "leaf1", running.ip("r1h0")]
    assert part["path"][1] == running.fabric.switch("leaf0").dpid_hex
    entries = running.read_entries("leaf0")
    assert len(entries) == 1 and f"tp_src={REPLICA_PORT},tp_dst={port}" in entries[0]
    assert len(running.all_read_entries()) == 1
    running.end(read)
    assert running.all_read_entries() == []
    assert running.ask("GET", f"/v1/reads/{read['id']}").status_code == 404


@pytest.mark.parametrize("path_policy", ["mayflower", "ecmp"])
def test_traffic_takes_the_path_that_was_named(running: Northbound, path_policy: str) -> None:
    size_bytes = 5_000_000
    port = next(PORTS)
    read = running.place("r1h0", "r0h0", port=port, path_policy=path_policy, size_bytes=size_bytes)
    before = {spine: running.sent_bytes(spine, "leaf1") for spine in ("spine0", "spine1")}
    stream = running.stream("r0h0", "r1h0", port, size_bytes)
    wait_until(stream.ended, 30, "the stream does not end")
    assert stream.received_bytes == size_bytes
    carried = {spine: running.sent_bytes(spine, "leaf1") - sent for spine, sent in before.items()}
    other = next(spine for spine in carried if spine != spine_of(read))
    assert carried[spine_of(read)] > size_bytes
    assert carried[other] < size_bytes / 10
    running.end(read)


def test_two_reads_at_once_are_given_different_paths(running: Northbound) -> None:
    reads = [running.place(f"r1h{host}", f"r0h{host}", port=next(PORTS)) for host in (0, 1)]
    assert {spine_of(read) for read in reads} == {"spine0", "spine1"}
    for read in reads:
        running.end(read)


def test_replica_on_the_clients_host_needs_no_entry(running: Northbound) -> None:
    read = running.place("r0h0", "r1h0", "r0h0", port=next(PORTS))
    part = read["parts"][0]
    assert (part["replica"]["host"], part["path"], part["estimated_bps"]) == (running.ip("r0h0"), [], None)
    assert running.all_read_entries() == []
    running.end(read)


def test_unknown_hosts_are_answered_404(running: Northbound) -> None:
    for changes in ({"client": "10.0.200.1"}, {"replicas": [{"host": "10.0.200.2", "port": 1}]}):
        answer = running.ask("POST", "/v1/reads", running.body("r1h0", "r0h0", port=next(PORTS), **changes))
        assert (answer.status_code, answer.json()["type"]) == (404, "urn:speedwell:problem:unknown-host")
        assert "10.0.200." in answer.json()["detail"]
    assert running.all_read_entries() == []


def test_unknown_replicas_do_not_keep_reads_waiting(running: Northbound) -> None:
    unknown = [f"10.0.201.{number}" for number in range(1, 11)]
    begin = time.monotonic()
    for host in unknown:
        replicas = [{"host": host, "port": 1}, {"host": running.ip("r0h0"), "port": REPLICA_PORT}]
        read = running.place("r1h0", "r0h0", port=next(PORTS), replicas=replicas)
        assert read["parts"][0]["replica"]["host"] == running.ip("r0h0")
        running.end(read)
    assert time.monotonic() - begin < len(unknown) * LOCATE_SECONDS


def test_bad_input_changes_nothing_in_the_switches(running: Northbound) -> None:
    good = running.body("r1h0", "r0h0", port=next(PORTS))
    bad = [{**good, "size_bytes": -1}, {**good, "size_bytes": 1 << 60}, {**good, "client": "r1h0"},
           {**good, "client_ports": [0]}, {**good, "path_policy": "fast"}, {**good, "note": "x"},
           {**good, "replicas": [{"host": running.ip("r0h0"), "port": 7100, "rack": "r0"}]}, [], {}]
    for body in bad:
        assert running.ask("POST", "/v1/reads", body).status_code == 422
    for raw in (b"{", b"\x00", json.dumps(good).encode() + b"}"):
        answer = running.session.post(f"{running.url}/v1/reads", raw, headers={"Content-Type": "application/json"},
                                      timeout=10)
        assert answer.status_code == 400
    assert running.all_read_entries() == []
    assert running.get("/v1/reads")["reads"] == []


@contextmanager
def full_table(running: Northbound, switch: str, entry: str) -> Iterator[None]:
    """The table that holds `entry` takes no more entries than it has now."""
    table = int(entry.split("table=")[1].split(",")[0])
    entries = running.emulation.ovs_ofctl(switch, "dump-flows", f"table={table}").count("cookie=")
    running.emulation.ovs_vsctl(switch, "--", "--id=@full", "create", "Flow_Table", f"flow_limit={entries}",
                                "overflow_policy=refuse", "--", "set", "Bridge", "br0",
                                f"flow_tables:{table}=@full")
    try:
        yield
    finally:
        running.emulation.ovs_vsctl(switch, "clear", "Bridge", "br0", "flow_tables")


@pytest.fixture
def busy_servers(running: Northbound) -> Iterator[list[str]]:
    """Two servers, at a leaf each, that send to other hosts: either alone has half a link left."""
    reads = [running.place("r0h1", "r0h0", port=next(PORTS), size_bytes=10 ** 12),
             running.place("r0h1", "r1h1", port=next(PORTS), size_bytes=10 ** 12)]
    yield ["r0h0", "r1h1"]
    for read in reads:
        running.end(read)


def place_parts(running: Northbound, servers: list[str]) -> dict[str, Any]:
    return running.place("r1h0", *servers, port=1, client_ports=[next(PORTS), next(PORTS)], size_bytes=10 ** 7 + 1)


def test_parts_are_in_the_first_switch_of_each_until_each_ends(running: Northbound, busy_servers: list[str]) -> None:
    before = len(running.all_read_entries())
    read = place_parts(running, busy_servers)
    parts = {part["path_names"][1]: (number, part) for number, part in enumerate(read["parts"])}
    assert set(parts) == {"leaf0", "leaf1"}
    assert sum(part["size_bytes"] for _, part in parts.values()) == 10 ** 7 + 1
    for leaf, (_, part) in parts.items():
        assert any(f"tp_dst={part['client_port']}" in entry for entry in running.read_entries(leaf))
    number, ended = parts["leaf0"]
    assert running.ask("DELETE", f"/v1/reads/{read['id']}/parts/{number}").status_code == 204
    assert not any(f"tp_dst={ended['client_port']}" in entry for entry in running.all_read_entries())
    states = running.get(f"/v1/reads/{read['id']}")["parts"]
    assert [state["ended"] for state in states] == [index == number for index in (0, 1)]
    running.end(read)
    assert len(running.all_read_entries()) == before


def test_part_refused_by_one_switch_leaves_nothing_in_the_other(
        running: Northbound, busy_servers: list[str]) -> None:
    before = running.get("/v1/flows")["flows"]
    entries = len(running.all_read_entries())
    with full_table(running, "leaf1", running.read_entries("leaf1")[0]):
        answer = running.ask("POST", "/v1/reads", running.body(
            "r1h0", *busy_servers, port=1, client_ports=[next(PORTS), next(PORTS)]))
        assert (answer.status_code, answer.json()["dpid"]) == (502, running.fabric.switch("leaf1").dpid_hex)
    assert [flow["id"] for flow in running.get("/v1/flows")["flows"]] == [flow["id"] for flow in before]
    assert len(running.all_read_entries()) == entries
    running.end(place_parts(running, busy_servers))


def test_refusal_of_a_full_switch_reaches_the_caller(running: Northbound) -> None:
    read = running.place("r1h0", "r0h0", port=next(PORTS))
    (entry,) = running.read_entries("leaf0")
    running.end(read)
    with full_table(running, "leaf0", entry):
        answer = running.ask("POST", "/v1/reads", running.body("r1h0", "r0h0", port=next(PORTS)))
        assert answer.status_code == 502
        problem = answer.json()
        assert problem["type"] == "urn:speedwell:problem:switch-refused"
        assert problem["dpid"] == running.fabric.switch("leaf0").dpid_hex
        assert "TABLE_FULL" in problem["openflow_code"]
        assert running.get("/v1/reads")["reads"] == []
        assert running.all_read_entries() == []
    running.end(running.place("r1h0", "r0h0", port=next(PORTS)))


def test_measured_rate_is_what_iperf3_measures(running: Northbound) -> None:
    port = next(PORTS)
    read = running.place("r1h0", "r0h0", port=port, size_bytes=100_000_000)
    running.emulation.popen("r0h0", ["iperf3", "-s", "-1", "-p", str(REPLICA_PORT)], running.directory / "iperf3")
    wait_until(lambda: "LISTEN" in running.emulation.run("r0h0", ["ss", "-ltn", f"sport = :{REPLICA_PORT}"]).stdout,
               10, "iperf3 does not listen")
    log = running.directory / "iperf3.json"
    log.unlink(missing_ok=True)
    client = running.emulation.popen("r1h0", ["iperf3", "-c", running.ip("r0h0"), "-p", str(REPLICA_PORT),
                                              "-R", "--cport", str(port), "-t", "6", "-J"], log)
    flow_rates, link_rates = [], []
    while client.poll() is None:
        flows = running.get("/v1/flows")["flows"]
        assert len(flows) == 1 and flows[0]["read_id"] == read["id"]
        flow_rates.append(flows[0]["rate_bps"] or 0)
        link_rates += [link["rate_bps"] for link in running.get("/v1/links")["links"]
                       if link["source"] == running.ip("r0h0")]
        time.sleep(0.25)
    result = json.loads(log.read_text())
    interval_bps = [interval["sum"]["bits_per_second"] for interval in result["intervals"]]
    # A rate is over the last two seconds or so: the first ones are those of the start.
    for rates in (flow_rates, link_rates):
        steady = statistics.median(rates[len(rates) // 2:])
        assert 0.9 * min(interval_bps) < steady < 1.1 * max(interval_bps)
    received_bytes = result["end"]["sum_received"]["bytes"]
    wait_until(lambda: running.get(f"/v1/reads/{read['id']}")["parts"][0]["transferred_bytes"]
               == pytest.approx(received_bytes, rel=0.1), 10, f"the read is not counted as {received_bytes} bytes")


def test_running_read_is_rerouted_when_a_link_dies(running: Northbound) -> None:
    size_bytes, port = 20_000_000, next(PORTS)
    read = running.place("r1h0", "r0h0", port=port, size_bytes=size_bytes)
    former = spine_of(read)
    other = "spine1" if former == "spine0" else "spine0"
    stream = running.stream("r0h0", "r1h0", port, size_bytes)

    def part() -> dict[str, Any]:
        return running.get(f"/v1/reads/{read['id']}")["parts"][0]

    wait_until(lambda: part()["transferred_bytes"] > 0, 10, "no traffic is counted")
    carried_before = running.sent_bytes(other, "leaf1")
    running.emulation.set_link("leaf0", former, up=False)
    try:
        wait_until(lambda: part()["path_names"][2] == other, 15, "the read is not given another path")
        assert part()["reroutes"] == 1
        wait_until(stream.ended, 30, "the stream does not end")
        assert stream.received_bytes == size_bytes
        assert running.sent_bytes(other, "leaf1") - carried_before > size_bytes / 2
        running.end(read)
    finally:
        running.emulation.set_link("leaf0", former, up=True)
    wait_until(lambda: len(running.get("/v1.0/topology/links")) == 8, 20, "the link does not come back")


def test_lost_switch_is_told_and_reads_work_again_when_it_is_back(running: Northbound) -> None:
    running.emulation.kill_switch("leaf0")
    body = running.body("r1h0", "r0h0", port=next(PORTS))
    answer = running.ask("POST", "/v1/reads", body)
    assert answer.status_code in (503, 504), answer.text
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert running.get("/v1/reads")["reads"] == []
    wait_until(lambda: running.get("/v1/health")["status"] == "degraded", 20, "the loss is not noticed")
    running.emulation.start_switch("leaf0")
    wait_until(lambda: running.get("/v1/health")["status"] == "ok", 30, "the switch does not come back")

    def placed() -> dict[str, Any] | None:
        again = running.ask("POST", "/v1/reads", body)
        return again.json() if again.status_code == 201 else None

    read = wait_until(placed, 20, "no read is placed again")
    assert len(running.all_read_entries()) == 1
    running.end(read)


def test_the_entry_of_a_read_outlives_its_controller_until_its_bytes_end(running: Northbound) -> None:
    running.stop_controller()
    running.settings = SETTINGS + "read_idle_timeout_seconds = 2\n"
    running.start_controller()
    running.meet_all_hosts()
    port, size_bytes = next(PORTS), int(20 * HOST_BPS / 8)
    running.place("r1h0", "r0h0", port=port)
    stream = running.stream("r0h0", "r1h0", port, size_bytes)
    running.kill_controller()
    running.start_controller()
    polled = time.monotonic() + 5
    while time.monotonic() < polled:
        assert len(running.all_read_entries()) == 1, "the entry of a read that goes on is gone"
        time.sleep(0.2)
    assert not stream.ended()
    wait_until(stream.ended, 60, "the read does not end")
    assert stream.received_bytes == size_bytes
    wait_until(lambda: running.all_read_entries() == [], 10, "the entry of the former controller stays")


def test_the_read_of_a_client_that_died_idles_out(running: Northbound) -> None:
    running.place("r1h0", "r0h0", port=next(PORTS))
    assert len(running.get("/v1/reads")["reads"]) == 1
    wait_until(lambda: running.get("/v1/reads")["reads"] == [], 10, "the read of a dead client stays")
    assert running.all_read_entries() == []
