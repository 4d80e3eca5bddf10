"""speedwell coflow send, speedwell coflow recv"""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import click

from speedwell.cluster import fabric_network
from speedwell.cluster.errors import NotOnFabric
from speedwell.cluster.progress import Meter
from speedwell.coflow.errors import InvalidSetting
from speedwell.coflow.parts import MAX_PARTS
from speedwell.coflow.receiver import Receiver
from speedwell.coflow.report import host_key
from speedwell.coflow.reporter import Reporter
from speedwell.coflow.settings import ADDRESS_VARIABLE, KEY_FILE_VARIABLE, read_key, scheduler
from speedwell.coflow.transfer import send as send_file
from speedwell.fs import units
from speedwell.topo.click_types import HostPort

_ID_HEX_DIGITS = 32


@click.group()
def coflow() -> None:
    """Move a file over TCP flows that are scheduled together."""


@coflow.command()
@click.argument("source", type=click.Path(path_type=Path, exists=True, dir_okay=False), metavar="FILE")
@click.argument("destination", type=HostPort())
@click.option("--flows", type=click.IntRange(1, MAX_PARTS), default=4, show_default=True,
              help="How many TCP connections.")
@click.option("--scheduler", "address", metavar="HOST[:PORT]", envvar=ADDRESS_VARIABLE,
              help="The controller's address for coflow reports; without it nothing is reported.")
@click.option("--key-file", type=click.Path(path_type=Path), envvar=KEY_FILE_VARIABLE,
              help="The key that reports are signed with.")
@click.option("--coflow-id", metavar="HEX", help="32 hex digits; the same for all that move one thing together.")
def send(source: Path, destination: tuple[str, int], flows: int, address: str | None, key_file: Path | None,
         coflow_id: str | None) -> None:
    """Send FILE to a `speedwell coflow recv` at HOST:PORT, evenly split, each part checked by its SHA-256."""
    begin = time.monotonic()
    refusal = fabric_network.join_toward(destination[0])
    if refusal:
        raise NotOnFabric(refusal)
    with ExitStack() as stack:
        reporter = _reporter(address, key_file, coflow_id)
        if reporter is not None:
            stack.enter_context(reporter)
        meter = stack.enter_context(Meter(source.name, source.stat().st_size))
        send_file(source, *destination, flows, reporter, meter.advance)
    seconds, size_bytes = time.monotonic() - begin, source.stat().st_size
    told = f" as coflow {reporter.coflow_id.hex()}" if reporter is not None else ""
    click.echo(f"{units.size(size_bytes)} in {seconds:.3f} s, {8 * size_bytes / seconds / 1e6:.1f} Mbit/s{told}")


@coflow.command()
@click.option("--listen", type=HostPort(0), default="0.0.0.0:7300", show_default=True, help="Port 0: any free one.")
@click.option("--directory", type=click.Path(path_type=Path, file_okay=False), default=Path(), show_default=True,
              help="Directory for the files. A file gets its name when it is complete.")
@click.option("--forever", is_flag=True, help="Receive one file after the other.")
def recv(listen: tuple[str, int], directory: Path, forever: bool) -> None:
    """Receive a file, or with --forever any number, from `speedwell coflow send`."""
    receiver = Receiver(directory, *listen)
    try:
        click.echo(f"ready {receiver.address[0]}:{receiver.address[1]}")
        with Meter("receiving", None) as meter:
            receiver.serve(lambda path: click.echo(bytes(path)), meter.advance, once=not forever)
    finally:
        receiver.close()


def _reporter(address: str | None, key_file: Path | None, coflow_id: str | None) -> Reporter | None:
    if address is None and key_file is None:
        if coflow_id is not None:
            raise click.UsageError("--coflow-id is of no use without --scheduler and --key-file")
        return None
    if address is None or key_file is None:
        raise click.UsageError("--scheduler and --key-file are of use together only")
    try:
        number = bytes.fromhex(coflow_id) if coflow_id is not None else None
    except ValueError:
        number = b""
    if number is not None and 2 * len(number) != _ID_HEX_DIGITS:
        raise click.UsageError(f"--coflow-id: {coflow_id!r} is not {_ID_HEX_DIGITS} hex digits")
    try:
        found = scheduler(address, key_file)
        # Reports are sent without waiting for an answer, so a wrong name would never be noticed.
        *_, (host, *_) = socket.getaddrinfo(found.host, found.port, socket.AF_INET, socket.SOCK_DGRAM)[0]
        return Reporter(replace(found, host=str(host)), number)
    except InvalidSetting as error:
        raise click.ClickException(str(error)) from None
    except OSError as error:
        raise click.ClickException(f"--scheduler: {address}: {error.strerror}") from None


@coflow.command()
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False), metavar="KEY")
@click.argument("host", metavar="ADDRESS")
def key(file: Path, host: str) -> None:
    """Print the key of the host with that IPv4 address, from the installation's in the file KEY.

    Who has it can report the transfers of that host, and nobody else's.
    """
    try:
        click.echo(host_key(read_key(file), host))
    except InvalidSetting as error:
        raise click.ClickException(str(error)) from None
    except ValueError:
        raise click.BadParameter(f"{host!r} is no IPv4 address", param_hint="ADDRESS") from None
