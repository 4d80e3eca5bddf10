"""Every `speedwell` command in the README and in docs/ is one that there is, with options that it has."""

import re
import shlex
from pathlib import Path

import click
import pytest

from speedwell.cluster import cli

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCED = re.compile(r"^```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?:^    .*\n)+", re.MULTILINE)
FILES = re.compile(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```", re.DOTALL)


def copied(text: str) -> list[str]:
    """What readers copy as it stands: lines of blocks."""
    blocks = [*FENCED.findall(text), *INDENTED.findall(FENCED.sub("", text))]
    return [line.strip() for block in blocks for line in block.replace("\\\n", " ").splitlines()
            if re.match(r"\s*(\.venv/bin/)?speedwell ", line)]


def mentioned(text: str) -> list[str]:
    return [" ".join(command.split()) for command in re.findall(r"`(speedwell [^`]+)`", FENCED.sub("", text))]


def parse(command: str) -> None:
    """Raises UsageError for what the command line does not take; nothing is run."""
    words = shlex.split(re.split(r" [<>|] ", command)[0], comments=True)[1:]
    context = cli.speedwell.make_context("speedwell", words)
    while isinstance(context.command, click.Group):
        name, found, rest = context.command.resolve_command(context, [*context._protected_args, *context.args])
        assert found is not None and name is not None
        try:
            context = found.make_context(name, rest, parent=context)
        except click.exceptions.Exit:       # --help, --schema
            return


@pytest.fixture(autouse=True)
def in_a_directory_with_the_files_that_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPEEDWELL_POLICY_PATH", "")     # an own policy is the whole process's from here on
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    for name in ("FILE", "KEY"):
        (tmp_path / name).touch()
    for page in PAGES:
        for name, text in FILES.findall(page.read_text()):
            if "/" not in name:
                (tmp_path / name).write_text(text)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_that_are_to_be_copied_are_taken(page: Path) -> None:
    for command in copied(page.read_text()):
        if "--policy-path" not in command and "by-locality" not in command:     # test_extending.py runs those
            parse(command)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_that_are_mentioned_exist_with_their_options(page: Path) -> None:
    for command in mentioned(page.read_text()):
        try:
            parse(re.sub(r"\s*\.\.\.", "", command))
        except click.NoSuchOption as error:
            pytest.fail(f"{command}: {error}")
        except click.UsageError as error:       # without what it is applied to
            assert "No such command" not in str(error) or "COMMAND" in command, command


def test_there_are_many() -> None:
    text = "".join(page.read_text() for page in PAGES)
    assert len(copied(text)) > 30 and len(mentioned(text)) > 60
