"""speedwell init, speedwell join"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

from speedwell.cluster.commands.output import echo
from speedwell.fs.errors import IdentityError
from speedwell.fs.identity import roles
from speedwell.fs.option_types import MountPoint

if TYPE_CHECKING:
    from speedwell.cluster.current import Current

FIRST = (roles.NAMESERVER, roles.DATASERVER, roles.CONTROLLER, roles.MOUNT, roles.SCHEDULER, roles.METADATA_STORE,
         roles.HOST_AGENT)
MOST_CHARACTERS = 4096
"""Of a token."""

_mount_option = click.option("--mount", type=MountPoint(), metavar="MOUNTPOINT", help="Where the filesystem is "
                             "mounted on this machine.")

_disk_option = click.option("--disk", "disks", multiple=True,
                            type=click.Path(path_type=Path, file_okay=False, exists=True),
                            metavar="DIR", help="Where this machine's dataserver keeps files; may be repeated.  "
                            "[default: a directory below DIR]")

_systemd_option = click.option("--systemd", type=click.Path(path_type=Path, file_okay=False), is_flag=False,
                               flag_value="/etc/systemd/system", metavar="[DIR]", help="Write a unit for each role, "
                               "for systemd to start in place of `speedwell up`.")


_rate_option = click.option("--rate", "rate_bps", type=click.IntRange(10_000, 1 << 40), metavar="BITS",
                            help="That this machine's link carries a second, for its host agent.  [default: as its "
                            "driver says]")


@click.command(help=f"""Make the first machine of an installation that has several.

    It gets the authority, and certificates and settings of ROLEs, some of {', '.join(FIRST)}, by default a nameserver
    and a dataserver; the settings are DIR/ROLE.toml. `speedwell up` then starts them; `speedwell identity invite`
    lets other machines join.""")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.argument("chosen", metavar="[ROLE]...", type=click.Choice(FIRST), nargs=-1)
@click.option("--address", required=True, metavar="IP", help="Of this machine, where others reach it.")
@click.option("--name", default=lambda: socket.gethostname().partition(".")[0], show_default="the host's name",
              help="Of this machine, and of its dataserver.")
@click.option("--replication", type=click.IntRange(1, 16), default=3, show_default=True, help="Replicas of a file.")
@click.option("--etcd", "others", default="", metavar="NAME=IP,...", help="The other machines that keep the names "
              "with this one: each gets a nameserver, and a member of an etcd that they share.  [default: this one "
              "alone]")
@_disk_option
@_mount_option
@_rate_option
@_systemd_option
def init(directory: Path, chosen: tuple[str, ...], address: str, name: str, replication: int, others: str,
         disks: tuple[Path, ...], mount: Path | None, rate_bps: int | None, systemd: Path | None) -> None:
    from speedwell.cluster import parts, units

    if systemd is not None:
        units.check(directory.absolute(), systemd, disks)
    picked = dict.fromkeys([*(chosen or FIRST[:2]), *([roles.MOUNT] if mount else [])])
    part = parts.Part(directory.absolute(), name, address, str(mount or ""), _absolute(disks), rate_bps)
    _tell(parts.first(part, list(picked), replication, others), systemd)


@click.command()
@click.argument("words", metavar="[TOKEN] DIR", nargs=-1, required=True)
@click.option("--token-file", type=click.File(errors="replace"), metavar="FILE", help="Take the token from "
              "the first line of FILE, `-` is standard input: other users of this machine see what is on the command "
              "line.")
@click.option("--address", metavar="IP", help="Of this machine, where others reach it.  [default: that with which "
              "it reaches the authority]")
@_disk_option
@_mount_option
@_rate_option
@_systemd_option
def join(words: tuple[str, ...], token_file: TextIO | None, address: str | None, disks: tuple[Path, ...],
         mount: Path | None, rate_bps: int | None, systemd: Path | None) -> None:
    """Get this machine's certificates for an installation.

    TOKEN is what `speedwell identity invite` has printed on the authority's machine; it is good once. Keys are made
    here and stay here. If nothing answers, or it was interrupted, try again with the same token. The settings of what
    runs here are DIR/ROLE.toml; `speedwell up` then starts it.
    """
    from speedwell.cluster import parts, units
    from speedwell.fs.identity import invitations  # takes 30 ms

    if len(words) != (2 if token_file is None else 1):
        raise click.UsageError("name the token and DIR, or --token-file and DIR", click.get_current_context())
    directory = Path(words[-1])
    try:
        given = invitations.parsed(words[0] if token_file is None else token_file.readline(MOST_CHARACTERS).strip())
    except IdentityError as error:
        raise click.UsageError(str(error), click.get_current_context()) from None
    if mount is not None and roles.MOUNT not in given.roles:
        raise click.UsageError(f"--mount: the token is for {', '.join(given.roles)}", click.get_current_context())
    if systemd is not None:
        units.check(directory.absolute(), systemd, disks)
    parts.join(parts.Part(directory.absolute(), given.machine, address or parts.own_address(given.authority),
                          str(mount or ""), _absolute(disks), rate_bps), given, lambda made: _tell(made, systemd))


def _absolute(disks: tuple[Path, ...]) -> list[Path]:
    return [disk.absolute() for disk in disks]


def _tell(made: Current, systemd: Path | None) -> None:
    echo(f"nameserver {made.nameserver}")
    if systemd is None:
        echo(f"next: {made.up_again}")
        return
    from speedwell.cluster import units
    from speedwell.cluster.processes import Processes

    names = units.write(Processes(Path(made.directory)), systemd.absolute())
    echo(f"next: `systemctl daemon-reload`, `systemctl enable --now {' '.join(names)}`")
