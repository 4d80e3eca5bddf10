"""Garbage in cycles goes without Python's own collection; what stays is not looked at again."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Iterator

import pytest

from speedwell.controller.garbage import FULL_SECONDS, UNSEEN, Garbage


class Node:
    """One of a cycle."""

    def __init__(self) -> None:
        self.other: Node | None = None


@pytest.fixture
def garbage() -> Iterator[Garbage]:
    yield Garbage()
    gc.unfreeze()
    gc.enable()


def cycle() -> Node:
    first, second = Node(), Node()
    first.other, second.other = second, first
    return first


def test_cycles_that_ended_go_with_the_next_collection_while_there_are_any(garbage: Garbage) -> None:
    for _ in range(3):
        gone = weakref.ref(cycle())
        garbage.collect()
        assert gone() is None


def test_after_a_collection_that_found_nothing_some_are_left_out(garbage: Garbage) -> None:
    garbage.collect()
    for _ in range(UNSEEN):
        left = weakref.ref(cycle())
        garbage.collect()
        assert left() is not None
    gone = weakref.ref(cycle())
    garbage.collect()
    assert gone() is None


def test_what_outlives_a_collection_is_not_looked_at_again(garbage: Garbage) -> None:
    kept = [cycle() for _ in range(1000)]
    garbage.collect()
    assert not any(each in kept for generation in range(3) for each in gc.get_objects(generation)
                   if isinstance(each, Node))


def test_cycles_that_ended_late_go_once_they_are_many(garbage: Garbage, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = [weakref.ref(kept := cycle())]
    garbage.collect()
    many = [[] for _ in range(gc.get_freeze_count())]
    garbage.collect()
    del kept
    later = time.monotonic() + FULL_SECONDS
    monkeypatch.setattr(time, "monotonic", lambda: later)
    garbage.collect()
    assert gone[0]() is None and len(many) > 0
