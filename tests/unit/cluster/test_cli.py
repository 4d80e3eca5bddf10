"""The command line itself: what it imports, how it refuses, how it fails. No installation runs."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from speedwell.cluster import cli
from speedwell.fs import command_line

SPEEDWELL = str(Path(sys.executable).parent / "speedwell")
HEAVY = ("grpc", "rich", "requests", "ryu", "mininet", "networkx", "numpy", "pydantic", "google.protobuf")


def run(*arguments: str, state: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SPEEDWELL_")}
    environment = {**kept, "SPEEDWELL_STATE_DIRECTORY": str(state), **variables}
    return subprocess.run([SPEEDWELL, *arguments], capture_output=True, text=True, env=environment,
                          stdin=subprocess.DEVNULL, timeout=30, check=False)


def imported_by(code: str) -> set[str]:
    result = subprocess.run([sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules)"],
                            capture_output=True, text=True, check=True, timeout=30)
    return set(result.stdout.splitlines()[-1].split())


def test_help_and_running_processes_need_no_heavy_import():
    code = ("from speedwell.cluster import cli\n"
            "cli.run(['--help'])\ncli.run(['put', '--help'])\ncli.run(['up', '--help'])")
    assert not imported_by(code).intersection(HEAVY)


def test_file_commands_do_not_import_rich_or_the_controllers_libraries():
    code = ("import speedwell.cluster.transfer, speedwell.cluster.progress, speedwell.fs.client\n"
            "from speedwell.cluster.commands import transfer, listing")
    assert not imported_by(code).intersection({"rich", "ryu", "mininet", "networkx", "numpy", "pydantic"})


@pytest.mark.parametrize("name", list(cli.COMMANDS))
def test_the_help_line_of_a_command_is_the_first_sentence_of_its_own_help(name):
    module, attribute, line = cli.COMMANDS[name]
    command = getattr(importlib.import_module(f"speedwell.{module}"), attribute)
    assert isinstance(command, click.Command)
    assert " ".join((command.help or "").split()).startswith(line.rstrip("."))


def test_every_option_of_every_command_says_what_it_does():
    for name, (module, attribute, _) in cli.COMMANDS.items():
        command = getattr(importlib.import_module(f"speedwell.{module}"), attribute)
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert parameter.help, f"{name} {parameter.opts}"


@pytest.mark.parametrize(("arguments", "message"), [
    (["frobnicate"], "No such command 'frobnicate'"),
    (["put", "one"], "Missing argument 'SRC...'"),
    (["ls", "--nonsense"], "No such option '--nonsense'"),
    (["up"], "say what to start: --local DIR"),
    (["up", "--local", "x", "--dataservers", "0"], "0 must be at least 1"),
    (["up", "--local", "x", "--chunk-size", "huge"], "'huge' is not a number of bytes such as"),
    (["mv", "/a"], "Missing argument 'DESTINATION'"),
    (["ls", "--local-host", "h1"], "'h1' is not an IP address"),
    (["node", "drain", "d0", "--wait", "-1"], "-1.0 must be at least 0"),
    (["fsck", "--timeout", "-1"], "-1.0 must be at least 0"),
    (["mount", "/x", "--cache-seconds", "-1"], "-1.0 must be from 0 to 3600"),
])
def test_wrong_usage_is_one_line_and_exit_code_2(arguments, message, tmp_path):
    result = run(*arguments, state=tmp_path)
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.startswith("speedwell: ")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("arguments", [(), ("quota",), ("node",)])
def test_a_command_that_needs_another_shows_its_help(arguments, tmp_path):
    result = run(*arguments, state=tmp_path)
    assert result.returncode == 2
    assert result.stderr.startswith(f"Usage: {' '.join(('speedwell', *arguments))} ")


@pytest.mark.parametrize("arguments", [["ls"], ["cat", "/x"], ["rm", "/x"], ["status"], ["get", "/x", "y"],
                                       ["mkdir", "/x"], ["append", "/x"], ["stat", "/x"]])
def test_without_an_installation_a_command_says_how_to_get_one(arguments, tmp_path):
    result = run(*arguments, state=tmp_path)
    assert (result.returncode, result.stdout) == (1, "")
    assert "run `speedwell up`" in result.stderr
    assert result.stderr.count("\n") == 1


def test_down_without_an_installation_has_nothing_to_do(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SPEEDWELL_STATE_DIRECTORY", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)    # root's removes what a killed emulation left on the machine
    assert cli.run(["down"]) == 0
    assert "nothing to stop" in capsys.readouterr().out


def test_the_environment_names_the_installation(tmp_path):
    result = run("ls", state=tmp_path, SPEEDWELL_NAMESERVER="not an address")
    assert result.returncode == 2
    assert "not an address" in result.stderr


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"kind": 1}'])
def test_a_damaged_pointer_to_the_installation_is_refused_by_name(text, tmp_path):
    (tmp_path / "current.json").write_text(text)
    result = run("ls", state=tmp_path)
    assert result.returncode == 1
    assert f"{tmp_path}/current.json is not a pointer" in result.stderr


def test_a_source_that_does_not_exist_is_named(tmp_path):
    result = run("put", "/no/such/file", "/x", "--nameserver", "127.0.0.1:1", state=tmp_path)
    assert result.returncode == 1
    assert result.stderr == "speedwell: /no/such/file: No such file or directory\n"


def test_an_error_nobody_foresaw_has_its_type_and_no_traceback(monkeypatch, capsys):
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.delenv(command_line.DEBUG_VARIABLE, raising=False)
    monkeypatch.setattr(cli.speedwell, "main", broken)
    assert cli.run(["ls"]) == 1
    assert capsys.readouterr().err.startswith("speedwell: unexpected ZeroDivisionError: division by zero")


def test_an_interrupt_is_exit_code_130(monkeypatch, capsys):
    def interrupted(*_: object, **__: object) -> None:
        raise click.Abort

    monkeypatch.setattr(cli.speedwell, "main", interrupted)
    assert cli.run(["ls"]) == 130
    assert capsys.readouterr().err == "speedwell: interrupted\n"


def test_output_nobody_reads_is_no_error_message(tmp_path):
    code = f"{SPEEDWELL} --help | true"
    result = subprocess.run(["bash", "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert result.stderr == ""


def test_up_refuses_a_directory_with_other_things_in_it_and_touches_nothing(tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("x")
    result = run("up", "--local", str(tmp_path / "home"), state=tmp_path / "state")
    assert result.returncode == 1
    assert "thesis.tex" in result.stderr
    assert sorted(path.name for path in (tmp_path / "home").iterdir()) == ["thesis.tex"]


def test_version_is_the_packages(tmp_path):
    assert run("version", state=tmp_path).stdout.startswith("speedwell 0.")


def test_a_missing_choice_is_one_line(tmp_path):
    result = run("experiment", state=tmp_path)
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1 and "experiment --list` shows all" in result.stderr
