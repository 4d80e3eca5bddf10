"""What runs on one of several machines: its settings, by which its parts and commands find each other."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner

from speedwell.cluster import parts
from speedwell.cluster.commands.up import up
from speedwell.cluster.errors import StartFailed
from speedwell.cluster.processes import Command, Processes
from speedwell.fs.addresses import parse_address
from speedwell.fs.identity import places, roles


@pytest.mark.parametrize("name", ['"', "\\", "\n", "\t\x7f", "ü€😀", "#'", "{}"])
def test_settings_say_what_they_shall_whatever_a_directory_is_called(name: str) -> None:
    values = {"path": Path("/") / name, "several": [Path(name), "b"], "yes": True, "number": 3, "nothing": None}
    assert tomllib.loads(parts._toml(values)) == {
        "path": f"/{name}", "several": [name, "b"], "yes": True, "number": 3}


@pytest.mark.parametrize("address", ["127.0.0.1", "fd00::1"])
def test_the_first_machine_is_found_at_its_address(
        address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(places.STATE_VARIABLE, str(tmp_path / "state"))
    found = parts.first(parts.Part(tmp_path / "a", "a", address), [roles.CONTROLLER], 3)
    assert parse_address(found.nameserver, "nameserver") == (address, 7400)
    assert found.nameserver == f"[{address}]:7400" if ":" in address else f"{address}:7400"
    url = urlsplit(str(found.controller))
    assert (url.scheme, url.hostname, url.port) == ("https", address, 8080)
    settings = tomllib.loads((tmp_path / "a/certificates.toml").read_text())
    assert parse_address(settings["listen"], "listen") == (address, 7450)


def test_an_up_that_fails_half_way_stops_what_it_has_started(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(places.STATE_VARIABLE, str(tmp_path / "state"))
    parts.first(parts.Part(tmp_path / "a", "a", "127.0.0.1"), [roles.CONTROLLER], 3)
    waits, fails = "import time; print('ready here', flush=True); time.sleep(600)", "raise SystemExit(1)"
    started = {parts.CERTIFICATES: waits, roles.CONTROLLER: fails}
    monkeypatch.setattr(parts, "command_again",
                        lambda processes, role: Command(role, [sys.executable, "-c", started[role]]))
    processes = Processes(tmp_path / "a")
    with pytest.raises(StartFailed, match="controller stopped"):
        parts.up(processes)
    assert (processes.directory / "logs/certificates.log").read_text() == "ready here\n"
    assert processes.running() == Processes(tmp_path / "a").records == []


def test_a_file_in_place_of_an_installation_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    refused = CliRunner().invoke(up, ["--local", str(tmp_path / "file")])
    assert str(refused.exception) == f"--local: {tmp_path}/file is not a directory"
