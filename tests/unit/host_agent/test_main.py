"""What the command line refuses, before anything is made."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from speedwell.host_agent.main import status_of

HERE = "127.0.0.1"


@pytest.fixture
def options(tmp_path: Path) -> list[str]:
    key = tmp_path / "key"
    key.write_text("k" * 64)
    return ["--address", HERE, "--scheduler", f"{HERE}:7000", "--key-file", str(key), "--rate", "20000000"]


@pytest.mark.parametrize(("wrong", "complaint"), [
    (["--address", "10.99.99.99"], "no interface of this machine has the address 10.99.99.99"),
    (["--scheduler", "nowhere"], "--scheduler: 'nowhere' is not HOST:PORT"),
    (["--scheduler", "no.such.name.invalid:7000"], "--scheduler: no.such.name.invalid has no IPv4 address"),
    (["--scheduler", "[::1]:7000"], "--scheduler: ::1 has no IPv4 address"),
    (["--metrics", "9105"], "--metrics: '9105' is not HOST:PORT"),
    (["--metrics", "0.0.0.0:9105", "--insecure=loopback"], "--metrics: other machines may reach 0.0.0.0"),
    (["--key-file", "/nonexistent"], "cannot read the coflow key in /nonexistent"),
    (["--rate", "0"], "'--rate'"),
    (["--large", "-1"], "'--large'"),
])
def test_a_wrong_option_is_named_in_one_line(options: list[str], wrong: list[str], complaint: str,
                                             capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of([*options, *wrong]) == 2
    told = capsys.readouterr().err
    assert complaint in told and told.count("\n") == 1


def test_without_root_it_says_so(options: list[str], capsys: pytest.CaptureFixture[str],
                                 monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert status_of(options) == 1
    told = capsys.readouterr().err
    assert "needs root" in told and told.count("\n") == 1
