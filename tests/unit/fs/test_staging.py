"""Staged changes: what reads see of them, and what is published, are what a plain file would hold."""

import os
from dataclasses import dataclass
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from speedwell.fs.client.change.staging import Source, Staging

BASE = bytes(range(1, 201))


@dataclass
class Write:
    offset: int
    data: bytes


@dataclass
class Zero:
    begin: int
    end: int


@dataclass
class Resize:
    size: int


OFFSETS = st.integers(0, 300)
STEPS = st.lists(st.one_of(
    st.builds(Write, OFFSETS, st.binary(min_size=1, max_size=60)),
    st.builds(Zero, OFFSETS, OFFSETS), st.builds(Resize, OFFSETS)), max_size=25)


class Sink:
    """Takes what is sent to a dataserver."""

    def __init__(self) -> None:
        self.data = b""

    def send_file(self, descriptor: int, offset: int, count: int) -> None:
        self.data += os.pread(descriptor, count, offset)


def plain(step: Write | Zero | Resize, content: bytearray) -> None:
    if isinstance(step, Write):
        content.extend(bytes(max(0, step.offset - len(content))))
        content[step.offset:step.offset + len(step.data)] = step.data
    elif isinstance(step, Zero):
        end = min(step.end, len(content))
        if step.begin < end:
            content[step.begin:end] = bytes(end - step.begin)
    elif step.size < len(content):
        del content[step.size:]
    else:
        content.extend(bytes(step.size - len(content)))


def staged(step: Write | Zero | Resize, staging: Staging) -> None:
    if isinstance(step, Write):
        assert staging.write(step.offset, step.data) == len(step.data)
    elif isinstance(step, Zero):
        staging.zero(step.begin, step.end)
    else:
        staging.resize(step.size)


def read(staging: Staging, begin: int, end: int) -> bytes:
    result = b""
    for piece in staging.pieces(begin, end):
        if piece.source is Source.BASE:
            result += BASE[piece.begin:piece.end]
        elif piece.source is Source.ZEROS:
            result += bytes(piece.end - piece.begin)
        else:
            buffer = bytearray(piece.end - piece.begin)
            staging.read_into(piece.begin, memoryview(buffer))
            result += buffer
    return result


@settings(max_examples=400, deadline=None)
@given(steps=STEPS, begin=OFFSETS, end=OFFSETS)
def test_reads_and_the_published_change_are_those_of_a_plain_file(
        steps: list[Write | Zero | Resize], begin: int, end: int) -> None:
    content = bytearray(BASE)
    staging = Staging(len(BASE), None)
    for step in steps:
        plain(step, content)
        staged(step, staging)
        assert staging.size == len(content)
    assert read(staging, 0, 1000) == content
    assert read(staging, begin, end) == content[begin:end]

    changes = staging.changes()
    sink = Sink()
    changes.send(sink)  # type: ignore[arg-type]
    keep = len(BASE) if changes.keep is None else changes.keep
    size = max(len(BASE), changes.reach) if changes.size is None else changes.size
    result = bytearray(BASE[:min(keep, size)])
    result.extend(bytes(size - len(result)))
    for low, high in changes.zeros:
        result[low:high] = bytes(high - low)
    data = sink.data
    for low, high in changes.ranges:
        result[low:high], data = data[:high - low], data[high - low:]
    assert data == b"" and result == content
    assert all(high <= size for _, high in (*changes.ranges, *changes.zeros))
    both = sorted((*changes.ranges, *changes.zeros))
    assert all(one[1] <= other[0] for one, other in pairwise(both))
    staging.close()


def test_sequential_writes_become_one_range() -> None:
    staging = Staging(100, None)
    for number in range(50):
        staging.write(number * 10, b"x" * 10)
    assert staging.changes().ranges == [(0, 500)]
    staging.close()


def test_many_scattered_writes_are_to_be_published() -> None:
    staging = Staging(0, None)
    for number in range(16384):
        assert not staging.is_full
        staging.write(number * 2, b"x")
    assert staging.is_full
    staging.close()
