"""What is written into a switch's database so that its ports have the queues they should have."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from speedwell.controller.policy.network.traffic_classes import MINCOF_QUEUES, PRIORITY_QUEUES, class_of_priority
from speedwell.controller.queues.api import PortState
from speedwell.controller.queues.port_queues import PortQueues, changes, queues_of, wanted_settings
from speedwell.controller.switches.entries import SetQueue, match
from speedwell.controller.switches.layout import Table
from speedwell.controller.switches.ovsdb import Database, DatabaseRefused, DatabaseUnreachable, transact
from speedwell.controller.tables.plan import TablePlanner
from speedwell.controller.topology.events import EventSwitchChanged
from speedwell.controller.topology.state import NetworkState
from speedwell.topo.fabric import spine_leaf
from tests.unit.controller.fake_switch import FakeNetwork
from tests.unit.controller.in_process import AGGREGATIONS, EDGES, Controller

DPID = "0000000000010001"
RATE_BPS = 20_000_000


def rows(qos: Any, datapath_type: str = "netdev") -> dict[str, list[dict[str, Any]]]:
    """A database with one bridge of one port. `qos` is the port's record, or None."""
    return {
        "Bridge": [{"datapath_id": DPID, "datapath_type": datapath_type, "ports": ["uuid", "port"]}],
        "Port": [{"_uuid": ["uuid", "port"], "interfaces": ["uuid", "interface"],
                  "qos": ["uuid", "qos"] if qos else ["set", []]}],
        "Interface": [{"_uuid": ["uuid", "interface"], "name": "eth4", "ofport": 4, "mtu": 9100}],
        "QoS": [{"_uuid": ["uuid", "qos"]} | qos] if qos else [],
        "Queue": [{"_uuid": ["uuid", "old"], "other_config": ["map", [["max-rate", str(RATE_BPS)]]]}],
    }


def whole_port(kind: str = "linux-htb") -> dict[str, Any]:
    return {"type": kind, "other_config": ["map", [["max-rate", str(RATE_BPS)], ["burst", "7"]]],
            "queues": ["map", [[0, ["uuid", "old"]]]]}


def carry_out(database: dict[str, list[dict[str, Any]]], operations: list[dict[str, Any]]) -> None:
    """What OVSDB does with operations of the kinds that are used (RFC 7047, section 5.2)."""
    named = {operation["uuid-name"]: f"new-{operation['uuid-name']}" for operation in operations
             if operation["op"] == "insert"}

    def resolve(value: Any) -> Any:
        if isinstance(value, list):
            return ["uuid", named[value[1]]] if value[0] == "named-uuid" else [resolve(each) for each in value]
        return value

    for operation in operations:
        row = {column: resolve(value) for column, value in operation["row"].items()}
        if operation["op"] == "insert":
            blank = {"queues": ["map", []], "other_config": ["map", []]}
            database[operation["table"]].append(blank | {"_uuid": ["uuid", named[operation["uuid-name"]]]} | row)
        else:
            [[_, _, uuid]] = operation["where"]
            [found] = [each for each in database[operation["table"]] if each["_uuid"] == uuid]
            found.update(row)


@pytest.mark.parametrize("qos", [None, whole_port()])
def test_a_port_is_sliced_once_and_keeps_its_rate(qos: Any) -> None:
    database = rows(qos)
    carry_out(database, changes(queues_of(database, DPID).ports[4], MINCOF_QUEUES, RATE_BPS))
    port = queues_of(database, DPID).ports[4]
    assert port.max_bps == RATE_BPS
    assert {number: config for number, (_, config) in port.queues.items()} == wanted_settings(
        MINCOF_QUEUES, RATE_BPS, 9100)
    assert [int(port.queues[number][1]["min-rate"]) for number in (0, 1, 2)] == [6_000_000, 10_000_000, 4_000_000]
    assert changes(port, MINCOF_QUEUES, RATE_BPS) == []


def test_a_queue_that_somebody_changed_is_put_right_alone() -> None:
    database = rows(whole_port())
    carry_out(database, changes(queues_of(database, DPID).ports[4], MINCOF_QUEUES, RATE_BPS))
    database["Queue"][-1]["other_config"] = ["map", [["min-rate", "1"]]]
    operations = changes(queues_of(database, DPID).ports[4], MINCOF_QUEUES, RATE_BPS)
    assert [(operation["op"], operation["table"]) for operation in operations] == [("update", "Queue")]


def test_a_queue_that_does_not_belong_goes() -> None:
    database = rows(whole_port())
    database["QoS"][0]["queues"][1].append([5, ["uuid", "old"]])
    carry_out(database, changes(queues_of(database, DPID).ports[4], MINCOF_QUEUES, RATE_BPS))
    assert set(queues_of(database, DPID).ports[4].queues) == {0, 1, 2}


def test_a_port_with_a_record_of_another_kind_is_left_alone() -> None:
    with pytest.raises(ValueError, match="egress-policer"):
        changes(queues_of(rows(whole_port("egress-policer")), DPID).ports[4], MINCOF_QUEUES, RATE_BPS)


@pytest.mark.parametrize("max_rate", ["-1", "0", "1", "fast", "1e-320", "9" * 400])
def test_a_port_whose_rate_no_port_can_have_is_left_alone_and_told(
        max_rate: str, monkeypatch: pytest.MonkeyPatch) -> None:
    controller = Controller(queues="mincof")
    found = rows(whole_port() | {"other_config": ["map", [["max-rate", max_rate]]]})
    found["Bridge"][0]["datapath_id"] = EDGES[0]
    found["Bridge"][0]["ports"] = ["set", [["uuid", "port"], ["uuid", "well"]]]
    found["Port"].append({"_uuid": ["uuid", "well"], "interfaces": ["uuid", "eth3"], "qos": ["set", []]})
    found["Interface"].append({"_uuid": ["uuid", "eth3"], "name": "eth3", "ofport": 3, "mtu": 10**30})
    written: list[Any] = []
    monkeypatch.setattr("speedwell.controller.queues.app.read_tables", lambda *_: found)
    monkeypatch.setattr("speedwell.controller.queues.app.transact", lambda *arguments: written.append(arguments[1]))
    controller.queues._slice(EDGES[0])
    [operations] = written
    assert [operation["where"] for operation in operations if operation["table"] == "Port"] == [
        [["_uuid", "==", ["uuid", "well"]]]]
    ports = {port["port"]: port["problem"] for port in controller.ask("GET", "/v1/queues").json["ports"]}
    assert ports[3] is None and "max-rate" in ports[4]


def test_shares_are_the_papers_and_make_up_the_port() -> None:
    assert {queue.name: queue.share for queue in MINCOF_QUEUES} == {"scheduled": 0.5, "starved": 0.2,
                                                                    "best-effort": 0.3}
    settings = wanted_settings(MINCOF_QUEUES, RATE_BPS, 9100)
    assert sum(int(each["min-rate"]) for each in settings.values()) == RATE_BPS
    assert all(int(each["burst"]) >= 8 * 9100 for each in settings.values())


def test_priorities_are_eight_queues_of_which_each_comes_before_the_next() -> None:
    settings = wanted_settings(PRIORITY_QUEUES, RATE_BPS, 9100)
    order = [int(settings[class_of_priority(priority)]["priority"]) for priority in range(8)]
    assert order == list(range(8)) and set(settings) == set(range(8))
    assert sum(int(each["min-rate"]) for each in settings.values()) < RATE_BPS / 4
    assert [class_of_priority(priority) for priority in (-1, 0, 7, 99)] == [7, 7, 0, 0]


def test_only_the_bridge_in_question_counts() -> None:
    assert queues_of(rows(whole_port()), "00000000000000ff").ports == {}
    assert queues_of(rows(None), DPID).ports == {4: PortQueues(4, "port", 9100)}


@pytest.mark.parametrize(("datapath_type", "is_kernel"), [("netdev", False), ("system", True), ("", True)])
def test_the_kind_of_datapath_is_told(datapath_type: str, is_kernel: bool) -> None:
    assert queues_of(rows(None, datapath_type), DPID).is_kernel is is_kernel


def test_set_queue_is_used_on_kernel_datapaths_alone() -> None:
    network = FakeNetwork(spine_leaf(leaves=2, spines=1, hosts_per_leaf=1, host_bps=RATE_BPS))
    state: NetworkState = network.state()
    leaf, spine = (network.dpid_of[name] for name in ("leaf0", "spine0"))
    state.set_queue_classes[leaf] = (1, 2)
    planner = TablePlanner(state)
    planner.assign_labels()
    classes = [entry for entry in planner.tables(leaf).flows.values()
               if entry.table == Table.CLASSIFY and any(isinstance(action, SetQueue) for action in entry.actions)]
    assert {entry.match: (entry.actions, entry.goto) for entry in classes} == {
        match(eth_type=0x8847, mpls_tc=number): ((SetQueue(number),), Table.LABELS) for number in (1, 2)}
    assert not any(isinstance(action, SetQueue) for entry in planner.tables(spine).flows.values()
                   for action in entry.actions)


class RefusingDatabase(threading.Thread):
    """A server that gives one answer to one transaction."""

    def __init__(self, results: list[Any]) -> None:
        super().__init__(daemon=True)
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.port = self.listening.getsockname()[1]
        self._results = results
        self.received = b""

    def run(self) -> None:
        connection, _ = self.listening.accept()
        with closing(connection):
            self.received = connection.recv(65536)
            if not self.received:
                return
            request = json.loads(self.received)
            connection.sendall(json.dumps({"id": request["id"], "error": None, "result": self._results}).encode())
            connection.recv(1)


@pytest.fixture
def refusing() -> Iterator[RefusingDatabase]:
    database = RefusingDatabase([{}, {"error": "constraint violation", "details": "no such queue"}])
    database.start()
    yield database
    database.listening.close()


def test_what_a_database_has_against_a_transaction_is_said(refusing: RefusingDatabase) -> None:
    with pytest.raises(DatabaseRefused, match=r"constraint violation.*no such queue"):
        transact(Database("127.0.0.1", refusing.port), [{"op": "comment", "comment": "x"}], 2.0)


def test_a_controller_that_leads_no_more_writes_nothing_into_a_database(refusing: RefusingDatabase) -> None:
    database = Database("127.0.0.1", refusing.port, may_write=lambda: False)
    with pytest.raises(DatabaseRefused, match="another controller leads"):
        transact(database, [{"op": "select"}, {"op": "mutate"}], 2.0)
    refusing.join(5)
    assert refusing.received == b""


def test_the_interface_shows_the_queues_of_ports_and_why_a_port_has_none() -> None:
    controller = Controller(queues="mincof")
    controller.queues.ports = {(EDGES[0], 3): PortState(RATE_BPS, None),
                               (EDGES[0], 4): PortState(RATE_BPS, "no room")}
    ports = controller.ask("GET", "/v1/queues").json["ports"]
    assert [(port["port"], port["problem"], len(port["queues"])) for port in ports] == [
        (3, None, 3), (4, "no room", 0)]
    assert ports[0]["neighbour"] == AGGREGATIONS[0]
    assert {queue["name"]: queue["guaranteed_bps"] for queue in ports[0]["queues"]} == {
        "scheduled": 10_000_000, "starved": 4_000_000, "best-effort": 6_000_000}


def test_a_switch_or_a_link_that_goes_while_its_database_is_asked_leaves_nothing(
        monkeypatch: pytest.MonkeyPatch) -> None:
    controller = Controller(queues="mincof")
    state, queues = controller.state, controller.queues

    def link_goes(*_: Any) -> Any:
        state.remove_link((EDGES[0], 3))
        state.remove_port((EDGES[0], 3))
        state.remove_port((AGGREGATIONS[0], 1))
        return rows(None)

    def switch_goes(*_: Any) -> Any:
        state.switch_disconnected(EDGES[0])
        queues.switch_changed(EventSwitchChanged(EDGES[0], connected=False))
        raise DatabaseUnreachable("it is gone")

    for looks in (link_goes, switch_goes):
        monkeypatch.setattr("speedwell.controller.queues.app.read_tables", looks)
        queues._slice(EDGES[0])
        assert all(key in state.links for key in queues.ports)
    assert queues.ports == {}
    monkeypatch.setattr("speedwell.controller.queues.app.read_tables", lambda *_: pytest.fail("it is not connected"))
    queues._slice(EDGES[0])
    queues._slice("00000000000000ff")
