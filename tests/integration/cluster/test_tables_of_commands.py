"""The tables of the commands of an installation whose names are long: on terminals of 80 and 200 columns, in a pipe,
and with `--watch`."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.cells import cell_len

from tests.integration.cluster.executable import SCRIPTS, Speedwell
from tests.terminal import Terminal, plain, shown
from tests.waiting import wait_until

PLACE, LIMITED, REMOVED, TREE = "Ω" * 90, "Ж" * 120, "Ϡ" * 120, "Ѫ" * 70
"""Letters that stand in no other word."""
COMMANDS = {"status": {PLACE[0]: 1}, "list": {PLACE[0]: 1}, "node list": {}, "df -H": {},
            "quota list": {LIMITED[0]: 1}, f"quota show /{LIMITED}": {LIMITED[0]: 1},
            "trash list": {REMOVED[0]: 1, TREE[0]: 1}}
"""With how often each name stands in the table, if anywhere."""
LENGTHS = {name[0]: len(name) for name in (PLACE, LIMITED, REMOVED, TREE)}


@pytest.fixture(scope="module")
def speedwell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Speedwell]:
    directory = tmp_path_factory.mktemp("tables")
    made = Speedwell(directory / "state")
    made.ok("up", "--local", directory / PLACE)
    try:
        made.ok("mkdir", f"/{LIMITED}", f"/{TREE}", f"/{TREE}/inside")
        made.ok("quota", "set", f"/{LIMITED}", "--bytes", "10GiB")
        made.ok("trash", "on", "--keep", "7d")
        for name in (f"/{REMOVED}", f"/{TREE}/a", f"/{TREE}/inside/b"):
            made.ok("put", "-", name, stdin=b"bytes")
        made.ok("rm", f"/{REMOVED}")
        made.ok("rm", "-r", f"/{TREE}")
        yield made
    finally:
        made.run("down", "--force")


def arguments(command: str) -> list[str]:
    return [str(SCRIPTS / "speedwell"), *command.split()]


@pytest.mark.parametrize("columns", [80, pytest.param(200, marks=pytest.mark.full)])
@pytest.mark.parametrize("command", list(COMMANDS))
def test_on_a_terminal_no_name_is_cut(speedwell: Speedwell, command: str, columns: int) -> None:
    code, text = shown(arguments(command), columns, speedwell.environment)
    assert code == 0, text
    table = text if command != "status" else text[text.index("process "):]
    assert max(map(cell_len, table.splitlines())) <= columns or command == "trash list"
    assert "…" not in text
    for letter, times in COMMANDS[command].items():
        assert text.count(letter) == times * LENGTHS[letter]


@pytest.mark.parametrize("command", list(COMMANDS))
def test_in_a_pipe_a_row_is_one_line_with_its_whole_name(speedwell: Speedwell, command: str) -> None:
    lines = speedwell.ok(*command.split()).splitlines()
    for letter in COMMANDS[command]:
        (row,) = [line for line in lines if letter in line]
        assert letter * LENGTHS[letter] in row
    assert all(line == line.rstrip() and "\x1b" not in line for line in lines)


def test_a_removed_tree_is_one_row_that_says_how_much_was_below_it(speedwell: Speedwell) -> None:
    (row,) = [line for line in speedwell.ok("trash", "list").splitlines() if TREE in line]
    assert row.split()[-3:] == ["B", "3", f"/{TREE}"] and " 10 B " in row


def test_what_is_kept_is_said_as_people_say_it(speedwell: Speedwell) -> None:
    assert speedwell.ok("trash", "list").startswith("files removed in / are kept for 7 days\n")


@pytest.mark.parametrize("command", list(COMMANDS))
def test_a_watched_command_shows_it_again_until_ctrl_c(speedwell: Speedwell, command: str) -> None:
    terminal = Terminal([*arguments(command), "--watch", "--interval", "0.2"], 80, speedwell.environment)
    text = ""
    while text.count("every 0.2 s") < 3:
        piece = terminal.read()
        assert piece, plain(text)
        text += piece
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.process.wait(60) == 0
    terminal.close()


def test_watching_goes_on_while_the_nameserver_is_away(tmp_path: Path) -> None:
    directory = tmp_path / "other"
    other = Speedwell(tmp_path / "state")
    other.ok("up", "--local", directory, "--dataservers", "1")
    process = None
    try:
        process = other.start("node", "list", "--watch", "--interval", "0.2")
        assert process.stdout is not None and process.stderr is not None
        while b"alive" not in process.stdout.readline():
            pass
        other.ok("down", "--force")
        told = process.stderr.readline().decode()
        assert "did not answer" in told or "no installation runs here" in told
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    finally:
        if process is not None:
            process.kill()
        other.run("down", "--force")
    wait_until(lambda: process.poll() is not None, 20, "it goes on")
