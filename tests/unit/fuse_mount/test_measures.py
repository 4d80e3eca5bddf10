"""What a mount counts of its requests, and what it tells Prometheus of it."""

import errno
import threading
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from speedwell.fs.client.metrics import Metrics
from speedwell.fuse_mount import binding
from speedwell.fuse_mount.measures import BOUNDS_SECONDS, Measures, quantile
from speedwell.fuse_mount.metrics import MountMetrics
from speedwell.fuse_mount.requests import Requests


class Answers(Requests):
    """Requests that reach their end without a kernel."""

    def __init__(self) -> None:
        super().__init__(binding.load_library(), binding.tune)
        self.errors: list[int] = []
        self._libfuse: Any = SimpleNamespace(fuse_reply_err=lambda request, number: self.errors.append(number))

    def serve_one(self, operation: str, *, seconds: float = 0.0, error: Exception | None = None) -> None:
        def method(request: int) -> None:
            time.sleep(seconds)
            if error is not None:
                raise error

        self._guarded(operation, method)(1)


def test_each_request_is_counted_and_timed_by_its_operation() -> None:
    answers = Answers()
    for _ in range(3):
        answers.serve_one("getattr")
    answers.serve_one("read", seconds=0.02)
    operations = answers.measures.operations()
    assert {name: done.count for name, done in operations.items()} == {"getattr": 3, "read": 1}
    assert operations["read"].seconds >= 0.02
    assert quantile(operations["read"].buckets, 1.0) >= 0.02


def test_what_goes_wrong_is_answered_and_counted_by_its_errno() -> None:
    answers = Answers()
    answers.serve_one("mkdir", error=OSError(errno.ENOSPC, "full"))
    answers.serve_one("mkdir", error=ValueError("nobody foresaw it"))
    assert answers.errors == [errno.ENOSPC, errno.EIO]
    assert answers.measures.errors() == {("mkdir", errno.ENOSPC): 1, ("mkdir", errno.EIO): 1}
    assert answers.measures.operations()["mkdir"].count == 2


def test_nothing_is_lost_between_threads() -> None:
    answers = Answers()
    threads = [threading.Thread(target=lambda: [answers.serve_one("lookup") for _ in range(500)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers.measures.operations()["lookup"].count == 4000


def test_a_request_is_under_way_until_it_is_answered_and_waiting_for_a_lock_is_no_delay() -> None:
    answers, may_end = Answers(), threading.Event()
    methods = [threading.Thread(target=answers._guarded(name, lambda request: may_end.wait(30)), args=(1,))
               for name in ("read", "setlk")]
    for thread in methods:
        thread.start()
    while len([each for each in answers.measures._threads if each.began_ns]) < 2:
        time.sleep(0.001)
    [seconds] = answers.measures.under_way_seconds()
    assert seconds >= 0
    may_end.set()
    for thread in methods:
        thread.join()
    assert answers.measures.under_way_seconds() == []


@pytest.mark.parametrize(("at", "part", "expected"), [
    ([], 0.99, 0.0),
    ([0] * 100, 1.0, BOUNDS_SECONDS[0]),
    ([0] * 100, 0.5, BOUNDS_SECONDS[0] / 2),
    ([3] * 100, 0.0, BOUNDS_SECONDS[2]),
    ([3] * 100, 0.5, (BOUNDS_SECONDS[2] + BOUNDS_SECONDS[3]) / 2),
    ([0] * 99 + [5], 0.99, BOUNDS_SECONDS[0]),
    ([0] * 98 + [5] * 2, 1.0, BOUNDS_SECONDS[5]),
    ([len(BOUNDS_SECONDS)] * 4, 0.5, BOUNDS_SECONDS[-1]),
])
def test_quantiles_are_those_of_prometheus(at: list[int], part: float, expected: float) -> None:
    buckets = [at.count(index) for index in range(len(BOUNDS_SECONDS) + 1)]
    assert quantile(buckets, part) == pytest.approx(expected)


def test_labels_are_operations_and_names_of_errors_only() -> None:
    answers = Answers()
    for number in (errno.ENOENT, 12345):
        answers.serve_one("lookup", error=OSError(number, "no"))
    registry = CollectorRegistry()
    registry.register(MountMetrics("/m\udcff", "127.0.0.1:1", answers.measures,
                                   cast(Any, SimpleNamespace(metrics=Metrics())), lambda: 7))
    page = generate_latest(registry).decode()
    assert 'speedwell_mount_errors_total{error="ENOENT",operation="lookup"} 1.0' in page
    assert 'speedwell_mount_errors_total{error="unknown",operation="lookup"} 1.0' in page
    assert 'speedwell_mount_request_seconds_count{operation="lookup"} 2.0' in page
    assert r'mountpoint="/m\\xff"' in page, "a name need not be UTF-8"
    assert "speedwell_mount_open_files 7.0" in page and "speedwell_mount_nameserver_up 0.0" in page


def test_a_mount_that_did_nothing_has_measured_nothing() -> None:
    measures = Measures()
    assert (measures.operations(), measures.errors(), measures.moved_bytes()) == ({}, {}, (0, 0))


@pytest.mark.parametrize("operation, told", [("lookup", True), ("getattr", True), ("write", False)])
def test_an_open_knows_whether_another_request_is_told_attributes(operation: str, told: bool) -> None:
    answers, begun, may_end = Answers(), threading.Event(), threading.Event()
    found: list[bool] = []

    def serve(request: int) -> None:
        found.append(answers.is_being_told())
        begun.set()
        may_end.wait(60)

    thread = threading.Thread(target=answers._guarded(operation, serve), args=(1,))
    thread.start()
    try:
        assert begun.wait(60)
        assert (found, answers.is_being_told()) == ([False], told)
    finally:
        may_end.set()
        thread.join()
    assert not answers.is_being_told()
