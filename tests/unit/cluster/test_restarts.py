"""When a process that ended is started again."""

from speedwell.cluster.restarts import FIRST_PAUSE_SECONDS, HEALTHY_SECONDS, LONGEST_PAUSE_SECONDS, Restarts


def test_one_that_ran_for_long_is_started_again_at_once_each_time() -> None:
    restarts, now = Restarts(), 0.0
    for number in range(1, 4):
        restarts.ended("killed", now)
        assert restarts.is_due(now)
        restarts.started(now)
        assert not restarts.is_due(now + 1000)
        assert (restarts.count, restarts.failures) == (number, 0)
        now += HEALTHY_SECONDS


def test_one_that_ends_soon_or_does_not_start_waits_longer_each_time_up_to_a_limit() -> None:
    restarts, now, pauses = Restarts(), 0.0, []
    restarts.ended("killed", now)
    for number in range(40):
        restarts.started(now) if number % 2 else restarts.failed("port taken", now)
        if number % 2:
            restarts.ended("ended", now)
        assert restarts.due_seconds is not None
        pauses.append(restarts.due_seconds - now)
        assert not restarts.is_due(restarts.due_seconds - 0.01)
        now = restarts.due_seconds
    assert pauses[:3] == [FIRST_PAUSE_SECONDS, 2 * FIRST_PAUSE_SECONDS, 4 * FIRST_PAUSE_SECONDS]
    assert pauses == sorted(pauses)
    assert pauses[-1] == LONGEST_PAUSE_SECONDS


def test_one_that_lives_again_is_forgiven() -> None:
    restarts = Restarts()
    for _ in range(10):
        restarts.failed("port taken", 0.0)
    restarts.started(100.0)
    restarts.ended("killed", 100.0 + HEALTHY_SECONDS)
    assert restarts.failures == 0
    assert restarts.is_due(100.0 + HEALTHY_SECONDS)
