"""speedwell up"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from cluster import current
from cluster.commands.output import echo, echo_json


class Size(click.ParamType):  # type: ignore[type-arg]  # generic only in newer releases of click
    """A number of bytes, plain or with a unit: 1048576, 1MiB, 64K."""

    name = "BYTES"
    units = {"": 1, "B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}

    def convert(self, value: str | int, parameter: click.Parameter | None,
                context: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        digits = value.strip().rstrip("iBbKkMmGgTt ")
        unit = value.strip()[len(digits):].strip().upper().replace("IB", "").removesuffix("B")
        if not digits.isdigit() or unit not in self.units:
            self.fail(f"{value!r} is not a number of bytes such as 1048576 or 1MiB", parameter, context)
        return int(digits) * self.units[unit]


@click.command()
@click.option("--local", "directory", type=click.Path(path_type=Path), metavar="DIR",
              help="Start on this machine's loopback; data, logs and state go below DIR. Default: the local "
                   "installation that was started last, if it was not stopped.")
@click.option("--mount", type=click.Path(path_type=Path), metavar="DIR", help="Mount the filesystem there.")
@click.option("--dataservers", type=click.IntRange(1), metavar="N", help="How many dataservers [default: 3].")
@click.option("--replication", type=click.IntRange(1), metavar="N", help="Replicas of a file [default: 3].")
@click.option("--chunk-size", type=Size(), help="Chunks of a stored file [default: 256MiB].")
@click.option("--json", "as_json", is_flag=True, help="Describe what runs as one JSON object.")
def up(directory: Path | None, mount: Path | None, dataservers: int | None, replication: int | None,
       chunk_size: int | None, as_json: bool) -> None:
    """Start an installation.

    With --local: a nameserver, dataservers and a mount on this machine, without root and without a
    controller. `up` again (on the same DIR) starts what does not run, with the settings of before and the
    files that are stored; a running installation is left as it is.
    """
    if directory is None:
        last = current.read()
        if last is None or last.kind != "local":
            raise click.UsageError("say what to start: --local DIR", click.get_current_context())
        directory = Path(last.directory)
    _local(directory, mount, dataservers, replication, chunk_size, as_json)


def _local(directory: Path, mount: Path | None, dataservers: int | None, replication: int | None,
           chunk_size_bytes: int | None, as_json: bool) -> None:
    from cluster import local

    settings = local.LocalSettings(directory, mount, dataservers, replication, chunk_size_bytes)
    result = local.up(settings, (lambda message: None) if as_json else _say)
    _make_default(result.current)
    if as_json:
        echo_json({**asdict(result.current), "started": result.started})
        return
    if not result.started:
        echo(f"already running in {result.current.directory}")
    echo(f"nameserver {result.current.nameserver}, {result.dataservers} dataservers, "
         f"{result.replication} replicas of each file")
    for mountpoint in result.current.mounts:
        echo(f"mounted at {mountpoint}")
    echo("next: `speedwell status`, `speedwell put FILE /`, `speedwell ls -l`; stop with `speedwell down`")


def _make_default(started: current.Current) -> None:
    """The other commands find the installation by this. It runs even if that cannot be written down."""
    try:
        current.write(started)
    except OSError as error:
        click.echo(f"speedwell: {current.state_directory()}: {error.strerror}; give the other commands "
                   f"--nameserver {started.nameserver}, and `down` --local {started.directory}", err=True)


def _say(message: str) -> None:
    click.echo(f"{message} ...", err=True)
