"""speedwell version, speedwell completion"""

import os
import subprocess
from pathlib import Path

import click

CHECKOUT = Path(__file__).resolve().parents[2]
"""Where this runs from a clone; that of an installed package is no clone's."""
GIT_SECONDS = 10.0


def installed() -> str:
    """`speedwell 1.2.3`."""
    from importlib.metadata import version as installed_version

    return f"speedwell {installed_version('speedwell')}"


def running(checkout: Path = CHECKOUT) -> str:
    """The same; from a clone with the newest tag and the commit after it: `speedwell 1.2.3 (v1.2.3-4-g0123abc)`, with
    `-dirty` where files differ from the commit. Without tags it is the commit alone."""
    if not (checkout / ".git").exists():
        return installed()
    describe = ["git", "-C", str(checkout), "describe", "--tags", "--match", "v*", "--always", "--dirty"]
    try:
        done = subprocess.run(describe, capture_output=True, text=True, timeout=GIT_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return installed()      # no git, or it does not trust the owner of the clone
    return f"{installed()} ({done.stdout.strip()})"


@click.command()
def version() -> None:
    """Print the version, and in a clone its commit."""
    click.echo(running())


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
