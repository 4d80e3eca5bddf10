"""speedwell list"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from cluster import current, mounts
from cluster.commands.output import echo, echo_json
from cluster.commands.watching import watch_options
from cluster.processes import Processes
from cluster.tables import echo_table


@click.command("list")
@click.option("--json", "as_json", is_flag=True, help="One JSON list.")
@watch_options
def list_installations(as_json: bool) -> None:
    """List the installations of this machine, the one started last first.

    Commands talk to the one marked with *; --installation DIR names another.
    """
    default = current.read()
    rows: list[dict[str, Any]] = []
    for installation in current.started():
        processes = Processes(Path(installation.directory))
        running = len(processes.running())
        places = mounts.of_nameserver(installation.nameserver) if running else []
        rows.append({**asdict(installation), "running": running, "processes": len(processes.records),
                     "default": default is not None and installation.directory == default.directory,
                     "mounts": list(dict.fromkeys(map(str, places)))})
    if as_json:
        echo_json(rows)
    elif not rows:
        echo("no installation was started here: `speedwell up --local DIR` starts one")
    else:
        _print(rows)


def _print(rows: list[dict[str, Any]]) -> None:
    cells = []
    for row in rows:
        state = ("stopped" if not row["running"] else "running" if row["running"] == row["processes"]
                 else f"{row['running']} of {row['processes']} run")
        cells.append(("*" if row["default"] else "", row["directory"], row["kind"], state,
                      row["nameserver"] if row["running"] else "", ", ".join(row["mounts"])))
    echo_table(("default", "directory", "kind", "state", "nameserver", "mounts"), cells)
