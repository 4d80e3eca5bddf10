"""How long a change is tried again that a file's replicas could not carry out."""

from types import SimpleNamespace
from typing import Any

import pytest

from speedwell.fs.client import patience
from speedwell.fs.client.append import append_request, durability
from speedwell.fs.client.change import version
from speedwell.fs.client.patience import MOST_SECONDS, SECONDS, Patience
from speedwell.fs.errors import AppendFailed, StorageFailed, WriteFailed
from speedwell.fs.proto.speedwell_pb2 import Attributes, Replica


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(patience.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(patience.time, "sleep", self.wait)

    def wait(self, seconds: float) -> None:
        self.now += seconds


class Namespace:
    """Its file has another set of replicas after each attempt, until `changes` are made."""

    def __init__(self, changes: int) -> None:
        self.epoch, self._changes = 1, changes
        self.metadata = self

    def lookup_inode(self, inode: int, to_append: bool = False) -> Attributes:
        if self._changes:
            self._changes, self.epoch = self._changes - 1, self.epoch + 1
        return attributes(self.epoch)

    def sync(self) -> None:
        pass


def attributes(epoch: int) -> Attributes:
    return Attributes(inode=5, file_id="f", size=9, epoch=epoch, replicas=[Replica(dataserver_id="b")])


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_it_lasts_from_the_first_failure_on_however_long_the_attempt_took(clock: Clock) -> None:
    waiting = Patience()
    clock.wait(10 * SECONDS)
    assert not waiting.is_over(False)
    clock.wait(SECONDS)
    assert not waiting.is_over(False)
    clock.wait(0.1)
    assert waiting.is_over(False)


def test_it_begins_anew_with_each_change_of_the_file_but_not_for_ever(clock: Clock) -> None:
    waiting, began = Patience(), clock.now
    while not waiting.is_over(True):
        clock.wait(0.9 * SECONDS)
    assert MOST_SECONDS < clock.now - began < MOST_SECONDS + SECONDS


@pytest.mark.parametrize("changes", [0, 1])
def test_a_sync_that_found_another_set_after_a_long_time_is_tried_with_that_one(
        monkeypatch: pytest.MonkeyPatch, clock: Clock, changes: int) -> None:
    asked = []

    def ask(context: Any, asked_of: Attributes) -> None:
        asked.append(asked_of.epoch)
        clock.wait(3 * SECONDS)
        if asked_of.epoch == 1:
            raise StorageFailed("the set of replicas is at 2, not at 1")

    monkeypatch.setattr(durability, "_ask_primary", ask)
    context: Any = Namespace(changes)
    if changes:
        durability.force_to_disk(context, attributes(1))
        assert asked == [1, 2]
    else:
        with pytest.raises(StorageFailed):
            durability.force_to_disk(context, attributes(1))
        assert asked == [1, 1]


def test_a_version_that_found_another_set_after_a_long_time_is_made_with_that_one(
        monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    asked = []

    def run(attempt: Any) -> tuple[Attributes, int]:
        asked.append(attempt._attributes.epoch)
        clock.wait(3 * SECONDS)
        if attempt._attributes.epoch < 4:
            raise version._Again(WriteFailed("the set of replicas is at 2, not at 1"))
        return attributes(4), 9

    monkeypatch.setattr(version._Attempt, "run", run)
    context: Any = Namespace(3)
    context.tokens = SimpleNamespace(proof_key=lambda: None)
    published, was_newest = version.publish_changes(context, attributes(1), b"/f", version.Changes.of({0: b"x"}))
    assert (published.epoch, was_newest, asked) == (4, True, [1, 2, 3, 4])


def test_an_append_that_found_another_set_after_a_long_time_is_sent_to_that_one(
        monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    asked = []

    def send(requests: Any, *arguments: Any) -> None:
        asked.append(requests.attributes.epoch)
        clock.wait(3 * SECONDS)
        if requests.attributes.epoch < 4:
            raise append_request._Again(AppendFailed("the set of replicas is at 2, not at 1"), may_be_done=True)

    monkeypatch.setattr(append_request.AppendRequests, "_send", send)
    monkeypatch.setattr(append_request.AppendRequests, "_finish", lambda *arguments: 9)
    namespace = Namespace(3)
    context: Any = namespace
    context.take_writer = lambda: SimpleNamespace(sequence=0)
    context.tokens = SimpleNamespace(look_up_to_write=lambda known: namespace.lookup_inode(known.inode))
    appending = append_request.AppendRequests(context, attributes(1), b"/f")
    clock.now += 0.5 * append_request.CONFIRM_SECONDS
    assert appending.append(lambda channel: None, 4) == 9
    assert asked == [1, 2, 3, 4]
