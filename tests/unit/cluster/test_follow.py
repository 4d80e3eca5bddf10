"""The view of what moves in the background."""

import os
import pty
import subprocess
import sys
from collections.abc import Iterator

import pytest

from speedwell.cluster import follow as module
from speedwell.cluster.balance import given
from speedwell.cluster.follow import follow


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POLL_SECONDS", 0.0)


def test_what_is_done_is_told_in_lines_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch,
                                                                 capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(module, "LINE_SECONDS", 0.0)
    lefts: Iterator[int] = iter([4, 4, 3, 5, 1, 0])
    assert follow("draining d1", lambda: next(lefts), 60.0, "entries") == 0
    assert capsys.readouterr().out.splitlines() == [
        "draining d1: 1 of 4 replicas moved", "draining d1: 0 of 5 replicas moved",
        "draining d1: 4 of 5 replicas moved", "draining d1: 5 of 5 replicas moved"]


def test_lines_are_rare_but_the_last_one_comes(capsys: pytest.CaptureFixture[str]) -> None:
    lefts = iter([3 << 20, 2 << 20, 1 << 20, 0])
    assert follow("balancing", lambda: next(lefts), 60.0, "bytes") == 0
    assert capsys.readouterr().out.splitlines() == ["balancing: 1.0 MiB of 3.0 MiB moved",
                                                    "balancing: 3.0 MiB of 3.0 MiB moved"]


def test_it_ends_when_its_time_is_over_and_says_what_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    assert follow("balancing", lambda: 7, 0.0, "bytes") == 7
    assert follow("balancing", lambda: 7, 0.05, "bytes") == 7
    assert capsys.readouterr().out == ""


def test_a_terminal_gets_a_bar_and_no_lines() -> None:
    code = ("import itertools, time\nfrom speedwell.cluster.follow import follow\nbegan = time.monotonic()\n"
            "follow('draining d1', lambda: max(0, 40 - int(10 * (time.monotonic() - began))), 60.0, 'entries')")
    master, slave = pty.openpty()
    with subprocess.Popen([sys.executable, "-c", code], stderr=slave, stdout=subprocess.DEVNULL,
                          env={**os.environ, "TERM": "xterm", "COLUMNS": "80"}) as process:
        os.close(slave)
        shown = b""
        while True:
            try:
                block = os.read(master, 65536)
            except OSError:     # the other end is closed
                break
            if not block:
                break
            shown += block
    os.close(master)
    assert process.returncode == 0
    assert b"draining d1" in shown and b"/40" in shown and b"moved" not in shown


def test_what_is_given_counts_once() -> None:
    assert given({"d0": 400, "d1": -300, "d2": -100}) == 400
    assert given({}) == 0
