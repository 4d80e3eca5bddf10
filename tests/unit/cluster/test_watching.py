"""`--watch`, on a terminal and without one."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.terminal import Terminal
from tests.waiting import wait_until

PROGRAM = """
import sys, click
from pathlib import Path
from speedwell.cluster.commands.watching import watch_options
from speedwell.cluster.tables import echo_table
from speedwell.fs import command_line
from speedwell.fs.errors import NameserverUnavailable

calls = 0

@click.command()
@click.option("--json", "as_json", is_flag=True)
@watch_options
def look(as_json):
    global calls
    calls += 1
    if calls == 2 or "broken" in sys.argv[1]:
        raise NameserverUnavailable("the nameserver 10.0.0.1:7400 does not answer")
    echo_table(("name", "looks"), [("x" * 100, str(calls))], ("looks",))
    if calls == 1:
        raise SystemExit(3) if "exits" in sys.argv[1] else click.exceptions.Exit(1)

sys.exit(command_line.run(look, "look", sys.argv[2:]))
"""


def command(kind: str, *options: str) -> list[str]:
    return [sys.executable, "-c", PROGRAM, kind, *options]


def test_each_look_follows_the_last_one_where_there_is_no_terminal_and_ctrl_c_ends_it_with_0(tmp_path: Path) -> None:
    with (tmp_path / "out").open("w") as out, (tmp_path / "err").open("w") as err:
        process = subprocess.Popen(command("works", "--watch", "--interval", "0.1"), stdout=out, stderr=err)
    try:
        wait_until(lambda: (tmp_path / "out").read_text().count("every 0.1 s") >= 4, 60, "it was not shown again")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    finally:
        process.kill()
    text = (tmp_path / "out").read_text()
    assert "\x1b" not in text
    looks = [line.split()[-1] for line in text.splitlines() if line.startswith("xxx")]
    assert looks[:3] == ["1", "3", "4"]
    assert (tmp_path / "err").read_text() == "speedwell: the nameserver 10.0.0.1:7400 does not answer\n"


def test_on_a_terminal_each_look_takes_the_place_of_the_last_one() -> None:
    terminal = Terminal(command("works", "--watch", "--interval", "0.1"), 80)
    text = ""
    while text.count("every 0.1 s") < 4:
        text += terminal.read()
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.process.wait(60) == 0
    assert text.count("\x1b[2J") == 1 and text.count("\x1b[H") >= 4
    assert "does not answer" in text
    terminal.close()


def test_what_is_wrong_from_the_start_ends_it() -> None:
    result = subprocess.run(command("broken", "--watch"), capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == "look: the nameserver 10.0.0.1:7400 does not answer\n"


@pytest.mark.parametrize("options", [("--watch", "--json"), ("--watch", "--interval", "0"),
                                     ("--watch", "--interval", "nan")])
def test_what_makes_no_sense_is_refused(options: tuple[str, ...]) -> None:
    result = subprocess.run(command("works", *options), capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1)
