"""What the network's routes tell of a known fabric, and that Ryu's routes keep Ryu's shape."""

import importlib
import json
import time
from itertools import pairwise
from typing import Any

import pytest

from tests.unit.controller.in_process import AGGREGATIONS, CAPACITY_BPS, EDGES, HOSTS, Controller, read_of

ofproto_v1_3 = importlib.import_module("ryu.ofproto.ofproto_v1_3")
ofproto_v1_3_parser = importlib.import_module("ryu.ofproto.ofproto_v1_3_parser")
# Ryu's own classes; Ryu is importable only once `speedwell.controller.application` is.
ryu_topology = importlib.import_module("ryu.topology.switches")


@pytest.fixture
def controller() -> Controller:
    return Controller()


def get(controller: Controller, url: str) -> Any:
    answer = controller.ask("GET", url)
    assert answer.status_int == 200, answer.text
    return json.loads(answer.body)


def ryu_port(controller: Controller, dpid: str, port_no: int) -> Any:
    info = controller.state.ports[dpid, port_no]
    described = ofproto_v1_3_parser.OFPPort(port_no, info.hw_addr, info.name.encode(), 0, 0, 0, 0, 0, 0, 0, 0)
    return ryu_topology.Port(int(dpid, 16), ofproto_v1_3, described)


def test_switches_have_ryus_shape(controller: Controller) -> None:
    class Connection:
        def __init__(self, dpid: str) -> None:
            self.id = int(dpid, 16)

    expected = []
    for dpid in (*EDGES, *AGGREGATIONS):
        switch = ryu_topology.Switch(Connection(dpid))
        switch.ports = [ryu_port(controller, dpid, port_no) for port_no in (1, 2, 3, 4)]
        expected.append(switch.to_dict())
    assert get(controller, "/v1.0/topology/switches") == expected
    assert get(controller, f"/v1.0/topology/switches/{EDGES[1]}") == [expected[1]]
    assert get(controller, "/v1.0/topology/switches/00000000000000ff") == []


def test_links_have_ryus_shape(controller: Controller) -> None:
    expected = [ryu_topology.Link(ryu_port(controller, *near), ryu_port(controller, *far)).to_dict()
                for near, far in controller.state.links.items()]
    assert len(expected) == 8
    answer = get(controller, "/v1.0/topology/links")
    assert sorted(answer, key=str) == sorted(expected, key=str)
    at_edge = get(controller, f"/v1.0/topology/links/{EDGES[0]}")
    assert at_edge == [link for link in answer if link["src"]["dpid"] == EDGES[0]]
    assert len(at_edge) == 2


def test_hosts_have_ryus_shape(controller: Controller) -> None:
    expected = []
    for ip, location in sorted(controller.state.hosts.items()):
        host = ryu_topology.Host(location.mac, ryu_port(controller, location.dpid, location.port_no))
        host.ipv4.append(ip)
        expected.append(host.to_dict())
    assert get(controller, "/v1.0/topology/hosts") == expected
    assert get(controller, f"/v1.0/topology/hosts/{EDGES[0]}") == expected[:2]


def test_network_tells_every_switch_host_and_directed_link_once(controller: Controller) -> None:
    network = get(controller, "/v1/network")
    assert [switch["dpid"] for switch in network["switches"]] == [*EDGES, *AGGREGATIONS]
    assert [switch["edge"] for switch in network["switches"]] == [True, True, False, False]
    assert {host["ip"]: host["dpid"] for host in network["hosts"]} == HOSTS
    ends = [(link["source"], link["destination"]) for link in network["links"]]
    assert len(ends) == len(set(ends)) == 2 * (4 + len(HOSTS))
    assert all(link["capacity_bps"] == CAPACITY_BPS for link in network["links"])


@pytest.mark.parametrize("given", [EDGES[0], "0x1", "1", "0000000000000001"])
def test_switch_is_found_by_its_dpid_in_every_form(controller: Controller, given: str) -> None:
    switch = get(controller, f"/v1/switches/{given}")
    assert (switch["dpid"], switch["name"]) == (EDGES[0], "edge-0")
    neighbours = {port["port"]: (port["neighbour"], port["neighbour_name"]) for port in switch["ports"]}
    assert neighbours == {1: ("10.0.0.1", "10.0.0.1"), 2: ("10.0.0.2", "10.0.0.2"),
                          3: (AGGREGATIONS[0], "aggregation-0"), 4: (AGGREGATIONS[1], "aggregation-1")}


def test_sixteen_digits_are_hex_not_decimal(controller: Controller) -> None:
    assert controller.ask("GET", "/v1/switches/0000000000000010").status_int == 404
    assert get(controller, "/v1/switches/17")["dpid"] == AGGREGATIONS[0]
    assert get(controller, "/v1/switches/0000000000000011")["dpid"] == AGGREGATIONS[0]


def links_by_ends(controller: Controller) -> dict[tuple[str, str], dict[str, Any]]:
    return {(link["source"], link["destination"]): link for link in get(controller, "/v1/links")["links"]}


def test_link_rates_are_those_of_the_port_that_sends_into_it(controller: Controller) -> None:
    for seconds in (1.0, 2.0):
        controller.measurements.read_port((EDGES[0], 3), int(seconds) * 1_000_000, int(seconds) * 5_000_000, seconds,
                                           seconds)
        controller.measurements.read_port((EDGES[0], 1), int(seconds) * 2_000_000, int(seconds) * 3_000_000, seconds,
                                           seconds)
    links = links_by_ends(controller)
    up = links[EDGES[0], AGGREGATIONS[0]]
    assert (up["rate_bps"], up["utilisation"]) == (pytest.approx(40e6), pytest.approx(0.5))
    assert (up["source_port"], up["destination_port"]) == (3, 1)
    assert links["10.0.0.1", EDGES[0]]["rate_bps"] == pytest.approx(16e6)
    assert links["10.0.0.1", EDGES[0]]["source_port"] is None
    assert links[EDGES[0], "10.0.0.1"]["rate_bps"] == pytest.approx(24e6)
    assert links[AGGREGATIONS[0], EDGES[0]]["rate_bps"] is None


def test_lost_switch_stays_listed_as_not_connected_and_its_links_go(controller: Controller) -> None:
    controller.state.switch_disconnected(AGGREGATIONS[0])
    network = get(controller, "/v1/network")
    assert [switch["connected"] for switch in network["switches"]] == [True, True, False, True]
    assert not any(AGGREGATIONS[0] in (link["source"], link["destination"]) for link in network["links"])
    assert get(controller, "/v1/health")["status"] == "degraded"


def test_flows_are_the_parts_that_cross_the_network(controller: Controller) -> None:
    controller.ask("POST", "/v1/reads", read_of())
    controller.ask("POST", "/v1/reads", read_of(replicas=[{"host": "10.0.1.1", "port": 7000}]))
    flows = get(controller, "/v1/flows")["flows"]
    assert len(flows) == 1
    assert (flows[0]["source"], flows[0]["source_port"]) == ("10.0.0.1", 7000)
    assert (flows[0]["destination"], flows[0]["destination_port"]) == ("10.0.1.1", 40000)
    assert flows[0]["path"][0] == "10.0.0.1" and flows[0]["path"][-1] == "10.0.1.1"
    assert flows[0]["path_names"][1] == "edge-0"
    assert len(get(controller, "/v1/reads")["reads"]) == 2


def test_reads_can_be_asked_for_by_a_link_that_they_run_over(controller: Controller) -> None:
    controller.ask("POST", "/v1/reads", read_of())
    controller.ask("POST", "/v1/reads", read_of(replicas=[{"host": "10.0.1.1", "port": 7000}]))
    [flow] = get(controller, "/v1/flows")["flows"]
    for one, other in pairwise(flow["path"]):
        for link in (f"{one},{other}", f"{other},{one}"):
            over = get(controller, f"/v1/reads?link={link}")
            assert [read["id"] for read in over["reads"]] == [flow["read_id"]] and over["total"] == 1
    assert get(controller, f"/v1/reads?link={flow['path'][0]},{flow['path'][2]}")["reads"] == []
    for wrong in ("10.0.0.1", "10.0.0.1,", "a,b,c", "10.0.0.1,..%2F..%2F"):
        assert controller.ask("GET", f"/v1/reads?link={wrong}").status_code == 422


@pytest.mark.parametrize("what", ["reads", "flows"])
def test_reads_and_their_flows_come_in_pages_in_the_order_in_which_they_came(controller: Controller,
                                                                             what: str) -> None:
    for port in range(40000, 40205):
        assert controller.ask("POST", "/v1/reads", read_of(client_ports=[port])).status_code == 201
    whole, offset = [], 0
    while offset is not None:
        page = get(controller, f"/v1/{what}?offset={offset}&limit=100")
        assert page["total"] == 205 and len(page[what]) <= 100
        whole += [each["id"] for each in page[what]]
        offset = page["next_offset"]
    assert len(set(whole)) == 205
    unasked = [each["id"] for each in get(controller, f"/v1/{what}")[what]]
    assert unasked == whole[:200], "200, if nobody asks for more"
    assert get(controller, f"/v1/{what}?offset=205") == {what: [], "total": 205, "next_offset": None}
    for wrong in ("limit=0", "limit=501", "offset=-1", "after=x"):
        assert controller.ask("GET", f"/v1/{what}?{wrong}").status_code == 422


def test_health_of_a_controller_without_switches_is_empty() -> None:
    controller = Controller()
    for dpid in (*EDGES, *AGGREGATIONS):
        controller.state.switch_disconnected(dpid)
    assert get(controller, "/v1/health")["status"] == "empty"


def test_health_is_ok_only_once_the_switches_hold_everything_that_is_planned(controller: Controller) -> None:
    controller.measurements.complete_at = time.monotonic()

    def said() -> tuple[str, bool]:
        health = get(controller, "/v1/health")
        return health["status"], health["converged"]

    controller.tables.is_in_force = False
    assert said() == ("converging", False)
    controller.tables.is_in_force = True
    assert said() == ("ok", True)
    controller.state.switch_disconnected(EDGES[0])
    assert said() == ("degraded", True)
    controller.tables.is_in_force = False
    assert said() == ("degraded", False)


def test_health_notices_that_polls_stopped(controller: Controller, monkeypatch: pytest.MonkeyPatch) -> None:
    assert get(controller, "/v1/health")["status"] == "ok"
    controller.measurements.complete_at = -100.0
    health = get(controller, "/v1/health")
    assert health["status"] == "degraded" and health["last_poll_age_seconds"] > 100
