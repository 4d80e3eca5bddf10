"""What keeps a fabric from counting as ready, by what its controller says."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import requests

from speedwell.controller.tables.full_tables import FullTables
from speedwell.topo.emulation import discovery
from speedwell.topo.emulation.errors import NotDiscovered
from speedwell.topo.fabric import spine_leaf

FABRIC = spine_leaf(leaves=2, spines=1, hosts_per_leaf=1, host_bps=1e9)


def controller(**health: Any) -> requests.Session:
    """The answers of one that knows all hosts."""
    answers = {"/v1/hosts": {"hosts": [{"ip": host.ip} for host in FABRIC.hosts]}, "/v1/health": health}
    return cast(requests.Session, SimpleNamespace(
        get=lambda url, timeout: SimpleNamespace(json=lambda: answers[url.removeprefix("http://c")])))


def full(age_seconds: float) -> dict[str, Any]:
    """As the controller tells it."""
    tables = FullTables(cast(Any, SimpleNamespace(name_of=lambda dpid: "spine0")))
    tables.refused("1", 0.0)
    [trouble] = tables.troubles(age_seconds)
    return {"name": trouble.name, "age_seconds": trouble.age_seconds}


def test_a_full_switch_is_told_and_waited_for_no_longer() -> None:
    told: list[str] = []
    discovery.wait_for_hosts("http://c", FABRIC, controller(converged=False, troubles=[full(6.0)]), told.append)
    assert told == ["warning: entries are missing in the flow tables of spine0, which are full"]


def test_nothing_is_told_once_all_is_confirmed() -> None:
    told: list[str] = []
    discovery.wait_for_hosts("http://c", FABRIC, controller(converged=True, troubles=[full(6.0)]), told.append)
    assert told == []


@pytest.mark.parametrize("troubles", [[], [full(1.0)], [{"name": "polls", "age_seconds": 9.0}]])
def test_switches_that_have_not_confirmed_are_waited_for(
        troubles: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "DISCOVERY_TIMEOUT_SECONDS", 0.01)
    with pytest.raises(NotDiscovered, match="have not confirmed"):
        discovery.wait_for_hosts("http://c", FABRIC, controller(converged=False, troubles=troubles), print)


def test_who_takes_no_warning_needs_switches_that_hold_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "DISCOVERY_TIMEOUT_SECONDS", 0.01)
    with pytest.raises(NotDiscovered, match="have not confirmed"):
        discovery.wait_for_hosts("http://c", FABRIC, controller(converged=False, troubles=[full(6.0)]))
