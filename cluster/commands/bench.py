"""speedwell bench"""

from __future__ import annotations

from dataclasses import asdict

import click

from speedwell.cluster.commands.connection import Target, connection_options
from speedwell.cluster.commands.output import echo, echo_json
from speedwell.cluster.tables import echo_table
from speedwell.fs import units
from speedwell.fs.option_types import Size
from speedwell.fs.units import counted


@click.command()
@click.argument("directory", default="/")
@click.option("--threads", type=click.IntRange(1, 64), default=1, show_default=True, metavar="N",
              help="How many threads work at the same time, each with files of its own.")
@click.option("--big-size", type=Size(), default="64MiB", show_default=True,
              help="Size of the large file of each thread.")
@click.option("--small-size", type=Size(), default="64KiB", show_default=True, help="Size of each small file.")
@click.option("--small-files", type=click.IntRange(1, 100_000), default=100, show_default=True, metavar="N",
              help="How many small files each thread has.")
@click.option("--json", "as_json", is_flag=True, help="One JSON list; rates in MiB/s or files/s, times in seconds.")
@connection_options
def bench(directory: str, threads: int, big_size: int, small_size: int, small_files: int, as_json: bool,
          target: Target) -> None:
    """Measure how fast files are written, read, looked up and removed in DIRECTORY.

    The client library is measured, without a mount. Reads come from the dataservers' memory, where the files are as
    they have just been written. Everything is removed at the end, also after Ctrl-C.
    """
    from speedwell.cluster.bench import Work, run

    if not big_size or not small_size:
        raise click.UsageError("sizes begin at 1 byte", click.get_current_context())
    work = Work(threads, big_size, small_size, small_files)
    with target.connect(for_bytes=True) as client:
        client.require_dataservers()
        rows = run(client, client.follow(directory), work,
                   lambda item: None if as_json else click.echo(f"{item} ...", err=True))
    if as_json:
        echo_json([asdict(row) for row in rows])
        return
    echo(f"{counted(threads, 'thread')}, each with {units.size(big_size)} in one file and "
         f"{counted(small_files, 'file')} of {units.size(small_size)}")
    echo_table(("item", "rate", "unit", "time per file"),
               [(row.item, f"{row.rate:.1f}", row.unit, units.latency(row.seconds_each)) for row in rows],
               ("rate", "time per file"))
