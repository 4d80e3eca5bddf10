"""speedwell metadata"""

from __future__ import annotations

import sys

import click

from speedwell.cluster import current, fabric_network
from speedwell.cluster.errors import ClusterError
from speedwell.fs.identity.known import identity_for
from speedwell.fs.metadata_store.addresses import PORT, PREFIX, address_of
from speedwell.fs.metadata_store.client import MetadataClient

port_option = click.option("--port", type=click.IntRange(1, 65535), default=PORT, show_default=True,
                           help="Where the metadata servers listen.")


@click.group()
def metadata() -> None:
    """Get and put records that the network finds by the hash of their key.

    Run it on a host of the fabric, or on another that has a route to 100.64.0.0/10.
    """


@metadata.command()
@click.argument("key")
@port_option
def get(key: str, port: int) -> None:
    """Write the value of KEY to standard output."""
    value = _client(key, port).get(key.encode())
    if value is None:
        raise ClusterError(f"{key}: there is no such key")
    sys.stdout.buffer.write(value)


@metadata.command()
@click.argument("key")
@click.argument("value")
@port_option
def put(key: str, value: str, port: int) -> None:
    """Store VALUE (`-`: standard input) under KEY. Returns once it is as safe as the server's store promises."""
    _client(key, port).put(key.encode(), sys.stdin.buffer.read() if value == "-" else value.encode())


@metadata.command()
@click.argument("interface")
@click.argument("address")
def route(interface: str, address: str) -> None:
    """Have this host send requests for keys out of INTERFACE, from its own ADDRESS (as root).

    The hosts of an emulated fabric do so already.
    """
    from speedwell.fs.metadata_store.routes import lead_to_switch

    lead_to_switch(interface, address)


@metadata.command()
@click.argument("key")
def address(key: str) -> None:
    """Show the address to which requests for KEY go."""
    click.echo(str(address_of(key.encode())))


def _client(key: str, port: int) -> MetadataClient:
    from speedwell.fs.metadata_store.routes import has_route

    if not has_route(address_of(key.encode())):
        raise ClusterError(f"this machine has no route to {PREFIX}: run it on a host of the fabric "
                           "(`speedwell enter HOST`), or see `speedwell metadata route --help`")
    last = current.read()
    of_machine = last.identity if last is not None and last.kind == current.MACHINE else ""
    return MetadataClient(port=port, identity=identity_for("", fabric_network.identity() or of_machine))
