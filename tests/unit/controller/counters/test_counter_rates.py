"""Rates from counters: over the switch's clock, through resets, gaps and restarts."""

import pytest

from speedwell.controller.counters.measurements import HEADER_BYTES, Counter, FlowCounters, Measurements


def read_all(counter: Counter, readings: list[tuple[float, int]]) -> Counter:
    for duration, value in readings:
        counter.read(value, duration, duration)
    return counter


def test_one_reading_of_a_port_gives_no_rate() -> None:
    assert read_all(Counter(), [(100.0, 5_000_000)]).rate_bps is None


def test_rate_is_bits_over_the_switchs_own_seconds() -> None:
    assert read_all(Counter(), [(100.0, 1_000_000), (100.5, 1_500_000)]).rate_bps == pytest.approx(8_000_000)


def test_rate_forgets_what_lies_before_the_window() -> None:
    counter = read_all(Counter(), [(float(second), 1000 * second) for second in range(10)])
    assert counter.rate_bps == pytest.approx(8000)
    for second in range(10, 13):
        counter.read(9000, float(second), float(second))
    assert counter.rate_bps == 0


def test_latest_rate_tells_of_the_last_interval_alone() -> None:
    counter = read_all(Counter(), [(0.0, 0), (1.0, 1000), (2.0, 1500)])
    assert counter.latest_bps == pytest.approx(4000)
    assert counter.rate_bps == pytest.approx(6000)


def test_rate_over_lost_replies_is_the_average() -> None:
    assert read_all(Counter(), [(0.0, 0), (1.0, 1000), (9.0, 9000)]).rate_bps == pytest.approx(8000)


def test_counter_reset_restarts_the_rate_and_never_goes_negative() -> None:
    counter = read_all(Counter(), [(50.0, 10 ** 9), (51.0, 10 ** 9 + 1000), (1.0, 500)])
    assert counter.rate_bps is None
    counter.read(1500, 2.0, 53.0)
    assert counter.rate_bps == pytest.approx(8000)


def test_smaller_value_with_a_growing_clock_is_a_reset_too() -> None:
    assert read_all(Counter(), [(50.0, 1000), (51.0, 10)]).rate_bps is None


def test_same_reading_twice_changes_nothing() -> None:
    counter = read_all(Counter(), [(1.0, 0), (2.0, 1000), (2.0, 1000)])
    assert counter.rate_bps == pytest.approx(8000)


def test_first_reading_of_a_flow_counts_from_its_installation_and_gives_no_rate() -> None:
    counters = FlowCounters()
    counters.read(1_000_000, 1000, 0.02, 0.5)
    assert counters.transferred_bytes == 1_000_000 - 1000 * HEADER_BYTES
    assert counters.rate_bps is None and counters.latest_bps is None, "it may have been replaced just now"
    counters.read(2_000_000, 2000, 1.02, 1.5)
    assert counters.rate_bps == counters.latest_bps == pytest.approx(8_000_000)


def test_flow_that_was_installed_anew_keeps_what_it_had_transferred() -> None:
    counters = FlowCounters()
    counters.read(1_000_000, 100, 10.0, 10.0)
    counters.read(200_000, 20, 2.0, 14.0)
    assert counters.transferred_bytes == 1_200_000 - 120 * HEADER_BYTES
    counters.read(300_000, 30, 3.0, 15.0)
    assert counters.rate_bps == pytest.approx(800_000)


def test_entry_that_is_replaced_while_its_count_goes_on_is_as_old_as_time_has_passed() -> None:
    counters = FlowCounters()
    counters.read(1_000_000, 0, 1.0, 101.0)
    counters.read(2_000_000, 0, 2.0, 102.0)
    counters.read(3_000_000, 0, 0.2, 103.0)
    assert counters.transferred_bytes == 3_000_000
    assert counters.latest_bps == counters.rate_bps == pytest.approx(8_000_000)
    counters.read(4_000_000, 0, 1.2, 104.3)
    assert counters.latest_bps == pytest.approx(8_000_000)


def test_entry_that_is_replaced_when_it_is_young_is_as_old_as_time_has_passed() -> None:
    counters = FlowCounters()
    counters.read(1_000_000, 0, 0.1, 101.0)
    counters.read(2_000_000, 0, 0.2, 102.0)
    assert counters.latest_bps == pytest.approx(8_000_000)
    counters.read(3_000_000, 0, 1.2, 103.4)
    assert counters.latest_bps == pytest.approx(8_000_000), "the answer was late"


def test_transferred_bytes_are_never_negative() -> None:
    counters = FlowCounters()
    counters.read(60, 2, 0.1, 0.1)
    assert counters.transferred_bytes == 0


def test_ports_that_are_gone_are_forgotten() -> None:
    measurements = Measurements()
    for port_no in (1, 2):
        for duration in (1.0, 2.0):
            measurements.read_port(("a", port_no), int(duration) * 100, int(duration) * 200, duration, duration)
    measurements.keep([("a", 2)])
    assert set(measurements.ports) == {("a", 2)}
    assert measurements.ports["a", 2].received.rate_bps == pytest.approx(800)
    assert measurements.ports["a", 2].sent.rate_bps == pytest.approx(1600)
