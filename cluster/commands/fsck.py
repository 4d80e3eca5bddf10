"""speedwell fsck"""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

import click

from speedwell.cluster.commands.connection import Target, connection_options
from speedwell.cluster.commands.output import echo, echo_json
from speedwell.cluster.errors import CannotTell
from speedwell.fs.command_line import Number
from speedwell.fs.units import counted

if TYPE_CHECKING:
    from speedwell.cluster.fsck import Check, Problem
    from speedwell.fs.client.names.metadata import MetadataClient

CLEAN, REPAIRED, NOT_REPAIRED = 0, 1, 4
POLL_SECONDS = 0.5
UNSEEN_SHOWN = 10


@click.command()
@click.option("--repair", is_flag=True, help="Repair the problems, and wait until that is done.")
@click.option("--accept-roll-back", is_flag=True, help="Go on with a namespace that is an old copy of itself, when "
              "there is no newer one. Contents that it does not know go to quarantine.")
@click.option("--verify", is_flag=True, help="Compare all stored bytes with their checksums now. Otherwise only "
              "damage is told that dataservers have found and could not repair.")
@click.option("--timeout", "timeout_seconds", type=Number(0), default=300.0, show_default=True,
              metavar="SECONDS", help="How long a repair may take.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@connection_options
@click.pass_context
def fsck(context: click.Context, repair: bool, accept_roll_back: bool, verify: bool, timeout_seconds: float,
         as_json: bool, target: Target) -> None:
    """Check that every file's content lies where it should.

    Exit codes: 0 nothing is wrong, 1 what was wrong has been repaired, 4 something is wrong, or could not be looked
    at. What is normal is told and is no error: copies that wait for their deletion, replicas that are being made.
    """
    from speedwell.cluster import fsck as checking

    with target.connect(for_bytes=True) as client:
        if accept_roll_back:
            client.metadata.operator.repair((), (), accept_roll_back=True)
        first = result = checking.check(client.metadata, verify=verify)
        refusal = ""
        if repair and not result.clean and not result.warnings:
            try:
                result = _repaired(client.metadata, result, verify, time.monotonic() + timeout_seconds)
            except CannotTell as error:
                refusal = str(error)
    if as_json:
        echo_json({**result.document(), "found": first.document()["problems"]})
    else:
        _print(result, first.problems if repair and not result.problems else [])
    if refusal:
        click.echo(f"speedwell: {refusal}", err=True)
    if result.problems or result.warnings or result.unreachable:
        context.exit(NOT_REPAIRED)
    context.exit(REPAIRED if first.problems else CLEAN)


def _repaired(metadata: MetadataClient, result: Check, verify: bool, deadline: float) -> Check:
    from speedwell.cluster import fsck as checking

    while not result.clean and time.monotonic() < deadline:
        checking.repair(metadata, result)
        time.sleep(POLL_SECONDS)
        result = checking.check(metadata, digests=verify)
        if not result.problems:
            break  # servers that are away are nothing to repair
    return result


def _print(result: Check, repaired: list[Problem]) -> None:
    unseen = [problem for problem in result.problems if problem.unseen]
    wrong = [problem for problem in result.problems if not problem.unseen]
    for problem in [*wrong, *unseen[:UNSEEN_SHOWN]]:
        where = f" on {problem.dataserver_id}" if problem.dataserver_id else ""
        name = problem.path or (f"inode {problem.inode}" if problem.inode else "")
        echo(f"{problem.kind}{where}: {f'{name}, ' if name else ''}content {problem.file_id}: {problem.detail}")
    if len(unseen) > UNSEEN_SHOWN:
        echo(f"unreachable: {len(unseen) - UNSEEN_SHOWN} more (--json names all)")
    if result.unreachable:
        echo(f"not reached from this machine: dataserver {', '.join(result.unreachable)}")
    for name in result.away:
        echo(f"away: dataserver {name}")
    for warning in result.warnings:
        echo(f"to decide: {warning}")
    if result.waiting:
        echo(f"normal: {counted(result.waiting, 'replica')} being made or waiting for deletion, as after a drain")
    if result.awaited_inventories:
        echo(f"deletions wait for the reports of {', '.join(result.awaited_inventories)}")
    if result.quarantined:
        echo(f"in quarantine: {counted(len(result.quarantined), 'content')} that no file has "
             "(`speedwell quarantine list`)")
    kinds = ", ".join(f"{count} {kind}" for kind, count in Counter(problem.kind for problem in wrong).items())
    verdict = f"{counted(len(wrong), 'problem')} ({kinds})" if wrong else (
        "not all could be looked at" if result.unreachable else "to decide" if result.warnings else "clean")
    if unseen:
        verdict += f", {counted(len(unseen), 'file')} unreachable from this machine"
    echo(f"{counted(result.files, 'file')}, {counted(result.replicas, 'replica')}: {verdict}"
         + (f", {len(repaired)} repaired" if repaired else ""))
