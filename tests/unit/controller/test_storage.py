"""What nameservers say of dataservers, and who of them leads."""

from __future__ import annotations

from typing import Any

import pytest

from speedwell.controller.loops import Loops
from speedwell.controller.services import Services
from speedwell.controller.storage import app as app_module
from speedwell.controller.storage.app import MAX_NAMESERVERS, SILENT_SECONDS, StorageReport
from tests.unit.controller.in_process import Controller


@pytest.fixture(name="controller")
def _controller() -> Controller:
    controller = Controller()
    StorageReport(Services(controller.state, controller.measurements, controller.application, Loops()))
    return controller


def dataserver(number: int, **changes: Any) -> dict[str, Any]:
    return {"id": f"d{number}", "host": f"10.0.0.{number}", "alive": True, "draining": False, "heard_seconds_ago": 0,
            "capacity_bytes": 100, "available_bytes": 50, "replicas": 3, "failed_directories": 0} | changes


def report(address: str, *dataservers: dict[str, Any], leads: bool = True) -> dict[str, Any]:
    return {"address": address, "namespace": {
        "dataservers_known": 9, "dataservers_alive": 8, "files": 1,
        "directories": 2, "capacity_bytes": 300, "available_bytes": 200, "replication": 3,
        "min_replicas": 2, "unwritable_files": 0, "warnings": ["decide"], "dataservers": list(dataservers)}
        if leads else None}


def test_before_any_report_nothing_is_known(controller: Controller) -> None:
    told = controller.ask("GET", "/v1/storage").json
    assert told["nameservers"] == [] and told["namespace"] is None and told["total"] == 0


def test_dataservers_are_told_in_pages_with_the_names_of_their_hosts(controller: Controller) -> None:
    servers = [dataserver(number, alive=number > 1) for number in range(1, 7)]
    assert controller.ask("PUT", "/v1/storage/nameservers", report("n:1", *servers)).status_int == 204
    told = controller.ask("GET", "/v1/storage?limit=5").json
    assert [(each["id"], each["host_name"]) for each in told["dataservers"]] == [
        (f"d{number}", f"10.0.0.{number}") for number in range(1, 6)]
    assert (told["total"], told["next_offset"], told["namespace"]["dataservers_alive"]) == (6, 5, 8)
    assert told["namespace"]["warnings"] == ["decide"]


def test_one_leads_others_stand_by_and_who_says_nothing_is_silent(
        controller: Controller, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(app_module.time, "monotonic", lambda: now[0])

    def states() -> dict[str, str]:
        return {each["address"]: each["state"] for each in controller.ask("GET", "/v1/storage").json["nameservers"]}

    controller.ask("PUT", "/v1/storage/nameservers", report("n:1"))
    controller.ask("PUT", "/v1/storage/nameservers", report("n:2", leads=False))
    assert states() == {"n:1": "leads", "n:2": "stands by"}
    now[0] += SILENT_SECONDS - 1
    controller.ask("PUT", "/v1/storage/nameservers", report("n:2"))
    assert states() == {"n:1": "stands by", "n:2": "leads"}, "only one does"
    now[0] += 2
    assert states() == {"n:1": "silent", "n:2": "leads"}
    for number in range(MAX_NAMESERVERS):
        controller.ask("PUT", "/v1/storage/nameservers", report(f"m:{number}", leads=False))
    assert len(states()) == MAX_NAMESERVERS and "n:1" not in states()


def test_what_makes_no_sense_is_refused_and_changes_nothing(controller: Controller) -> None:
    controller.ask("PUT", "/v1/storage/nameservers", report("n:1", dataserver(1)))
    for wrong in (dataserver(1, available_bytes=-1), dataserver(1, alive="yes"), dataserver(1, host=""),
                  dataserver(1, heard_seconds_ago=-0.1), dataserver(1, more=1)):
        answer = controller.ask("PUT", "/v1/storage/nameservers", report("n:1", wrong))
        assert answer.status_int == 422 and answer.content_type == "application/problem+json"
    assert [each["id"] for each in controller.ask("GET", "/v1/storage").json["dataservers"]] == ["d1"]
