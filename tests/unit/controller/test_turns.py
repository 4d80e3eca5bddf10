"""Many things done in turns."""

import eventlet

from controller.loops import TURN_ITEMS, in_turns


def test_others_have_their_turn_while_many_things_are_done() -> None:
    turns, done = [], []

    def another() -> None:
        while len(done) < 10 * TURN_ITEMS:
            turns.append(len(done))
            eventlet.sleep(0)

    thread = eventlet.spawn(another)
    for some in in_turns(range(10 * TURN_ITEMS)):
        done.extend(some)
    thread.wait()
    assert done == list(range(10 * TURN_ITEMS))
    assert len(turns) >= 9 and turns == sorted(turns)


def test_few_things_are_done_in_one_turn() -> None:
    others = []
    eventlet.spawn(others.append, 1)
    assert [list(some) for some in in_turns([1, 2, 3])] == [[1, 2, 3]] and list(in_turns([])) == []
    assert not others
