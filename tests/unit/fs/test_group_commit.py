"""Many who force changes to the disk share one step, and each one's changes are in a step that began after them."""

import threading

import pytest

from speedwell.fs.group_commit import GroupCommit
from tests.waiting import wait_until


def test_those_who_come_while_a_step_runs_share_the_next_one() -> None:
    group = GroupCommit()
    steps: list[int] = []
    changes = 0
    go_on = threading.Event()
    seen: list[tuple[int, int]] = []

    def step() -> None:
        steps.append(changes)
        assert go_on.wait(10)

    def change_and_wait(number: int) -> None:
        group.share(step)
        seen.append((number, steps[-1]))

    threads = [threading.Thread(target=change_and_wait, args=(1,))]
    changes = 1
    threads[0].start()
    wait_until(lambda: steps == [1], 10, "the first step does not begin")
    for number in range(2, 22):
        changes = number
        threads.append(threading.Thread(target=change_and_wait, args=(number,)))
        threads[-1].start()
    go_on.set()
    for thread in threads:
        thread.join(10)
    assert len(steps) < 21
    assert all(number <= forced for number, forced in seen)


def test_all_who_share_a_step_that_fails_are_told() -> None:
    group = GroupCommit()

    def fail() -> None:
        raise OSError("the disk is gone")

    for _ in range(2):
        with pytest.raises(OSError, match="gone"):
            group.share(fail)
    done = []
    group.share(lambda: done.append(1))
    assert done == [1]
