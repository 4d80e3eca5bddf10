"""What switches hold, told by owner: a whole controller asks switches that are simulated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import eventlet
import pytest
from ryu.ofproto import ofproto_v1_3

from speedwell.controller.rest.http import Request
from speedwell.controller.switches import wire
from speedwell.controller.switches.entries import ETH_IPV4, FlowEntry, Output, SetField, ToGroup, match
from speedwell.controller.tables.contents import action_text, match_fields
from speedwell.topo.fabric import spine_leaf
from tests.unit.controller.house import House
from tests.unit.controller.in_process import NothingMore
from tests.unit.controller.simulated_time import SimulatedHub, run_simulated

STRANGER = FlowEntry(40, 7, match(eth_type=ETH_IPV4, ipv4_dst=("10.9.0.0", "255.255.0.0")), (Output(2),),
                     cookie=0x1234)


def get(house: House, url: str) -> Any:
    status, _, body = house.life.rest(Request(f"GET {url} HTTP/1.1".encode(), b"", NothingMore()))
    return status, json.loads(body)


def add(house: House, dpid: str, entry: FlowEntry) -> None:
    """Have a switch hold an entry that the controller did not send."""
    message = wire.flow_mod(entry, ofproto_v1_3.OFPFC_ADD)
    message.set_xid(1)
    message.serialize()
    house.switches[dpid].take(bytes(message.buf))


def identity(entry: dict[str, Any]) -> tuple[Any, ...]:
    return entry["table"], entry["priority"], entry["match"], entry["actions"], entry["cookie"]


def run_scenario(patch: pytest.MonkeyPatch, directory: Path, scenario: Any) -> None:
    def run(hub: SimulatedHub) -> None:
        house = House(hub, patch, directory, spine_leaf(leaves=2, spines=2, hosts_per_leaf=2), 1)
        eventlet.sleep(5)
        for place in house.places:
            house.announce(place)
        eventlet.sleep(5)
        scenario(house)
        house.end()

    run_simulated(run)


def test_every_entry_is_counted_for_its_owner(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def scenario(house: House) -> None:
        first, second, third, _ = sorted(house.network.hosts)
        status, before = get(house, "/v1/entries")
        assert status == 200 and set(before["entries"]) == {"base"}
        house.read(first, [third], 1)       # served by a host of the other leaf
        house.report([(second, third)])
        edge = house.network.fabric.edge_switch_of(first).dpid_hex
        add(house, edge, STRANGER)
        former = FlowEntry(40, 300, match(eth_type=ETH_IPV4, ipv4_dst="10.0.0.77"), cookie=0x5710 << 48 | 99)
        add(house, edge, former)
        eventlet.sleep(1.5)
        _, counts = get(house, "/v1/entries")
        assert {name: count for name, count in counts["entries"].items() if name != "base"} == {
            "reads": 1, "coflows": 1, "strangers": 1, "former": 1}
        assert counts["total"] == sum(len(switch.flows) for switch in house.switches.values())
        for each in counts["switches"]:
            assert each["total"] == len(house.switches[each["dpid"]].flows) == sum(each["entries"].values())
            assert each["problem"] is None and each["switch_name"] in house.network.dpid_of

    run_scenario(monkeypatch, tmp_path, scenario)


def test_a_switchs_entries_come_one_by_one_in_pages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def scenario(house: House) -> None:
        edge = house.network.fabric.edge_switch_of(min(house.network.hosts)).dpid_hex
        add(house, edge, STRANGER)
        url = f"/v1/switches/{edge}/entries"
        _, whole = get(house, f"{url}?limit=500")
        assert whole["total"] == len(whole["entries"]) == len(house.switches[edge].flows)
        assert whole["next_offset"] is None
        pages, offset = [], 0
        while offset is not None:
            _, page = get(house, f"{url}?limit=7&offset={offset}")
            pages += page["entries"]
            offset = page["next_offset"]
        assert [identity(entry) for entry in pages] == [identity(entry) for entry in whole["entries"]]
        _, strangers = get(house, f"{url}?owner=strangers")
        found, = strangers["entries"]
        assert (found["match"], found["actions"]) == (
            {"eth_type": "0x0800", "ipv4_dst": "10.9.0.0/255.255.0.0"}, ["output 2"])
        assert (found["table"], found["table_name"], found["priority"]) == (40, "ROUTES", 7)
        assert found["cookie"] == f"{0x1234:016x}"

    run_scenario(monkeypatch, tmp_path, scenario)


def test_a_switch_that_is_away_or_silent_is_told_as_such(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def scenario(house: House) -> None:
        silent, away, *others = sorted(house.switches)
        house.silence(silent, 8.0)
        house.disconnect(away)
        eventlet.sleep(0.1)
        status, counts = get(house, "/v1/entries")
        problems = {each["dpid"]: each["problem"] for each in counts["switches"]}
        assert status == 200 and problems[silent] and not any(problems[dpid] for dpid in others)
        assert away not in problems
        assert get(house, f"/v1/switches/{away}/entries")[0] == 503
        assert get(house, "/v1/switches/77/entries")[0] == 404
        assert get(house, f"/v1/switches/{others[0]}/entries?owner=")[0] == 422

    run_scenario(monkeypatch, tmp_path, scenario)


def test_matches_and_actions_are_told_in_words() -> None:
    assert match_fields(match(eth_type=0x8847, mpls_label=77)) == {"eth_type": "0x8847", "mpls_label": "77"}
    assert [action_text(action) for action in (Output(3), Output(0xFFFFFFFD), ToGroup(0x57000001),
                                               SetField("eth_dst", "02:00:0a:00:00:01"), "OFPActionNobodyKnows()")
            ] == ["output 3", "output controller", "group 0x57000001", "set eth_dst 02:00:0a:00:00:01",
                  "OFPActionNobodyKnows()"]
