"""A range in pieces: every byte comes once and in order, whoever brings it, whatever is given back."""

import random

from hypothesis import example, given, settings
from hypothesis import strategies as st

from speedwell.fs.checksums import BLOCK_BYTES
from speedwell.fs.client.read.pieces import PIECE_BYTES, WINDOW_BYTES, Pieces


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 3 << 20), st.integers(1, 12 << 20), st.integers(1, 5), st.integers(0, 1 << 32))
@example(offset=0, size=11862016, connections=1, seed=1)     # what is given back begins beyond the window
def test_every_byte_comes_once_and_in_order(offset: int, size: int, connections: int, seed: int) -> None:
    chance = random.Random(seed)
    content = random.Random(size).randbytes(size)
    pieces = Pieces(offset, offset + size)
    taken: list[tuple[int, int]] = []
    got = bytearray()
    view = memoryview(bytearray(300_000))
    while len(got) < size:
        action = chance.choice(["take", "take", "deliver", "break", "read"])
        if action == "take":
            piece = pieces.take(connections)
            if piece is not None:
                assert offset <= piece[0] < piece[1] <= offset + size
                assert piece[1] <= pieces.position + WINDOW_BYTES + PIECE_BYTES and piece[1] - piece[0] <= PIECE_BYTES
                taken.append(piece)
        elif taken and action in ("deliver", "break"):
            start, stop = taken.pop(chance.randrange(len(taken)))
            reached = stop if action == "deliver" else chance.randint(start, stop)
            pieces.deliver(start, memoryview(content)[start - offset:reached - offset])
            pieces.give_back(reached, stop)
        elif action == "read":
            count = pieces.read_into(view[:chance.randint(1, len(view))])
            got += view[:count]
            assert pieces.position == offset + len(got)
    assert got == content
    assert pieces.missing == 0 and pieces.all_taken and pieces.take(1) is None and pieces.read_into(view) == 0


def test_pieces_meet_at_blocks_and_become_shorter_towards_the_end() -> None:
    pieces, lengths = Pieces(1000, 5_000_000), []
    while (piece := pieces.take(2)) is not None:
        start, stop = piece
        assert stop % BLOCK_BYTES == 0 or stop == 5_000_000
        lengths.append(stop - start)
    assert lengths[0] > 8 * lengths[-1] and sum(lengths) == 4_999_000
    assert pieces.all_taken and pieces.missing == 4_999_000


def test_what_is_given_back_is_taken_first() -> None:
    pieces = Pieces(0, 8 << 20)
    first, second = pieces.take(1), pieces.take(1)
    assert first is not None and second is not None
    pieces.give_back(*second)
    pieces.give_back(first[0] + 10, first[1])
    assert [pieces.take(1), pieces.take(1)] == [(first[0] + 10, first[1]), second]
