"""speedwell list"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from speedwell.cluster import current, mounts
from speedwell.cluster.commands.output import echo, echo_json
from speedwell.cluster.commands.watching import watch_options
from speedwell.cluster.errors import InvalidState
from speedwell.cluster.processes import Processes
from speedwell.cluster.tables import echo_table


@click.command("list")
@click.option("--json", "as_json", is_flag=True, help="One JSON list.")
@watch_options
@click.pass_context
def list_installations(context: click.Context, as_json: bool) -> None:
    """List the installations of this machine, the one started last first.

    Commands talk to the one marked with *; --installation DIR names another.
    """
    default = current.read()
    rows: list[dict[str, Any]] = []
    damaged: list[str] = []
    for installation in current.started():
        try:
            processes = Processes(Path(installation.directory))
        except InvalidState as error:
            damaged.append(str(error))
            rows.append({**asdict(installation), "running": 0, "processes": 0, "damaged": True, "default": False,
                         "mounts": []})
            continue
        running = len(processes.running())
        places = mounts.of_installation(installation.directory, installation.nameserver) if running else []
        rows.append({**asdict(installation), "running": running, "processes": len(processes.records),
                     "damaged": False, "default": default is not None and installation.directory == default.directory,
                     "mounts": list(dict.fromkeys(map(str, places)))})
    if as_json:
        echo_json(rows)
    elif not rows:
        echo("no installation was started here: `speedwell up --local DIR` starts one")
    else:
        _print(rows)
    for reason in damaged:
        click.echo(f"speedwell: {reason}", err=True)
    context.exit(1 if damaged else 0)


def _print(rows: list[dict[str, Any]]) -> None:
    cells = []
    for row in rows:
        running, processes = row["running"], row["processes"]
        state = ("damaged" if row["damaged"] else "stopped" if not running
                 else "running" if running == processes else f"{running} of {processes} run")
        cells.append(("*" if row["default"] else "", row["directory"], row["kind"], state,
                      row["nameserver"] if running else "", ", ".join(row["mounts"])))
    echo_table(("default", "directory", "kind", "state", "nameserver", "mounts"), cells)
