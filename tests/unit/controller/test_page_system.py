"""A new system is one folder (`page_system`) and one line in the list of applications."""

from __future__ import annotations

import json
import math
import re
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import eventlet
import pytest

from speedwell.controller.rest import RestApplication
from speedwell.controller.rest.access import Access
from speedwell.controller.rest.http import Request
from speedwell.controller.rest.problems import NotAuthorised
from speedwell.controller.rest.routes import routes_of
from speedwell.fs.identity.authority import Authority
from speedwell.fs.identity.bundle import Identity, Peer
from speedwell.fs.identity.roles import CONTROLLER, MOUNT, OPERATOR, READER
from tests.unit.controller.forwarding_world import World
from tests.unit.controller.in_process import NothingMore
from tests.unit.controller.page_system.app import PAGE_TABLE, PRIORITY, PageSystem
from tests.unit.controller.simulated_time import SimulatedHub, run_simulated

HERE = Path(__file__).parent
GUIDE = HERE.parents[2] / "docs" / "controller-rooms.md"


def get(rest: RestApplication, url: str) -> Any:
    status, _, body = rest(Request(f"GET {url} HTTP/1.1".encode(), b"", NothingMore()))
    assert status == 200
    return json.loads(body)


def test_its_entry_is_in_every_switch_and_what_that_counts_is_in_its_route(monkeypatch: pytest.MonkeyPatch) -> None:
    def scenario(hub: SimulatedHub) -> None:
        world = World(hub, monkeypatch)
        PageSystem(world.services).start()
        eventlet.sleep(5)
        for dpid, switch in world.network.switches.items():
            entries = [entry for entry in switch.flows.values() if entry.table == PAGE_TABLE.number]
            assert sorted(entry.priority for entry in entries) == [0, PRIORITY], dpid
        assert world.taken(), "packets cross the table and arrive"
        [request] = [each for each in world.measurements.requests if each.name == "page"]
        dpid, *_ = request.switches()
        request.handle(dpid, [SimpleNamespace(priority=PRIORITY, packet_count=7),
                              SimpleNamespace(priority=0, packet_count=9)], hub.now)
        assert get(world.services.get(RestApplication), "/v1/page") == {"packets": {dpid: 7}}

    run_simulated(scenario)


@pytest.mark.parametrize(("role", "may"), [(READER, True), (OPERATOR, True), (MOUNT, False)])
def test_its_route_is_for_readers_without_a_word_elsewhere(tmp_path: Path, role: str, may: bool) -> None:
    authority = Authority.make(tmp_path / "identity")
    authority.ensure([(CONTROLLER, CONTROLLER)], "127.0.0.1")
    access = Access(Identity(authority.directory / CONTROLLER), 100)
    [own] = routes_of(object.__new__(PageSystem))
    request = Request(b"GET /v1/page HTTP/1.1", b"", NothingMore())
    request.sender = Peer(role, role, "1", math.inf)
    with nullcontext() if may else pytest.raises(NotAuthorised, match="is for operator and reader"):
        access.require(request, own)


def test_the_guide_shows_it_as_it_is() -> None:
    shown = dict(re.findall(r"<!-- file: (\S+) -->\n```python\n(.*?)```", GUIDE.read_text(), re.DOTALL))
    assert shown.keys() == {"page_system/app.py", "page_system/policy.py"}
    assert all(text == (HERE / name).read_text() for name, text in shown.items())
