"""speedwell flows"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import click

from speedwell.cluster.commands.connection import Target, connection_options
from speedwell.cluster.commands.output import echo, echo_json
from speedwell.cluster.commands.watching import watch_options
from speedwell.cluster.errors import InvalidSetting
from speedwell.cluster.tables import echo_table
from speedwell.fs import units

FIRST, LAST = ("base", "reads", "coflows"), ("former", "strangers")


@click.command()
@click.argument("switch", required=False)
@click.option("--owner", metavar="OWNER", help="Of SWITCH, only the entries of this owner.")
@click.option("--json", "as_json", is_flag=True, help="What the controller answers.")
@watch_options
@connection_options
def flows(switch: str | None, owner: str | None, as_json: bool, target: Target) -> None:
    """Show the flow entries that the switches of the fabric hold, by owner; those of SWITCH one by one.

    An owner is `base` (the tables that every switch has), `reads` or `coflows` (single flows), a system with a table
    of its own, `former` (single flows of an earlier controller) or `strangers` (none of the controller's entries).
    SWITCH is a name or a datapath id. The switches are asked, not the controller's plan.
    """
    from speedwell.cluster.controller_client import ask

    if switch is None:
        if owner is not None:
            raise click.UsageError("--owner is for the entries of one SWITCH", click.get_current_context())
        answer = ask(target.controller, "/v1/entries")
    else:
        answer = _entries(target, switch, owner)
    if as_json:
        echo_json(answer)
    elif switch is None:
        _echo_counts(answer)
        for each in answer["switches"]:
            if each["problem"] is not None:
                click.echo(f"speedwell: {each['switch_name']}: {each['problem']}", err=True)
    else:
        _echo_entries(answer["entries"])
        echo(f"{answer['total']} entries on {answer['switch_name']} ({answer['dpid']})")


def _entries(target: Target, switch: str, owner: str | None) -> dict[str, Any]:
    """All pages as one. Raises InvalidSetting for a switch that does not exist."""
    from speedwell.cluster.controller_client import ask

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


def _echo_counts(answer: dict[str, Any]) -> None:
    others = sorted(answer["entries"].keys() - {*FIRST, *LAST})
    owners = [*FIRST, *others, *LAST]
    rows = [(switch["switch_name"], *(["?"] * (len(owners) + 1) if switch["problem"] else _row(switch, owners)))
            for switch in answer["switches"]]
    columns = (*owners, "in all")
    echo_table(("switch", *columns), [*rows, ("in all", *_row(answer, owners))], columns)


def _row(counted: dict[str, Any], owners: Sequence[str]) -> list[str]:
    return [*(str(counted["entries"].get(owner, 0)) for owner in owners), str(counted["total"])]


def _echo_entries(entries: list[dict[str, Any]]) -> None:
    echo_table(("owner", "table", "priority", "packets", "bytes", "match and actions"),
               [(entry["owner"], f"{entry['table']} {entry['table_name'] or ''}".rstrip(), str(entry["priority"]),
                 str(entry["packets"]), units.size(entry["bytes"]), " ".join(_words(entry))) for entry in entries],
               ("priority", "packets", "bytes"))


def _words(entry: dict[str, Any]) -> Iterator[str]:
    yield ",".join(f"{name}={value}" for name, value in entry["match"].items()) or "anything"
    yield "->"
    actions = [f"meter {entry['meter']}"] if entry["meter"] is not None else []
    actions += entry["actions"]
    if entry["goto_table"] is not None:
        actions.append(f"table {entry['goto_table']}")
    yield ", ".join(actions) or "drop"
