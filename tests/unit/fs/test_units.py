"""Sizes, lengths of time and moments as people read them."""

import pytest

from speedwell.fs import units


@pytest.mark.parametrize(("count", "shown"), [
    (0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536, "1.5 KiB"), (256 << 20, "256.0 MiB"),
    (6815744, "6.5 MiB"), ((1 << 20) - 1, "1.0 MiB"), (5 << 40, "5.0 TiB"), (3 << 60, "3.0 EiB"),
    (5000 << 60, "5000.0 EiB")])
def test_a_size_has_the_unit_that_keeps_it_short(count: int, shown: str) -> None:
    assert units.size(count) == shown


@pytest.mark.parametrize(("seconds", "shown"), [
    (0, "0 s"), (0.5, "0.5 s"), (2.0, "2 s"), (9.99, "10 s"), (59.7, "1 min"), (90, "90 s"),
    (60, "1 min"), (120, "2 min"), (1800, "30 min"), (3661, "1 h 1 min 1 s"), (86400, "1 day"),
    (129600, "1 day 12 h"), (604800, "7 days")])
def test_a_length_of_time_is_exact_and_as_people_say_it(seconds: float, shown: str) -> None:
    assert units.duration(seconds) == shown


@pytest.mark.parametrize(("seconds", "shown"), [
    (0.4, "0.4 s"), (12.3, "12 s"), (3661, "1 h 1 min"), (604799, "6 days 23 h"), (604800, "7 days")])
def test_about_how_long_has_two_units(seconds: float, shown: str) -> None:
    assert units.about(seconds) == shown


def test_a_latency_is_in_milliseconds() -> None:
    assert [units.latency(seconds) for seconds in (0.00125, 0.5, 1.5)] == ["1.25 ms", "500.00 ms", "1.5 s"]


def test_a_moment_is_local_time(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    for zone, shown in (("UTC0", "1970-01-02 00:00"), ("XXX-5:30", "1970-01-02 05:30")):
        with monkeypatch.context() as patched:
            patched.setenv("TZ", zone)
            time.tzset()
            assert units.moment(86400 * 10**9 + 5) == shown
            assert units.moment(86401 * 10**9, seconds=True) == shown + ":01"
    time.tzset()


def test_one_thing_has_the_singular() -> None:
    assert [units.counted(count, "directory") for count in (0, 1, 2)] == [
        "0 directories", "1 directory", "2 directories"]
    assert [units.counted(count, "file") for count in (0, 1, 2)] == ["0 files", "1 file", "2 files"]
