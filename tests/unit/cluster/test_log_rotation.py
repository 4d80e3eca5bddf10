"""Logs of an installation's processes do not grow without end."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from speedwell.cluster import supervisor
from speedwell.cluster.processes import Command, Processes
from speedwell.cluster.supervision import Supervision
from speedwell.fs import logs
from tests.waiting import wait_until

TALKS = ("/bin/sh", "-c", "echo ready now; while :; do echo said; sleep 0.02; done")


def test_a_large_log_goes_on_in_a_new_file_while_the_process_runs(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "MAX_BYTES", 100)
    processes, command = Processes(tmp_path), Command("talker", TALKS)
    log = Path(processes.start(command).log)
    supervision = Supervision(processes, lambda: ["talker"], lambda _: command)
    kept = log.with_name("talker.log.1")
    try:
        supervision.look()
        assert not kept.exists()
        wait_until(lambda: log.stat().st_size > 100, 30, "nothing is said")
        supervision.look()
        assert kept.read_text().startswith("ready now\nsaid\n")
        wait_until(lambda: log.stat().st_size > 20, 30, "the process says nothing more")
        assert set(log.read_text().splitlines()) == {"said"}
    finally:
        processes.stop()


@contextmanager
def nothing_configured() -> Iterator[None]:
    """Where the log goes is for the code to say."""
    root = logging.getLogger()
    before, levels = list(root.handlers), [(each, each.level) for each in (root, logging.getLogger("speedwell"))]
    root.handlers.clear()
    try:
        yield
    finally:
        for handler in root.handlers:
            handler.close()
        root.handlers[:] = before
        for each, level in levels:
            each.setLevel(level)


def test_a_daemon_that_has_no_supervisor_rotates_its_own_log(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "MAX_BYTES", 200)
    with nothing_configured():
        logs.configure("info", tmp_path / "mount.log")
        for number in range(10):
            logging.info("line %d", number)
    written = (tmp_path / "mount.log.1").read_text() + (tmp_path / "mount.log").read_text()
    assert "line 9" in written and (tmp_path / "mount.log").stat().st_size <= 200


def test_the_supervisor_of_a_fabric_rotates_its_own_log(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "MAX_BYTES", 200)
    monkeypatch.setattr(supervisor, "_announced", lambda cluster: nullcontext())
    monkeypatch.setattr(supervisor, "_write_state", lambda cluster, description: description)
    monkeypatch.setattr(supervisor, "_say", lambda message: None)
    monkeypatch.setattr(supervisor, "_detach", lambda: None)
    monkeypatch.setattr(supervisor.local_metrics, "serve", lambda processes, supervision: None)
    monkeypatch.setattr(Supervision, "run", lambda self: [logging.info("line %d", number) for number in range(10)])
    cluster: Any = SimpleNamespace(
        settings=SimpleNamespace(directory=tmp_path, identity=False), start=lambda progress: None,
        description=dict, processes=None, wanted=None, command_again=None)
    with nothing_configured():
        supervisor._supervise(cluster)
    log = tmp_path / supervisor.LOG
    assert "line 9" in log.with_name(f"{log.name}.1").read_text() + log.read_text() and log.stat().st_size <= 200
