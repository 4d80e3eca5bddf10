"""speedwell version"""

import click


@click.command()
def version() -> None:
    """Print the version."""
    from importlib.metadata import version as installed_version

    click.echo(f"speedwell {installed_version('speedwell')}")
