"""Reads that come almost in order are served from one stream, each with the right bytes."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speedwell.fs.client.read.stream import AHEAD_BYTES, SET_ASIDE_BYTES, ReadAhead

CONTENT = random.Random(5).randbytes(SET_ASIDE_BYTES * 3)


class InMemoryReceiver:
    """Delivers `CONTENT` in pieces of at most `most` bytes, in order, like a connection."""

    def __init__(self, stop: int, most: int = 1 << 30) -> None:
        self.position = 0
        self.stop = stop
        self._most = most

    def receive_all(self, view: memoryview) -> int:
        filled = 0
        while filled < len(view) and self.position < self.stop:
            count = min(self._most, len(view) - filled, self.stop - self.position)
            view[filled:filled + count] = CONTENT[self.position:self.position + count]
            self.position += count
            filled += count
        return filled


def read(stream: ReadAhead, offset: int, length: int) -> bytes:
    assert stream.covers(offset, length)
    return stream.read(offset, length)


def make(stop: int = 100_000, most: int = 1 << 30) -> ReadAhead:
    return ReadAhead(InMemoryReceiver(stop, most))  # type: ignore[arg-type]


@given(order=st.permutations(list(range(12))), size=st.integers(1, 500), most=st.integers(1, 700))
def test_overtaking_reads_get_their_own_bytes(order: list[int], size: int, most: int) -> None:
    stream = make(12 * size, most)
    for index in order:
        assert read(stream, index * size, size) == CONTENT[index * size:(index + 1) * size]
    assert stream.receiver.position == 12 * size


@given(cuts=st.lists(st.integers(0, 1000), max_size=10), most=st.integers(1, 300))
def test_sequential_reads_of_any_sizes_give_the_content(cuts: list[int], most: int) -> None:
    stream = make(sum(cuts), most)
    offset = 0
    for cut in cuts:
        if cut:
            assert read(stream, offset, cut) == CONTENT[offset:offset + cut]
        offset += cut


def test_overtaken_bytes_can_be_read_in_parts() -> None:
    stream = make()
    read(stream, 1000, 10)
    for offset, length in ((500, 100), (0, 100), (900, 100), (100, 400), (600, 300)):
        assert read(stream, offset, length) == CONTENT[offset:offset + length]
    assert not stream.covers(0, 1)


def test_bytes_already_handed_out_are_not_covered() -> None:
    stream = make()
    read(stream, 0, 100)
    assert not stream.covers(50, 10)
    assert stream.covers(100, 10)


@pytest.mark.parametrize(("offset", "length", "covered"), [
    (AHEAD_BYTES, 10, True), (AHEAD_BYTES + 1, 10, False), (len(CONTENT) - 5, 5, False)])
def test_a_read_far_ahead_is_a_seek(offset: int, length: int, covered: bool) -> None:
    assert make(len(CONTENT)).covers(offset, length) is covered


def test_a_read_across_the_end_of_the_stream_is_not_covered() -> None:
    assert not make(100).covers(90, 11)
    assert make(100).covers(90, 10)


def test_what_is_set_aside_is_bounded_and_the_oldest_goes_first() -> None:
    stream = make(len(CONTENT))
    step = AHEAD_BYTES
    for index in range(4):  # each read leaves a gap of 4 MiB minus one read behind it
        read(stream, (index + 1) * step - 10, 10)
    assert not stream.covers(0, 10)
    assert read(stream, 3 * step, 100) == CONTENT[3 * step:3 * step + 100]
