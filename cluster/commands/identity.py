"""speedwell identity"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from speedwell.cluster import current
from speedwell.cluster.commands.connection import installation_option, last_started
from speedwell.cluster.commands.output import echo, echo_json
from speedwell.cluster.commands.watching import watch_options
from speedwell.cluster.identities import FOLDER
from speedwell.cluster.processes import Processes
from speedwell.cluster.tables import echo_table
from speedwell.fs import paths, units
from speedwell.fs.addresses import is_ip
from speedwell.fs.errors import IdentityError
from speedwell.fs.identity import bearer, scope
from speedwell.fs.identity.roles import HOST_AGENT, JOINING, ROLES
from speedwell.fs.option_types import Duration

if TYPE_CHECKING:
    from speedwell.fs.identity.authority import Authority
    from speedwell.fs.identity.register import Certificate

PARTS = (*JOINING, HOST_AGENT)
"""What an invitation may be for."""

F = TypeVar("F", bound=Callable[..., Any])


class Ranges(click.ParamType):  # type: ignore[type-arg]  # generic only in newer releases of click
    """Of users or groups."""

    name = "NUMBERS"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> scope.Ranges:
        try:
            return scope.ranges(str(value))
        except IdentityError as error:
            self.fail(error.message, parameter, context)


@click.group()
def identity() -> None:
    """Certificates: who may talk to an installation, and as what.

    A process shows its certificate with --identity DIR, where DIR is what `issue` prints. Servers take up what is
    renewed or revoked while they run.
    """


def _place_options(function: F) -> F:
    directory = click.option("--directory", type=click.Path(path_type=Path), metavar="DIR",
                             help="Where the certificate authority is.  [default: that of the installation]")
    return installation_option(directory(function))


def _scope_options(function: F) -> F:
    for option in (
        click.option("--uids", type=Ranges(), help="The users that a mount or reader may act for, as 1000-1999,2500; "
                     "root there is nobody.  [default: all, and root]"),
        click.option("--gids", type=Ranges(), help="The groups of these users.  [default: the same numbers]"),
        click.option("--subtree", metavar="PATH", default="/", help="The directory that they may act in.  "
                     "[default: all]"),
        click.option("--allow-root", is_flag=True, help="They may act for root, too."),
    ):
        function = option(function)
    return function


def _scope(uids: scope.Ranges | None, gids: scope.Ranges | None, subtree: str,
           allow_root: bool) -> scope.Scope | None:
    if uids is None and (gids is not None or allow_root or subtree != "/"):
        raise click.UsageError("--gids, --subtree and --allow-root go with --uids", click.get_current_context())
    return scope.Scope(uids, gids or uids, paths.normalise(subtree, "--subtree"), allow_root) if uids else None


@identity.command("list")
@click.option("--json", "as_json", is_flag=True, help="One JSON list; times in seconds since 1970.")
@watch_options
@_place_options
def list_identities(as_json: bool, installation: Path | None, directory: Path | None) -> None:
    """List the certificates: the last one of each name, and older ones that are still valid; and the tokens."""
    authority = _authority(installation, directory)
    now = time.time()
    found = [{**asdict(each), "state": _state(each, now)} for each in authority.certificates()]
    found += [{**asdict(each), "serial": f"token {hashed}", "state": "expired" if now >= each.expires_at else "valid"}
              for hashed, each in bearer.known(authority.directory).items()]
    if as_json:
        echo_json(found)
        return
    echo_table(("name", "role", "state", "ends in", "serial"),
               [(each["name"], each["role"], each["state"], units.about(max(0.0, each["expires_at"] - now)),
                 each["serial"][:12].lower()) for each in found], ("ends in",))


@identity.command(help=f"""Make a key and a certificate for NAME, and print the directory that has them.

    ROLE is one of {', '.join(ROLES)}. A dataserver's NAME is its --id. --directory may be a new one: then it gets an
    authority of its own.""")
@click.argument("name")
@click.argument("role", metavar="ROLE", type=click.Choice(ROLES))
@_scope_options
@_place_options
def issue(name: str, role: str, installation: Path | None, directory: Path | None, **within: Any) -> None:
    echo(str(_authority(installation, directory, new=True).issue(name, role, _scope(**within))))


@identity.command(help=f"""Print a token with which MACHINE gets certificates for ROLEs, once: `speedwell join`.

    ROLE is one of {', '.join(PARTS)}. A dataserver's certificate has the name MACHINE, that of a metadata-store the
    machine's address, others ROLE-MACHINE; a host-agent has a key instead.
    Where several machines keep the names, a nameserver comes with its member of etcd.
    A token that was not used is taken back by `speedwell identity revoke MACHINE`.""")
@click.argument("machine")
@click.argument("roles", metavar="ROLE...", type=click.Choice(PARTS), nargs=-1, required=True)
@click.option("--authority", "listens", metavar="HOST:PORT", help="Where `speedwell-certificates --listen` of this "
              "machine is reached.  [default: as `speedwell init` has it]")
@click.option("--address", metavar="IP", default="", help="Of MACHINE, for a controller, scheduler, "
              "metadata-store or host-agent.")
@click.option("--validity", type=Duration(30 * 86400), default="1h", show_default=True,
              help="The token is good for so long.")
@click.option("--replace", "replaces", is_flag=True, help="MACHINE was lost with its disk: its certificates are "
              "revoked, and where it keeps the names, a new machine with its name and address does so in its place.")
@_scope_options
@_place_options
def invite(machine: str, roles: tuple[str, ...], listens: str | None, address: str, validity: int, replaces: bool,
           installation: Path | None, directory: Path | None, **within: Any) -> None:
    from speedwell.cluster import parts
    from speedwell.fs.identity import invitations  # takes 30 ms

    if address and not is_ip(address):
        raise click.UsageError(f"--address: {address!r} is not an IP address", click.get_current_context())
    place = _authority(installation, directory).directory
    processes = Processes(place.parent)
    listens = listens or processes.settings.get("authority")
    if not listens:
        raise click.UsageError("say where the authority is reached: --authority HOST:PORT",
                               click.get_current_context())
    chosen, address, settings = parts.invited(processes, machine, roles, address, replaces)
    token = str(invitations.invite(place, listens, machine, chosen, scope=_scope(**within), address=address,
                                   settings=settings, validity_seconds=validity,
                                   free=(lambda: parts.replace(processes, machine, address)) if replaces
                                   else lambda: None))
    parts.note_invited(processes, settings)
    echo(token)


@identity.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE")
@_place_options
def backup(file: Path, installation: Path | None, directory: Path | None) -> None:
    """Copy the certificate authority, with its key, to FILE.

    Who has FILE may give anybody any certificate: keep it where nobody else reads it, away from this machine.
    """
    from speedwell.fs.identity import copies  # takes 30 ms

    copies.write(_authority(installation, directory).directory, file)


@identity.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE")
@installation_option
def restore(file: Path, installation: Path | None) -> None:
    """Go on as the certificate authority, from the FILE that `speedwell identity backup` has written.

    For a machine that has joined, when the authority's was lost. The operator's certificate of the lost machine is
    revoked, and this one gets its own. What was revoked after the backup has to be revoked again.
    """
    from speedwell.cluster import parts

    named = current.in_directory(installation) if installation is not None else last_started()
    processes = Processes(Path(named.directory))
    if processes.settings.get("kind") != parts.KIND:
        raise click.UsageError("run this on a machine that has joined: `speedwell join`", click.get_current_context())
    parts.adopt(processes, file)
    echo("next: `speedwell up`")


@identity.command()
@click.argument("name")
@click.argument("role", type=click.Choice(bearer.ROLES), default=bearer.ROLES[0])
@click.option("--validity", type=Duration(3650 * 86400), default=f"{bearer.VALIDITY_SECONDS / 86400:g}d",
              show_default=True, help="It is good for so long.")
@_place_options
def token(name: str, role: str, validity: int, installation: Path | None, directory: Path | None) -> None:
    """Make a token that lets NAME ask the controller over REST, and print the file that has it.

    It is for what has no certificate: a browser, curl, Prometheus. NAME's last token is good no more. A reader (the
    default) only looks.
    """
    echo(str(bearer.issue(_authority(installation, directory).directory, name, role, validity)))


@identity.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--validity", type=Duration(3650 * 86400), help="They, and all later ones, are valid for so long.  "
              "[default: as before; at first 30 days]")
@_place_options
def renew(names: tuple[str, ...], validity: int | None, installation: Path | None, directory: Path | None) -> None:
    """Make new keys and certificates for NAMEs, or for all. Old ones stay valid until they end.

    `speedwell up` does so by itself when two thirds of the time are over.
    """
    for name in _authority(installation, directory).renew(names, validity):
        echo(f"renewed {name}")


@identity.command()
@click.argument("name")
@_place_options
def revoke(name: str, installation: Path | None, directory: Path | None) -> None:
    """Have the servers of this machine refuse all certificates and the token of NAME within a second.

    A join token for NAME that was not used is taken back, too. `issue`, `token` and `invite` give NAME new ones.
    """
    from speedwell.fs.identity import invitations  # takes 30 ms

    authority = _authority(installation, directory)
    certificate = authority.newest().get(name)
    is_done = bearer.revoke(authority.directory, name) | invitations.withdraw(authority.directory, name)
    if not is_done or (certificate is not None and certificate.revoked_at is None):
        authority.revoke(name)


def _authority(installation: Path | None, directory: Path | None, *, new: bool = False) -> Authority:
    from speedwell.fs.identity.authority import Authority  # takes 30 ms

    if installation is not None and directory is not None:
        raise click.UsageError("--installation does not go with --directory", click.get_current_context())
    if directory is not None:
        return Authority.make(directory.absolute()) if new else Authority(directory.absolute())
    named = current.in_directory(installation) if installation is not None else last_started()
    return Authority(Path(named.directory) / FOLDER)


def _state(certificate: Certificate, now: float) -> str:
    if certificate.revoked_at is not None:
        return "revoked"
    return "expired" if now >= certificate.expires_at else "due" if certificate.is_due(now) else "valid"
