"""speedwell join"""

from __future__ import annotations

from pathlib import Path

import click

from cluster.commands.output import echo
from cluster.identities import FOLDER
from fs.errors import IdentityError


@click.command()
@click.argument("token")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
def join(token: str, directory: Path) -> None:
    """Get this machine's certificates for an installation.

    They go to DIR/identity.

    TOKEN is what `speedwell identity invite` has printed on the authority's machine; it is good once. Keys are made
    here and stay here. If nothing answers, try again with the same token.
    """
    from fs.identity import invitations, joining  # take 30 ms

    given = invitations.parsed(token)
    place = directory.absolute() / FOLDER
    if place.exists() and (place / joining.JOINED).exists():
        raise IdentityError(f"{directory} has joined an installation already")
    joining.join(place, given)
    for role in given.roles:
        echo(str(place / invitations.name_of(given.machine, role)))
