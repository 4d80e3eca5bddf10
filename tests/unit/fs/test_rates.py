"""How often one source may do something."""

from hypothesis import given
from hypothesis import strategies as st

from speedwell.fs.rates import (
    MOST_SOURCES,
    REFUSED_BURST,
    REFUSED_PER_SECOND,
    REFUSED_WAIT_SECONDS,
    Rates,
    of_refused,
)


def test_who_is_refused_again_and_again_waits_and_others_do_not() -> None:
    refused = of_refused()
    waits = [refused.take("a", 0.0) for _ in range(int(REFUSED_BURST) + 100)]
    assert waits[int(REFUSED_BURST) - 1] == 0 < waits[int(REFUSED_BURST)] and waits[-1] == REFUSED_WAIT_SECONDS
    assert refused.wait("a", 0.0) and not refused.wait("b", 0.0)
    assert refused.take("b", 0.0) == 0
    later = REFUSED_WAIT_SECONDS + 2 / REFUSED_PER_SECOND
    assert not refused.wait("a", later)
    assert refused.take("a", later) == 0


def test_sources_are_forgotten_the_longest_unheard_first() -> None:
    rates = Rates(1, 1)
    for number in (*range(MOST_SOURCES), 0, MOST_SOURCES):
        rates.take(str(number), 0.0)
    assert len(rates._left) == MOST_SOURCES
    assert not rates.wait("1", 0.0) and rates.wait("0", 0.0)


@given(st.lists(st.floats(0, 0.5), min_size=1, max_size=200), st.floats(1, 100), st.floats(1, 20))
def test_what_waits_as_told_comes_at_the_rate(gaps: list[float], per_second: float, burst: float) -> None:
    rates, now, done = Rates(per_second, burst), 0.0, []
    for gap in gaps:
        now += gap
        done.append(now + rates.take("a", now))
    for first, begin in enumerate(done):
        for last in range(first, len(done)):
            assert last - first + 1 <= burst + per_second * (done[last] - begin) + 1 + 1e-6
