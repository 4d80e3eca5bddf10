"""speedwell report"""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("directories", nargs=-1, required=True, metavar="DIR...",
                type=click.Path(file_okay=False, path_type=Path))
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), default=Path("report.html"),
              show_default=True, metavar="FILE", help="The page; an existing file is replaced.")
def report(directories: tuple[Path, ...], output: Path) -> None:
    """Make one HTML page of results.

    DIR is where `speedwell experiment` or `speedwell simulate` left them. The page has their tables, plots, what the
    papers say, and what was run; it needs no other file and no network.
    """
    from speedwell.evaluation.results.page import write_page
    from speedwell.sim.errors import SimulationError

    try:
        click.echo(f"{write_page(directories, output)}: {len(directories)} sets of results")
    except (SimulationError, OSError) as error:
        raise click.ClickException(str(error)) from None
