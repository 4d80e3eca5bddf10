"""speedwell version, speedwell completion"""

import os

import click


def installed() -> str:
    """`speedwell 1.2.3`."""
    from importlib.metadata import version as installed_version

    return f"speedwell {installed_version('speedwell')}"


@click.command()
def version() -> None:
    """Print the version."""
    click.echo(installed())


@click.command()
@click.argument("shell", required=False, type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str | None) -> None:
    """Print what makes a shell complete commands and options; default: the shell of $SHELL.

    For bash: eval "$(speedwell completion bash)", in ~/.bashrc to have it in every shell.
    """
    from click.shell_completion import get_completion_class

    speedwell = click.get_current_context().find_root().command
    name = shell or os.path.basename(os.environ.get("SHELL", ""))  # noqa: PTH119 - a name, not a path here
    kind = get_completion_class(name)
    if kind is None:
        raise click.UsageError(f"say which shell: bash, zsh or fish ($SHELL is {name or 'not set'})")
    click.echo(kind(speedwell, {}, "speedwell", "_SPEEDWELL_COMPLETE").source())
