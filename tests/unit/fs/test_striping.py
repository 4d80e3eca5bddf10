"""Long ranges are dealt out to parts in turns: every byte once, in order, as many to each as it was given."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fs.client.striping import turns

SIZES = st.lists(st.integers(0, 1 << 30), min_size=1, max_size=5).filter(any)


@given(sizes=SIZES, window=st.sampled_from([1 << 16, 1 << 20, 3 << 20]), alignment=st.sampled_from([1, 4096, 65536]))
def test_turns_cover_the_range_once_and_give_each_part_its_size(
        sizes: list[int], window: int, alignment: int) -> None:
    position, given_bytes = 0, [0] * len(sizes)
    for part, start, stop in turns(sizes, max(window, sum(sizes) // 1000), alignment):
        assert start == position < stop
        given_bytes[part] += stop - start
        position = stop
    assert position == sum(sizes)
    assert given_bytes == sizes


@given(sizes=st.lists(st.integers(1 << 20, 1 << 26), min_size=2, max_size=4))
def test_parts_stay_in_step_with_each_other(sizes: list[int]) -> None:
    total, given_bytes = sum(sizes), [0] * len(sizes)
    for part, start, stop in turns(sizes, 1 << 20, 1 << 16):
        given_bytes[part] += stop - start
        for size, so_far in zip(sizes, given_bytes, strict=True):
            assert abs(so_far - size * stop / total) <= (1 << 20) + (len(sizes) << 16)


@pytest.mark.parametrize(("sizes", "expected"), [
    ([300], [(0, 0, 100), (0, 100, 200), (0, 200, 300)]),
    ([100, 100], [(0, 0, 50), (1, 50, 100), (0, 100, 150), (1, 150, 200)]),
    ([150, 50], [(0, 0, 70), (1, 70, 90), (0, 90, 170), (1, 170, 200)]),
    ([195, 5], [(0, 0, 90), (0, 90, 195), (1, 195, 200)]),
])
def test_examples(sizes: list[int], expected: list[tuple[int, int, int]]) -> None:
    assert list(turns(sizes, 100, 10)) == expected
