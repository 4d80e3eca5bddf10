"""speedwell man"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import click

from speedwell.cluster.commands.version import installed
from speedwell.cluster.state_files import STATE_MODE
from speedwell.fs import durable

SECTION = "1"


@click.command()
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
def man(directory: Path) -> None:
    """Write a man page for every command into DIRECTORY/man1.

    `man -l DIRECTORY/man1/speedwell-put.1` shows one; so does `man speedwell-put` with DIRECTORY in MANPATH.
    scripts/setup writes them to .venv/share/man, which `man` finds by itself when .venv/bin is in PATH.
    """
    place = directory / f"man{SECTION}"
    place.mkdir(parents=True, exist_ok=True)
    pages = list(contexts(click.Context(click.get_current_context().find_root().command, info_name="speedwell")))
    durable.replace_all([(place / f"{page_name(context)}.{SECTION}", page(context).encode()) for context in pages],
                        STATE_MODE)
    click.echo(f"{len(pages)} pages in {place}")


def contexts(above: click.Context) -> Iterator[click.Context]:
    """A command and all below it, as they are called."""
    yield above
    for name, command in _usable(above):
        yield from contexts(click.Context(command, above, info_name=name))


def page_name(context: click.Context) -> str:
    """`speedwell-node-drain`."""
    return context.command_path.replace(" ", "-")


def page(context: click.Context) -> str:
    """The man page of one command, in the macros of man(7), from its own help."""
    first, _, rest = inspect.cleandoc(context.command.help or "").removeprefix("Speedwell: ").partition("\n\n")
    sentence, _, others = " ".join(first.split()).partition(". ")
    lines = [f'.TH "{_escaped(page_name(context).upper())}" {SECTION} "" "{installed()}" "Speedwell"',
             ".SH NAME", f"{_escaped(page_name(context))} \\- {_escaped(sentence.rstrip('.'))}",
             ".SH SYNOPSIS",
             f"\\fB{_escaped(context.command_path)}\\fP "
             f"{_escaped(' '.join(context.command.collect_usage_pieces(context)))}",
             ".SH DESCRIPTION", *_paragraphs("\n\n".join((f"{sentence.rstrip('.')}. {others}", rest)))]
    for title, rows in (("OPTIONS", _options(context)), ("COMMANDS", _commands(context)),
                        ("ENVIRONMENT", _environment(context))):
        if rows:
            lines.append(f".SH {title}")
            for term, text in rows:
                lines += [".TP", f"\\fB{_escaped(term)}\\fP", *_paragraphs(text)]
    lines += [".SH EXIT STATUS", "0: done; 1: refused or failed; 2: wrong usage; 130: interrupted."]
    if context.parent is not None:
        lines += [".SH SEE ALSO", f"\\fB{_escaped(page_name(context.parent))}\\fP({SECTION})"]
    return "\n".join(lines) + "\n"


def _options(context: click.Context) -> list[tuple[str, str]]:
    return [record for parameter in context.command.get_params(context)
            if (record := parameter.get_help_record(context)) is not None]


def _commands(context: click.Context) -> list[tuple[str, str]]:
    return [(f"{page_name(context)}-{name}({SECTION})", command.get_short_help_str(limit=200))
            for name, command in _usable(context)]


def _usable(context: click.Context) -> Iterator[tuple[str, click.Command]]:
    """The commands of a group, without those that need an extra which is not installed."""
    if isinstance(context.command, click.Group):
        for name in context.command.list_commands(context):
            try:
                command = context.command.get_command(context, name)
            except ModuleNotFoundError:
                continue
            assert command is not None
            yield name, command


def _environment(context: click.Context) -> list[tuple[str, str]]:
    return [(str(parameter.envvar), f"as {max(parameter.opts, key=len)}")
            for parameter in context.command.get_params(context) if parameter.envvar]


def _paragraphs(text: str) -> list[str]:
    """Paragraphs of a help text, those that click is not to wrap (\\b) line by line."""
    lines: list[str] = []
    for paragraph in filter(None, re.split(r"\n\s*\n", text.strip())):
        kept = paragraph.startswith("\b")
        body = paragraph.removeprefix("\b").strip("\n")
        lines += [".nf", *map(_line, body.splitlines()), ".fi"] if kept else [_line(" ".join(body.split()))]
        lines.append(".PP")
    return lines[:-1]


def _line(text: str) -> str:
    """A line of text that begins with what begins a macro is no macro."""
    return ("\\&" if text.startswith((".", "'")) else "") + _escaped(text)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\(ga")
