"""Options of commands that take policies: their help names all that there are, the user's own included."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from speedwell.controller.own_policies import POLICIES, add_file
from speedwell.controller.policy.errors import InvalidPolicy
from speedwell.controller.policy.registry import Kind


class PolicyOption(click.Option):
    """An option whose help names policies where it has {replica}, {path} or {coflow}, as they are then."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._template = self.help or ""

    def get_help_record(self, context: click.Context) -> tuple[str, str] | None:
        """The option's lines in the help."""
        _load(())
        self.help = self._template.format(**{kind.value: POLICIES.choices(kind) for kind in Kind})
        return super().get_help_record(context)


def _load(paths: tuple[Path, ...]) -> None:
    try:
        POLICIES.complete()
        for path in paths:
            add_file(POLICIES, path)
    except InvalidPolicy as error:
        raise click.UsageError(str(error), click.get_current_context(silent=True)) from None


policy_path_option = click.option(
    "--policy-path", type=click.Path(path_type=Path), multiple=True, metavar="FILE", is_eager=True,
    expose_value=False, callback=lambda context, option, paths: _load(paths),
    help="A Python file with policies of your own, which are then offered like the others. May be repeated.")
