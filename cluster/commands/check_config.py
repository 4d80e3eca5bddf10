"""speedwell check-config"""

from __future__ import annotations

import importlib
from pathlib import Path

import click

from speedwell.cluster.commands.output import echo, echo_json
from speedwell.cluster.errors import InvalidSetting
from speedwell.fs.command_line import missing

ROLES = {"nameserver": ("fs.nameserver.main", "server"), "dataserver": ("fs.dataserver.main", "server"),
         "mount": ("fuse_mount.main", "client"), "certificates": ("fs.identity.main", "client"),
         "metadata-store": ("fs.metadata_store.main", "server"), "host-agent": ("host_agent.main", "server"),
         "timeslices": ("controller.timeslices.main", "controller"),
         "controller": ("controller.settings", "controller")}
"""The module of each, and the extra of the package that brings what it needs."""


@click.command("check-config")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False), required=False)
@click.option("--role", type=click.Choice(list(ROLES)), help="Whose settings these are.  [default: what the file is "
              "called, as dataserver.toml]")
@click.option("--schema", is_flag=True, help="Print the JSON schema of a --role's settings.")
def check_config(file: Path | None, role: str | None, schema: bool) -> None:
    """Check a file with the settings of a daemon.

    `speedwell-ROLE --config FILE` reads it: TOML, with a key for each option of the command line.
    """
    chosen = role or (file.stem.partition("@")[0] if file is not None else "")
    if chosen not in ROLES:
        raise InvalidSetting(f"--role: say whose settings these are, one of {', '.join(ROLES)}")
    if (file is None) != schema:
        raise click.UsageError("name a FILE, or a --role with --schema", click.get_current_context())
    name, extra = ROLES[chosen]
    try:
        module = importlib.import_module(f"speedwell.{name}")
    except ModuleNotFoundError as error:
        raise InvalidSetting(missing(error.name, extra)) from None
    if chosen == "controller":
        if file is None:
            echo_json(module.Settings.model_json_schema())
            return
        module.load_settings(file)
    else:
        from speedwell.fs import config

        if file is None:
            echo_json(config.schema(module.command))
            return
        values = config.check(module.command, file)
        if chosen == "nameserver":
            module.namespace_settings(values)
    echo(f"{file} is good for speedwell-{chosen}")
