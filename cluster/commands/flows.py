"""speedwell flows"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from cluster.commands.connection import Target, connection_options
from cluster.commands.output import bytes_for_people, console, echo, echo_json
from cluster.errors import InvalidSetting

if TYPE_CHECKING:
    from rich.table import Table

FIRST, LAST = ("base", "reads", "coflows"), ("former", "strangers")


@click.command()
@click.argument("switch", required=False)
@click.option("--owner", metavar="OWNER", help="Of SWITCH, only the entries of this owner.")
@click.option("--json", "as_json", is_flag=True, help="What the controller answers.")
@connection_options
def flows(switch: str | None, owner: str | None, as_json: bool, target: Target) -> None:
    """Show the flow entries that the switches of the fabric hold, by owner; those of SWITCH one by one.

    An owner is `base` (the tables that every switch has), `reads` or `coflows` (single flows), a system with a table
    of its own, `former` (single flows of an earlier controller) or `strangers` (none of the controller's entries).
    SWITCH is a name or a datapath id. The switches are asked, not the controller's plan.
    """
    from cluster.controller_client import ask

    if switch is None:
        if owner is not None:
            raise click.UsageError("--owner is for the entries of one SWITCH", click.get_current_context())
        answer = ask(target.controller, "/v1/entries")
        shown = _counts(answer)
    else:
        answer = _entries(target, switch, owner)
        shown = _details(answer["entries"])
    if as_json:
        echo_json(answer)
        return
    console().print(shown)
    if switch is None:
        for each in answer["switches"]:
            if each["problem"] is not None:
                click.echo(f"speedwell: {each['switch_name']}: {each['problem']}", err=True)
        return
    echo(f"{answer['total']} entries on {answer['switch_name']} ({answer['dpid']})")


def _entries(target: Target, switch: str, owner: str | None) -> dict[str, Any]:
    """All pages as one. Raises InvalidSetting for a switch that does not exist."""
    from cluster.controller_client import ask

    known = ask(target.controller, "/v1/switches")["switches"]
    dpid = {each["name"]: each["dpid"] for each in known}.get(switch, switch)
    if not set(dpid.removeprefix("0x")) <= set("0123456789abcdefABCDEF"):
        raise InvalidSetting(f"no switch is named {switch!r}; there are "
                             f"{', '.join(sorted(each['name'] for each in known)) or 'none'}")
    answer: dict[str, Any] = {"entries": [], "next_offset": 0}
    while answer["next_offset"] is not None:
        page = ask(target.controller, f"/v1/switches/{dpid}/entries", owner=owner, limit=500,
                   offset=answer["next_offset"])
        answer = {**page, "entries": [*answer["entries"], *page["entries"]]}
    return answer


def _counts(answer: dict[str, Any]) -> Table:
    from rich.table import Table

    others = sorted(answer["entries"].keys() - {*FIRST, *LAST})
    owners = [*FIRST, *others, *LAST]
    table = Table("switch", box=None, pad_edge=False)
    for column in (*owners, "in all"):
        table.add_column(column, justify="right", no_wrap=True)
    rows = [*answer["switches"], {"switch_name": "in all", "problem": None, **answer}]
    for row in rows:
        cells = [str(row["entries"].get(owner, 0)) for owner in owners]
        table.add_row(row["switch_name"], *(["?"] * len(cells) if row["problem"] else cells),
                      "?" if row["problem"] else str(row["total"]))
    return table


def _details(entries: list[dict[str, Any]]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table("owner", "table", box=None, pad_edge=False)
    for column in ("priority", "packets", "bytes"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("match and actions", overflow="fold")
    for entry in entries:
        table.add_row(entry["owner"], f"{entry['table']} {entry['table_name'] or ''}".rstrip(),
                      str(entry["priority"]), str(entry["packets"]), bytes_for_people(entry["bytes"]),
                      Text(" ".join(_words(entry))))
    return table


def _words(entry: dict[str, Any]) -> Iterator[str]:
    yield ",".join(f"{name}={value}" for name, value in entry["match"].items()) or "anything"
    yield "->"
    actions = [f"meter {entry['meter']}"] if entry["meter"] is not None else []
    actions += entry["actions"]
    if entry["goto_table"] is not None:
        actions.append(f"table {entry['goto_table']}")
    yield ", ".join(actions) or "drop"
