"""Every command with bad input of each kind: one line that a user can act on, and the exit code that is documented.

What can be typed is read from the commands themselves, so a new command is tried without a word here.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click
import pytest

from speedwell.cluster import cli
from speedwell.topo.click_types import HostPort

SCRIPTS = Path(sys.executable).parent
RUNNER = Path(__file__).with_name("bad_input.py")
LIBRARIES = re.compile(r"Traceback|pydantic|grpc|StatusCode|[Ee]rrno|HTTPConnection|urllib|Value error|Input should|"
                       r"valid (float|integer)|\bx?[<>]=|unexpected [A-Z]\w+|object at 0x|<class|rpc error|"
                       r"UNAVAILABLE")
ENDS_WITH_NOTHING = re.compile(r"(:|''|\bNone|\()\s*(\(see `[^`]*`\))?$")
ARGUMENTS = {"experiment": ["mayflower-fig4"], "trash on": ["--keep", "7d"], "quota set": ["/x", "--files", "9"],
             "chmod": ["644", "/x"], "chown": ["0", "/x"], "put": ["/etc/hostname", "/x"],
             "identity issue": ["x", "mount"], "identity invite": ["x", "mount"],
             "coflow send": ["/etc/hostname", "127.0.0.1:1"],
             "coflow key": ["/etc/hostname", "10.0.0.1"]}
"""What a command needs, where it is not a path for each of its arguments."""


def leaves(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        yield " ".join(path), command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        assert inner is not None
        yield from leaves(inner, (*path, name))


COMMANDS = dict(leaves(cli.speedwell))


def options(name: str) -> list[click.Option]:
    return [each for each in COMMANDS[name].params if isinstance(each, click.Option)]


def has(name: str, option: str) -> bool:
    return any(option in each.opts for each in options(name))


def needed(name: str) -> list[str]:
    if name in ARGUMENTS:
        return ARGUMENTS[name]
    return ["/x" for each in COMMANDS[name].params if isinstance(each, click.Argument) and each.required]


def environment(state: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SPEEDWELL_")}
    return {**kept, "SPEEDWELL_STATE_DIRECTORY": str(state)}


def check(lines: Sequence[Sequence[str]], state: Path, codes: tuple[int, ...]) -> None:
    """Run each command line; all say one line of their own words and nothing else."""
    done = subprocess.run([sys.executable, RUNNER], input="".join(f"{json.dumps(line)}\n" for line in lines),
                          capture_output=True, text=True, timeout=170, check=True, cwd=state.parent,
                          env=environment(state))
    outcomes = list(map(json.loads, done.stdout.splitlines()))
    assert len(outcomes) == len(lines) > 0
    wrong = [(line, outcome, found) for line, outcome in zip(lines, outcomes, strict=True)
             if (found := faults(*outcome, codes=codes))]
    assert wrong == []


def faults(code: object, out: str, err: str, *, codes: tuple[int, ...], program: str = "speedwell") -> list[str]:
    """What is wrong with how a command said no."""
    found = [] if code in codes else [f"exit code {code}"]
    if out:
        found.append("something on standard output")
    if err.count("\n") != 1 or not err.startswith(f"{program}: "):
        found.append("not one line that begins with the program's name")
    found += [f"a library's word: {word[0]}" for word in LIBRARIES.finditer(err)]
    if ENDS_WITH_NOTHING.search(err.rstrip("\n")):
        found.append("a sentence that ends with nothing")
    return found


def test_an_option_that_no_command_has(tmp_path: Path) -> None:
    groups = sorted({name.rpartition(" ")[0] for name in COMMANDS} - {""})
    lines = [[*name.split(), "--no-such-option"] for name in (*COMMANDS, *groups) if name != "enter"]
    check([*lines, ["--no-such-option"]], tmp_path / "state", (2,))


def test_a_command_that_does_not_exist(tmp_path: Path) -> None:
    groups = sorted({name.rpartition(" ")[0] for name in COMMANDS} - {""})
    check([[*name.split(), "no-such-command"] for name in ("", *groups)], tmp_path / "state", (2,))


def test_an_argument_that_is_missing(tmp_path: Path) -> None:
    check([name.split() for name in COMMANDS if needed(name) and name != "trash on"] + [["trash", "on"]],
          tmp_path / "state", (2,))


def test_an_argument_too_many(tmp_path: Path) -> None:
    endless = {name for name, command in COMMANDS.items()
               if any(isinstance(each, click.Argument) and each.nargs == -1 for each in command.params)}
    lines = [[*name.split(), *needed(name), *["/y"] * 4] for name in COMMANDS
             if name not in endless and name not in ("experiment", "completion")]
    check(lines, tmp_path / "state", (2,))


def test_a_size_number_or_choice_that_is_none(tmp_path: Path) -> None:
    lines = [[*name.split(), *needed(name), option.opts[-1], value]
             for name in COMMANDS for option in options(name)
             if not option.is_flag and type(option.type) not in (click.Path, click.types.StringParamType)
             and not isinstance(option.type, click.Tuple)
             for value in ("garbage", "nan" if isinstance(option.type, HostPort) else "12x", "")]
    assert len(lines) > 50
    check(lines, tmp_path / "state", (2,))


def test_a_nameserver_that_is_no_address(tmp_path: Path) -> None:
    check([[*name.split(), *needed(name), "--nameserver", address] for name in COMMANDS if has(name, "--nameserver")
           for address in ("nonsense", "1.2.3.4:99999", ":5", "", "[::1:5", "::1:5", "a b:5", "h:1,")],
          tmp_path / "state", (2,))


def test_other_addresses_that_are_none(tmp_path: Path) -> None:
    here = ["--nameserver", "127.0.0.1:1"]
    lines = [[*name.split(), *needed(name), *here, "--local-host", "h1"]
             for name in COMMANDS if has(name, "--local-host")]
    lines += [["coflow", "send", "/etc/hostname", "nonsense"], ["coflow", "recv", "--listen", "nonsense"],
              ["coflow", "key", "/etc/services", "nonsense"],
              ["fabric", "three-tier", "--controller", "nonsense"]]
    check(lines, tmp_path / "state", (2,))
    check([[*name.split(), *needed(name), *here, "--controller", address]
           for address in ("nonsense", "http://h:99999") for name in COMMANDS
           if has(name, "--local-host") and name != "mount"], tmp_path / "state", (1,))


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.0.0.1:1,127.0.0.1:2"])
def test_a_server_that_cannot_be_reached(address: str, tmp_path: Path) -> None:
    lines = [[*name.split(), *needed(name), "--nameserver", address] for name in COMMANDS
             if has(name, "--nameserver") and name != "status"]
    check(lines, tmp_path / "state", (1,))


def test_a_server_whose_name_nobody_knows(tmp_path: Path) -> None:
    """Few commands: where no name server answers at all, each waits 10 s for one."""
    check([[*name.split(), *needed(name), "--nameserver", "no-such-host.invalid:7400"]
           for name in ("ls", "mount", "put")], tmp_path / "state", (1,))


@pytest.mark.parametrize("content", ["", "[]", "{", '{"kind": 1}', b"\xff\xfe", None])
def test_a_configuration_that_cannot_be_read(content: str | bytes | None, tmp_path: Path) -> None:
    pointer = tmp_path / "state" / "current.json"
    pointer.parent.mkdir()
    if content is None:
        pointer.mkdir()
    else:
        pointer.write_bytes(content if isinstance(content, bytes) else content.encode())
    lines = [[*name.split(), *needed(name)] for name in COMMANDS if has(name, "--nameserver")]
    check([*lines, ["list"], ["up"], ["down"]], tmp_path / "state", (1,))


def test_an_installation_that_is_none(tmp_path: Path) -> None:
    lines = [[*name.split(), *needed(name), "--installation", "/no/such/directory"] for name in COMMANDS
             if has(name, "--installation")]
    check([*lines, ["enter", "h1"]], tmp_path / "state", (1,))


def test_files_that_are_missing_or_something_else(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"\xff no JSON, no TOML, no Python")
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "results.jsonl").write_text("no result\n")
    there = ["--nameserver", "127.0.0.1:1"]
    check([["put", "/no/such/file", "/x", *there], ["put", "/", "/x", *there],
           ["append", "/x", "/no/such/file", *there], ["up", "--local", "file"],
           ["up", "--local", "/proc/nothing/here"], ["down", "--local", "file"],
           ["status", "--local", "file"], ["up", "--fabric", "/no/such/file"], ["up", "--fabric", "file"],
           ["simulate", "--fabric", "file"], ["simulate", "--resume", "--output", "results"], ["umount", "file"],
           ["experiment", "mayflower-fig4", "--quick", "--resume", "--output", "results"], ["umount", "/no/such"],
           ["coflow", "send", "file", "127.0.0.1:1", "--scheduler", "127.0.0.1", "--key-file", "/no/such/file"],
           ["coflow", "send", "file", "127.0.0.1:1", "--scheduler", "127.0.0.1", "--key-file", "/"],
           ["coflow", "recv", "--listen", "192.0.2.1:7300"], ["coflow", "send", "file", "127.0.0.1:1"]],
          tmp_path / "state", (1,))
    check([["coflow", "send", "/no/such/file", "127.0.0.1:1"], ["simulate", "--output", "file"],
           ["simulate", "--policy-path", "file"], ["experiment", "mayflower-fig4", "--policy-path", "/no/such"],
           ["simulate", "--resume", "--force"], ["fabric", "/no/such/file", "--describe"]], tmp_path / "state", (2,))


DATASERVER = ["--id", "d", "--listen", "127.0.0.1:0", "--nameserver", "127.0.0.1:1", "--directory", "data",
              "--insecure=fabric"]
NAMESERVER = ["--listen", "127.0.0.1:0", "--directory", "names", "--insecure=fabric"]


REFUSED: list[tuple[str, list[str], int]] = [
    *[(program, ["--no-such-option"], 2) for program in ("controller", "nameserver", "dataserver", "mount",
                                                          "host-agent")],
    *[(program, ["--log-level", "loud"], 2) for program in ("controller", "nameserver", "dataserver", "host-agent")],
    ("nameserver", [], 2), ("dataserver", [], 2), ("mount", [], 2), ("mount", ["/x"], 2),
    ("controller", ["--rest-port", "garbage"], 2), ("controller", ["--rest-port", "99999"], 2),
    ("controller", ["--rest-host", "example"], 2), ("controller", ["--coflow-host", "::1"], 2),
    ("controller", ["--config", "/no/such/file"], 2), ("controller", ["--config", "/"], 2),
    ("controller", ["--config", "file"], 2), ("controller", ["--queues", "many"], 2),
    ("controller", ["--replica-policy", "best"], 2), ("controller", ["--policy-path", "file"], 2),
    ("controller", ["--poll-interval-seconds", "nan"], 2), ("controller", ["--coflow-key-file", "/no/such/file"], 2),
    ("controller", ["--rest-host", "192.0.2.1", "--openflow-port", "0", "--insecure=fabric"], 1),
    ("nameserver", [*NAMESERVER, "--listen", "nonsense"], 2),
    ("nameserver", [*NAMESERVER, "--chunk-size", "huge"], 2),
    ("nameserver", [*NAMESERVER, "--listen", "192.0.2.1:7400"], 1),
    ("nameserver", [*NAMESERVER, "--directory", "file"], 1), ("nameserver", [*NAMESERVER, "--etcd", "nonsense"], 2),
    ("nameserver", [*NAMESERVER, "--lease", "nan"], 2), ("nameserver", [*NAMESERVER, "--controller", "nonsense"], 2),
    ("dataserver", [*DATASERVER, "--listen", "nonsense"], 2), ("dataserver", [*DATASERVER, "--scrub-rate", "nan"], 2),
    ("dataserver", [*DATASERVER, "--listen", "192.0.2.1:0"], 2), ("dataserver", [*DATASERVER, "--id", ""], 2),
    ("dataserver", [*DATASERVER, "--directory", "file"], 1), ("dataserver", [*DATASERVER, "--controller", "x"], 2),
    ("dataserver", [*DATASERVER, "--recovery-rate", "0"], 2), ("dataserver", [*DATASERVER, "--nameserver", "x"], 2),
    ("mount", ["/x", "--nameserver", "127.0.0.1:1", "--parts", "99"], 2),
    ("mount", ["/no/such", "--nameserver", "127.0.0.1:1"], 1), ("mount", ["file", "--nameserver", "127.0.0.1:1"], 1),
    ("mount", [".", "--nameserver", "127.0.0.1:1", "--staging-directory", "/no/such"], 1),
    ("mount", ["empty", "--nameserver", "127.0.0.1:1", "--log", "/proc/no/log"], 1),
    ("mount", ["empty", "--nameserver", "nonsense", "--foreground"], 1),
]


@pytest.mark.timeout(600)
def test_every_daemon_says_no_in_one_line(tmp_path: Path) -> None:
    def said(number: int) -> tuple[list[str], str]:
        program, arguments, code = REFUSED[number]
        place = tmp_path / str(number)
        (place / "empty").mkdir(parents=True)
        (place / "file").write_bytes(b"\xff no JSON, no TOML, no Python")
        done = subprocess.run([SCRIPTS / f"speedwell-{program}", *arguments], capture_output=True, text=True,
                              timeout=120, check=False, cwd=place, stdin=subprocess.DEVNULL,
                              env=environment(place / "state"))
        return faults(done.returncode, done.stdout, done.stderr, codes=(code,),
                      program=f"speedwell-{program}"), done.stderr

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        outcomes = zip(REFUSED, pool.map(said, range(len(REFUSED))), strict=True)
    assert [(line, wrong) for line, wrong in outcomes if wrong[0]] == []


SCRIPT_NAMES = sorted(path.name for path in (Path(__file__).parents[3] / "scripts").glob("*[a-z]")
                      if path.is_file() and path.suffix != ".py" and "click" in path.read_text())


@pytest.mark.timeout(600)
def test_every_script_says_no_in_one_line() -> None:
    def said(name: str) -> list[str]:
        done = subprocess.run([sys.executable, Path(__file__).parents[3] / "scripts" / name, "--no-such-option"],
                              capture_output=True, text=True, timeout=120, check=False)
        return faults(done.returncode, done.stdout, done.stderr, codes=(2,), program=name)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        outcomes = zip(SCRIPT_NAMES, pool.map(said, SCRIPT_NAMES), strict=True)
    assert [(name, wrong) for name, wrong in outcomes if wrong] == []
