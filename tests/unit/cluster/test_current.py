"""Which installations are known here."""

from pathlib import Path

import pytest

from speedwell.cluster import current
from speedwell.cluster.processes import Processes


def started(directory: Path) -> current.Current:
    directory.mkdir()
    Processes(directory).save()
    return current.Current("local", str(directory), "127.0.0.1:7000")


def test_who_names_a_state_directory_neither_sees_nor_stops_what_others_started(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(current, "MACHINE_DIRECTORY", tmp_path / "machine")
    monkeypatch.setenv("SPEEDWELL_STATE_DIRECTORY", str(tmp_path / "machine"))
    current.write(started(tmp_path / "another"))
    monkeypatch.setenv("SPEEDWELL_STATE_DIRECTORY", str(tmp_path / "own"))
    assert current.read() is None and current.started() == []
    current.write(started(tmp_path / "mine"))
    assert [each.directory for each in current.started()] == [str(tmp_path / "mine")]
    current.forget(tmp_path / "mine")
    assert current.read() is None


def test_who_has_started_nothing_is_led_to_what_runs_on_the_machine(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPEEDWELL_STATE_DIRECTORY", str(tmp_path / "machine"))
    current.write(started(tmp_path / "another"))
    monkeypatch.delenv("SPEEDWELL_STATE_DIRECTORY")
    monkeypatch.setattr(current, "MACHINE_DIRECTORY", tmp_path / "machine")
    monkeypatch.setattr(current.os, "geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    assert current.read() == current.Current("local", str(tmp_path / "another"), "127.0.0.1:7000")
