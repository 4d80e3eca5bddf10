"""Runs of blocks say of each block where it lies, whatever is laid over what."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from speedwell.fs.dataserver.disk.layout import HOLE, NATURAL, Run, Runs, add, decode, encode, find, overlaid

Places = list[tuple[int, int]]
"""For each block its generation, and its block of the patch file, NATURAL or HOLE."""


def places(runs: Runs) -> Places:
    return [(run.generation, run.position + block if run.position >= 0 else run.position)
            for run in runs for block in range(run.blocks)]


@st.composite
def whole_maps(draw: st.DrawFn) -> Runs:
    """Runs as a version has them: from block 0 on, without a gap, joined."""
    runs: Runs = []
    lengths = draw(st.lists(st.integers(1, 6), max_size=12))
    for blocks in lengths:
        position = draw(st.sampled_from([NATURAL, HOLE, 0, 1, 2, 5]))
        generation = 0 if position == HOLE else draw(st.integers(0, 3))
        add(runs, [Run(runs[-1].end if runs else 0, blocks, generation, position)])
    return runs


@given(runs=whole_maps(), first=st.integers(0, 80), blocks=st.integers(0, 80))
def test_what_is_found_is_what_lies_there(runs: Runs, first: int, blocks: int) -> None:
    found = find(runs, first, first + blocks)
    assert places(found) == places(runs)[first:first + blocks]
    assert all(run.blocks > 0 for run in found)
    assert [run.first for run in found[1:]] == [run.end for run in found[:-1]]


@given(runs=whole_maps(), cuts=st.sets(st.integers(0, 80), max_size=8))
def test_what_is_laid_over_hides_what_was_there_and_nothing_else(runs: Runs, cuts: set[int]) -> None:
    edges = sorted(cuts)
    length = runs[-1].end if runs else 0
    newer = [Run(first, end - first, 9, first) for first, end in zip(edges[::2], edges[1::2], strict=False)
             if first <= length]
    expected = places(runs)
    for run in newer:
        expected[run.first:run.end] = places([run])
    result = overlaid(runs, newer)
    assert places(result) == expected
    assert decode(encode(result)) == result     # without a gap
    assert not any(one.goes_on_in(other) for one, other in pairwise(result))


@given(runs=whole_maps())
def test_a_map_is_read_as_it_was_written(runs: Runs) -> None:
    assert decode(encode(runs)) == runs


def test_a_run_goes_on_only_where_the_file_does() -> None:
    assert Run(0, 2, 1, 5).goes_on_in(Run(2, 1, 1, 7))
    assert Run(0, 2, 1, NATURAL).goes_on_in(Run(2, 1, 1, NATURAL))
    assert not Run(0, 2, 1, 5).goes_on_in(Run(2, 1, 1, 8))
    assert not Run(0, 2, 1, 5).goes_on_in(Run(2, 1, 2, 7))
    assert not Run(0, 2, 1, 5).goes_on_in(Run(3, 1, 1, 7))
    assert not Run(0, 2, 1, NATURAL).goes_on_in(Run(2, 1, 1, 1))
