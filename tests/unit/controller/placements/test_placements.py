"""`/v1/placements` on a small fabric: what it answers, what it refuses, and what it expects for how long."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any

import eventlet
import pytest

from speedwell.controller.counters.poller import EventMeasured
from speedwell.controller.errors import InvalidSettings
from speedwell.controller.loops import TURN_SECONDS
from speedwell.controller.placements import api, app, book
from speedwell.controller.policy.placements.rack_aware import RackAware
from speedwell.controller.policy.placements.request import Placement, PlacementRequest
from speedwell.controller.settings import load_settings
from tests.unit.controller.in_process import CAPACITY_BPS, HOSTS, Controller

WRITER = "10.0.0.1"
FILES = 8
SECONDS_AT_FULL_RATE = 10.0
SIZE_BYTES = int(CAPACITY_BPS * SECONDS_AT_FULL_RATE / 8)


@pytest.fixture(name="controller")
def _controller() -> Controller:
    return Controller()


@pytest.fixture(name="clock")
def _clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]

    class Clock:
        monotonic = staticmethod(lambda: now[0])

    for module in (app, api):
        monkeypatch.setattr(module, "time", Clock)
    return now


def body(*files: dict[str, Any], candidates: Any = ...) -> dict[str, Any]:
    return {"files": list(files) or [file()],
            "candidates": [{"host": host} for host in HOSTS] if candidates is ... else candidates}


def file(**changes: Any) -> dict[str, Any]:
    return {"writer": WRITER, "size_bytes": SIZE_BYTES, "replicas": 2} | changes


def place(controller: Controller, *files: dict[str, Any], candidates: Any = ...) -> list[dict[str, Any]]:
    answer = controller.ask("POST", "/v1/placements", body(*files, candidates=candidates))
    assert answer.status_code == 200, answer.text
    placements: list[dict[str, Any]] = answer.json["placements"]
    return placements


def expected(controller: Controller) -> list[dict[str, Any]]:
    placements: list[dict[str, Any]] = controller.ask("GET", "/v1/placements").json["placements"]
    return placements


def hosts_of(placement: dict[str, Any]) -> list[str]:
    return [destination["host"] for destination in placement["destinations"]]


def measure(controller: Controller, host: str, rate_bps: float) -> None:
    """The switch sends so much to a host from now on, as two polls show."""
    key = controller.state.hosts[host].port_key
    for second in range(2):
        controller.measurements.read_port(key, 0, int(rate_bps / 8 * second), float(second), 2000.0 + second)
    controller.placements.measured(EventMeasured(2000.0))


def test_replicas_start_at_the_writer_and_lie_in_two_racks_read_off_the_fabric(controller: Controller) -> None:
    placement, = place(controller)
    first, second = hosts_of(placement)
    assert first == WRITER and HOSTS[second] != HOSTS[first]
    assert placement["passed_over"].keys() == HOSTS.keys() - {first, second}
    assert placement["rate_bps"] == CAPACITY_BPS
    assert placement["expected_seconds"] == pytest.approx(SECONDS_AT_FULL_RATE)
    assert placement["destinations"][1]["residual_bps"] == CAPACITY_BPS


@pytest.mark.parametrize("busy", ["10.0.1.1", "10.0.1.2"])
def test_a_replica_keeps_off_a_link_that_the_switches_measured_to_be_busy(controller: Controller, busy: str) -> None:
    measure(controller, busy, 0.9 * CAPACITY_BPS)
    for _ in range(3):
        assert busy not in hosts_of(place(controller, file(size_bytes=0))[0])


def test_one_replica_needs_one_rack(controller: Controller) -> None:
    assert hosts_of(place(controller, file(replicas=1))[0]) == [WRITER]


def test_of_several_sources_sinbad_plus_takes_the_one_with_a_free_way_up() -> None:
    controller = Controller(placement_policy="sinbad-plus")
    key = controller.state.hosts[WRITER].port_key
    for second in range(2):
        controller.measurements.read_port(key, int(CAPACITY_BPS / 8 * second), 0, float(second), 2000.0 + second)
    controller.placements.measured(EventMeasured(2000.0))
    candidates = [{"host": "10.0.1.1"}, {"host": "10.0.1.2"}]
    placement, = place(controller, file(replicas=1, sources=[WRITER, "10.0.0.2"], expected_reads=2.5),
                       candidates=candidates)
    assert placement["source"] == "10.0.0.2"
    placement, = place(controller, file(replicas=1, sources=["10.9.9.9", "10.0.0.2"]), candidates=candidates)
    assert placement["source"] == "10.0.0.2", "nobody knows the other's way up"
    placement, = place(controller, file(replicas=1, sources=["10.9.9.9"]), candidates=candidates)
    assert placement["source"] == WRITER
    placement, = place(Controller(), file(replicas=1, sources=["10.0.0.2"]), candidates=candidates)
    assert placement["source"] == WRITER


def test_files_of_one_request_keep_off_each_other(controller: Controller) -> None:
    placements = place(controller, *[file(writer="10.0.0.1"), file(writer="10.0.0.2")])
    assert len({host for placement in placements for host in hosts_of(placement)}) == 4


def test_a_placement_is_expected_for_its_duration_and_no_longer(controller: Controller, clock: list[float]) -> None:
    placement, = place(controller)
    clock[0] += SECONDS_AT_FULL_RATE - 1
    listed, = expected(controller)
    assert (listed["id"], listed["destinations"]) == (placement["id"], hosts_of(placement))
    assert listed["age_seconds"] == pytest.approx(SECONDS_AT_FULL_RATE - 1)
    clock[0] += 1
    assert expected(controller) == []
    assert controller.ask("DELETE", f"/v1/placements/{placement['id']}").status_code == 404


def test_a_transfer_that_is_over_is_expected_no_more(controller: Controller) -> None:
    placement, = place(controller)
    assert controller.ask("DELETE", f"/v1/placements/{placement['id']}").status_code == 204
    assert expected(controller) == []
    again, = place(controller)
    assert again["rate_bps"] == CAPACITY_BPS


@pytest.mark.parametrize(("changes", "constraint"), [
    ({"replicas": 5}, "hosts"), ({"replicas": 4, "least_racks": 3}, "racks"),
    ({"least_racks": 2, "least_pods": 2}, "pods"),
    ({"candidates": [{"host": host, "free_bytes": SIZE_BYTES - 1} for host in HOSTS]}, "space")])
def test_a_constraint_that_nothing_fulfils_is_named_and_the_other_files_are_placed(
        controller: Controller, changes: dict[str, Any], constraint: str) -> None:
    refused, placed = place(controller, file(**changes), file())
    assert refused["refused"]["constraint"] == constraint and refused["id"] is None
    assert not refused["destinations"]
    assert placed["refused"] is None and len(placed["destinations"]) == 2
    assert len(expected(controller)) == 1


def test_space_racks_and_disks_that_the_caller_names_count(controller: Controller) -> None:
    candidates = [{"host": host, "rack": rack, "disk_bps": 1e6, "free_bytes": free}
                  for host, rack, free in (("10.0.0.1", "a", SIZE_BYTES), ("10.0.0.2", "b", SIZE_BYTES),
                                           ("10.0.1.1", "c", SIZE_BYTES - 1))]
    placement, = place(controller, candidates=candidates)
    assert hosts_of(placement) == ["10.0.0.1", "10.0.0.2"]
    assert placement["rate_bps"] == 1e6
    assert "bytes free" in placement["passed_over"]["10.0.1.1"]


@pytest.mark.parametrize(("wrong", "field"), [
    ({"files": []}, "files"),
    ({"files": [file()] * 65}, "files"),
    ({"files": [file(replicas=0)]}, "files[0].replicas"),
    ({"files": [file(least_racks=3)]}, "files[0]"),
    ({"files": [file(size_bytes=-1)]}, "files[0].size_bytes"),
    ({"files": [file(size_bytes=1 << 51)]}, "files[0].size_bytes"),
    ({"files": [file(writer="127.0.0.1")]}, "files[0].writer"),
    ({"files": [file(sources=["nobody"])]}, "files[0].sources[0]"),
    ({"files": [file(sources=["10.0.0.2"] * 17)]}, "files[0].sources"),
    ({"files": [file(expected_reads=-1)]}, "files[0].expected_reads"),
    ({"files": [file(candidates=[{"host": WRITER}, {"host": WRITER}])]}, "files[0]"),
    ({"candidates": None}, ""),
    ({"candidates": [{"host": WRITER}, {"host": WRITER}]}, "candidates"),
    ({"candidates": [{"host": WRITER, "disk_bps": 0.0}]}, "candidates[0].disk_bps"),
    ({"candidates": [{"host": WRITER, "free_bytes": -1}]}, "candidates[0].free_bytes"),
    ({"candidates": [{"host": WRITER, "speed": 1}]}, "candidates[0].speed"),
])
def test_what_makes_no_sense_is_refused_by_its_field_and_changes_nothing(
        controller: Controller, wrong: dict[str, Any], field: str) -> None:
    answer = controller.ask("POST", "/v1/placements", body() | wrong)
    assert answer.status_code == 422
    assert field in [error["field"] for error in answer.json["errors"]]
    assert expected(controller) == []


def test_placements_come_in_pages(controller: Controller) -> None:
    placed = [each["id"] for each in place(controller, file(), file(), file())]
    first, second = (controller.ask("GET", f"/v1/placements?limit=2&offset={offset}").json for offset in (0, 2))
    assert [each["id"] for page in (first, second) for each in page["placements"]] == placed
    assert (first["next_offset"], second["next_offset"], first["total"]) == (2, None, 3)


def test_ten_thousand_placements_leave_nothing_when_their_time_is_over(
        controller: Controller, clock: list[float]) -> None:
    hosts = sorted(HOSTS)
    for number in range(10_000):
        clock[0] += 0.01
        place(controller, file(writer=hosts[number % 4], size_bytes=10_000))
    assert len(expected(controller)) < 1000
    clock[0] += 60
    assert expected(controller) == []
    assert controller.placements._policy.reserved(clock[0]) == 0


def test_more_than_can_be_expected_is_refused_until_there_is_room(
        controller: Controller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(book, "MAX_EXPECTED", 2)
    first, _ = place(controller, file(), file())
    answer = controller.ask("POST", "/v1/placements", body())
    assert (answer.status_code, answer.json["type"]) == (503, "urn:speedwell:problem:too-many-placements")
    controller.ask("DELETE", f"/v1/placements/{first['id']}")
    place(controller)


def test_a_link_that_goes_is_expected_to_carry_nothing_and_a_host_that_left_is_passed_over(
        controller: Controller) -> None:
    placement, = place(controller)
    gone = hosts_of(placement)[1]
    controller.state.remove_host(gone)
    again, = place(controller)
    assert again["passed_over"][gone] == "not attached to the network"
    assert len(hosts_of(again)) == 2


def test_the_policy_is_the_one_of_the_settings() -> None:
    assert type(Controller(placement_policy="rack-aware").placements._policy) is RackAware
    with pytest.raises(InvalidSettings, match="placement policy 'nowhere' is not one of sinbad"):
        load_settings(placement_policy="nowhere")


def test_others_run_between_the_choices_of_one_request(controller: Controller) -> None:
    """Each choice takes longer than a turn: none begins before others had theirs, and no time runs backwards."""
    choose, chosen, turns = controller.placements._policy.place, list[float](), list[int]()

    def slowly(transfer_id: object, request: PlacementRequest, now: float) -> Placement:
        time.sleep(2 * TURN_SECONDS)
        chosen.append(now)
        return choose(transfer_id, request, now)

    def run_beside() -> None:
        while len(chosen) < 2 * FILES:
            turns.append(len(chosen))
            eventlet.sleep(0)

    controller.placements._policy.place = slowly    # type: ignore[method-assign]
    beside = eventlet.spawn(run_beside)
    also = eventlet.spawn(place, controller, *[file()] * FILES)
    assert len(place(controller, *[file()] * FILES)) == len(also.wait()) == FILES
    beside.wait()
    assert max(after - before for before, after in pairwise(turns)) <= 2, "one choice of each request"
    assert chosen == sorted(chosen)
    assert len({placement["id"] for placement in expected(controller)}) == 2 * FILES


def test_files_that_are_being_placed_count_where_there_is_no_space_for_more(
        controller: Controller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(book, "MAX_EXPECTED", FILES)
    choose, refused = controller.placements._policy.place, list[int]()

    def and_another_asks(transfer_id: object, request: PlacementRequest, now: float) -> Placement:
        refused.append(controller.ask("POST", "/v1/placements", body()).status_code)
        return choose(transfer_id, request, now)

    controller.placements._policy.place = and_another_asks    # type: ignore[method-assign]
    assert len(place(controller, *[file()] * FILES)) == FILES and set(refused) == {503}
