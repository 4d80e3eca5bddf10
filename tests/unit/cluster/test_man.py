"""The man pages that `speedwell man` writes."""

import shutil
import subprocess

import click
import pytest

from speedwell.cluster import cli
from speedwell.cluster.commands import man


def all_contexts():
    return list(man.contexts(click.Context(cli.speedwell, info_name="speedwell")))


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    directory = tmp_path_factory.mktemp("man")
    assert cli.run(["man", str(directory)]) == 0
    return {path.name: path for path in (directory / "man1").iterdir()}


def test_every_command_has_a_page(pages):
    assert set(pages) == {f"{man.page_name(context)}.1" for context in all_contexts()}
    assert {"speedwell.1", "speedwell-put.1", "speedwell-node-drain.1"} <= set(pages)
    assert set(cli.COMMANDS) <= {name.removeprefix("speedwell-").removesuffix(".1") for name in pages}


def test_a_page_names_each_option_and_command_of_its_help(pages):
    for context in all_contexts():
        text = pages[f"{man.page_name(context)}.1"].read_text().replace("\\-", "-")
        for parameter in context.command.get_params(context):
            if isinstance(parameter, click.Option):
                assert all(option in text for option in parameter.opts), (context.command_path, parameter.opts)
        if isinstance(context.command, click.Group):
            for name in context.command.list_commands(context):
                assert f"{man.page_name(context)}-{name}(1)" in text


@pytest.mark.skipif(shutil.which("man") is None, reason="no man(1) here")
def test_man_shows_each_page_without_a_warning(pages):
    environment = {"MANWIDTH": "78", "LC_ALL": "C.UTF-8", "PATH": "/usr/bin:/bin"}
    for path in pages.values():
        shown = subprocess.run(["man", "--warnings", "-l", path], capture_output=True, text=True, timeout=30,
                               check=False, env=environment)
        assert (shown.returncode, shown.stderr) == (0, ""), path.name
        assert "SYNOPSIS" in shown.stdout and "\\" not in shown.stdout


def test_what_looks_like_a_macro_stays_text():
    @click.command("odd")
    def odd() -> None:
        """Say `so'.

        .TH is no macro here, 'nor this, and a \\backslash stays one.

        \b
        two
          lines
        """

    text = man.page(click.Context(odd, info_name="odd"))
    assert "\n\\&.TH is no macro here, \\(aqnor this, and a \\ebackslash stays one.\n" in text
    assert ".nf\ntwo\n  lines\n.fi" in text
