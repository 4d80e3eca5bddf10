"""Hosts measure instead of switches: what their heartbeats change, and what they never do."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from speedwell.coflow.host_heartbeat import HostHeartbeat, encode
from speedwell.controller.counters.host_heartbeats import ALLOWED_SKEW_SECONDS, MAX_SENDERS, MOST_OF_CAPACITY
from speedwell.controller.counters.poller import EventMeasured
from speedwell.controller.errors import InvalidSettings
from speedwell.controller.settings import load_settings
from tests.unit.controller.in_process import CAPACITY_BPS, HOSTS, Controller

KEY = b"k" * 32
WRITER, BUSY = "10.0.0.1", "10.0.1.1"
SECOND_BYTES = int(0.9 * CAPACITY_BPS / 8)
MOST = (1 << 64) - 1


class Site:
    def __init__(self, directory: Path, measurements: str = "heartbeats") -> None:
        (directory / "key").write_bytes(KEY)
        self.controller = Controller(coflow_key_file=directory / "key", placement_measurements=measurements)
        self.controller.coflows.send_event_to_observers = (
            lambda event, state=None: self.controller.placements.host_counted(event))

    def beat(self, host: str, uptime: float, received_bytes: int, sent_bytes: int = 0, sender: int = 7,
             late_seconds: float = 0.0, key: bytes = KEY) -> None:
        self.controller.coflows.receive(encode(HostHeartbeat(
            host, sender, round((time.time() - late_seconds) * 1e6), round(uptime * 1e6), received_bytes,
            sent_bytes), key))

    def busy(self, host: str = BUSY, **changes: Any) -> None:
        for second in range(3):
            self.beat(host, 100.0 + second, SECOND_BYTES * second, **changes)

    def measured_bps(self) -> dict[Any, float]:
        estimates = self.controller.placements._policy._estimates._estimates  # type: ignore[attr-defined]
        return {link: estimate.measured_bps for link, estimate in estimates.items() if estimate.measured_bps}

    def count(self, outcome: str) -> float:
        return self.controller.placements._metrics.heartbeats.labels(outcome)._value.get()

    def destinations(self) -> list[str]:
        answer = self.controller.ask("POST", "/v1/placements", {
            "files": [{"writer": WRITER, "size_bytes": 0, "replicas": 1}],
            "candidates": [{"host": host} for host in HOSTS if host != WRITER]})
        placement, = answer.json["placements"]
        return [destination["host"] for destination in placement["destinations"]]


@pytest.fixture(name="site")
def _site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_a_replica_keeps_off_a_host_that_says_its_link_is_busy(site: Site) -> None:
    site.busy("10.0.0.2")
    assert site.measured_bps() == {(HOSTS["10.0.0.2"], "10.0.0.2"): pytest.approx(0.9 * CAPACITY_BPS)}
    for _ in range(10):
        assert site.destinations() != ["10.0.0.2"]


def test_what_hosts_receive_adds_up_to_the_load_above_them(site: Site) -> None:
    site.busy("10.0.1.1")
    site.busy("10.0.1.2")
    assert site.destinations() == ["10.0.0.2"]      # in the writer's rack, as the way to the other one is taken


def test_switches_do_not_measure_beside_hosts_nor_hosts_beside_switches(tmp_path: Path) -> None:
    by_hosts, by_switches = Site(tmp_path), Site(tmp_path, "switches")
    by_switches.busy()
    assert by_switches.measured_bps() == {}
    key = by_hosts.controller.state.hosts[BUSY].port_key
    for second in range(3):
        by_hosts.controller.measurements.read_port(key, 0, SECOND_BYTES * second, float(second), 2000.0 + second)
    by_hosts.controller.placements.measured(EventMeasured(2000.0))
    assert by_hosts.measured_bps() == {}


def test_missing_heartbeats_are_made_up_for_by_the_next(site: Site) -> None:
    site.beat(BUSY, 100.0, 0)
    site.beat(BUSY, 104.0, 4 * SECOND_BYTES)
    assert site.measured_bps() == {(HOSTS[BUSY], BUSY): pytest.approx(0.9 * CAPACITY_BPS)}


def test_one_that_was_overtaken_and_one_that_comes_twice_are_late(site: Site) -> None:
    site.busy()
    before = site.measured_bps()
    site.beat(BUSY, 101.5, 10 * SECOND_BYTES)
    site.beat(BUSY, 102.0, 10 * SECOND_BYTES)
    assert site.measured_bps() == before
    assert site.count("late") == 2


def test_counters_that_began_anew_tell_nothing_once(site: Site) -> None:
    site.busy()
    before = site.measured_bps()
    site.beat(BUSY, 110.0, 0)
    assert site.measured_bps() == before
    site.beat(BUSY, 111.0, 0)
    assert site.measured_bps() != before


def test_several_processes_of_a_host_may_tell_but_not_any_number(site: Site) -> None:
    for sender in range(1, MAX_SENDERS + 3):
        site.busy(sender=sender)
    assert site.measured_bps() == {(HOSTS[BUSY], BUSY): pytest.approx(0.9 * CAPACITY_BPS)}
    assert site.count("crowded") == 2 * 3


def test_what_hosts_told_before_the_controller_began_or_led_counts_for_nothing(site: Site) -> None:
    site.busy(late_seconds=5.0)
    assert site.measured_bps() == {} and site.count("taken") == 0
    site.busy()
    assert site.measured_bps() and site.count("taken") == 3
    for each in site.controller.state.leadership.on_change:     # it takes over from another one
        each()
    site.busy(late_seconds=1.0, sender=8)
    assert site.count("taken") == 3
    site.busy(sender=8)
    assert site.count("taken") == 6


def test_what_a_host_whose_clock_is_ahead_told_is_not_taken_again_after_a_restart(tmp_path: Path) -> None:
    before = Site(tmp_path)
    before.busy(late_seconds=-20.0)
    assert before.count("taken") == 3
    after = Site(tmp_path)
    after.busy(late_seconds=-20.0)      # within the second that is kept beforehand
    assert after.measured_bps() == {} and after.count("taken") == 0
    after.busy(late_seconds=-25.0)
    assert after.measured_bps() and after.count("taken") == 3, "its sender goes on"


def test_a_heartbeat_counts_where_our_clock_was_set_back(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() - 3600)
    site.busy()
    assert site.count("taken") == 3


def test_without_a_key_nobody_can_sign_heartbeats() -> None:
    with pytest.raises(InvalidSettings, match=r"placement_measurements.*coflow_key_file"):
        load_settings(placement_measurements="heartbeats")
    with pytest.raises(InvalidSettings, match="placement_measurements"):
        load_settings(placement_measurements="guesses")


counters = st.integers(0, MOST)
wrong = st.one_of(
    st.fixed_dictionaries({"host": st.just(BUSY), "late_seconds": st.one_of(
        st.floats(ALLOWED_SKEW_SECONDS + 1, 1e8), st.floats(-1e8, -ALLOWED_SKEW_SECONDS - 1)),
        "uptime": st.floats(0, 1e6), "received_bytes": counters, "sent_bytes": counters}),
    st.fixed_dictionaries({"host": st.ip_addresses(v=4).map(str).filter(lambda host: host not in HOSTS),
                           "uptime": st.floats(0, 1e6), "received_bytes": counters, "sent_bytes": counters}),
    st.fixed_dictionaries({"host": st.just(BUSY), "uptime": st.floats(0, 102.1), "received_bytes": counters,
                           "sent_bytes": counters}),
    st.fixed_dictionaries({"host": st.just(BUSY), "uptime": st.floats(102.5, 103.5), "sent_bytes": counters,
                           "received_bytes": st.integers(int(2 * SECOND_BYTES + 2 * MOST_OF_CAPACITY
                                                             * CAPACITY_BPS / 8), MOST)}),
    st.fixed_dictionaries({"host": st.just(BUSY), "uptime": st.floats(103, 1e6), "received_bytes": counters,
                           "sent_bytes": counters, "key": st.just(b"another key of 32 bytes or so...")}))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=200)
@given(st.lists(wrong, max_size=5))
def test_heartbeats_from_the_past_from_nobody_and_of_absurd_counters_change_nothing(
        tmp_path: Path, beats: list[dict[str, Any]]) -> None:
    site = Site(tmp_path)
    site.busy()
    before = site.measured_bps()
    for beat in beats:
        site.beat(**beat)
    assert site.measured_bps() == before
    assert site.count("taken") == 3
    site.beat(BUSY, 103.0, 3 * SECOND_BYTES)
    assert site.measured_bps() == {(HOSTS[BUSY], BUSY): pytest.approx(0.9 * CAPACITY_BPS)}
    assert site.count("taken") == 4
