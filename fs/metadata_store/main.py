"""`speedwell-metadata-store`: a server of metadata records that clients reach by the hash of the key."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import NoReturn

import click

from speedwell.fs import command_line, logs, systemd
from speedwell.fs import insecure as insecure_servers
from speedwell.fs import metrics as prometheus
from speedwell.fs.addresses import parse_address
from speedwell.fs.config import config_option
from speedwell.fs.controller import Controller
from speedwell.fs.ending import run_to_the_end
from speedwell.fs.errors import InvalidArgument, SpeedwellError, reason
from speedwell.fs.identity.bundle import Identity
from speedwell.fs.identity.roles import DATASERVER
from speedwell.fs.metadata_store.addresses import PORT, PREFIX, parse_block
from speedwell.fs.metadata_store.engines import open_engine
from speedwell.fs.metadata_store.membership import Membership
from speedwell.fs.metadata_store.ownership import Ownership
from speedwell.fs.metadata_store.peers import Peer
from speedwell.fs.metadata_store.routes import OwnerRoutes
from speedwell.fs.metadata_store.server import MetadataServer
from speedwell.fs.metadata_store.wire import connect
from speedwell.fs.option_types import Host

PROBE_SECONDS = 5.0
STOP_SIGNALS = {signal.SIGTERM, signal.SIGINT}


@click.command("speedwell-metadata-store", context_settings={"help_option_names": ["-h", "--help"],
                                                             "show_default": True})
@config_option
@click.option("--store", required=True, metavar="STORE", help="leveldb:DIR, or redis:SOCKET for the Redis "
              "that listens at that Unix socket.")
@click.option("--listen", default=f"0.0.0.0:{PORT}", metavar="HOST:PORT", help="The same port at all servers; the "
              "host must be 0.0.0.0 where requests come by the address of a key.")
@click.option("--block", "blocks", multiple=True, metavar="CIDR", help=f"Own this part of {PREFIX}. May be repeated.")
@click.option("--controller", metavar="URL[,URL]", help="Join the metadata servers of this SDN controller, which "
              "gives each its blocks.")
@click.option("--host", metavar="ADDRESS", type=Host(),
              help="With --controller: this host's own address on the fabric.")
@click.option("--fsync/--no-fsync", default=True, help="Answer a put when it is on the disk, or when the system has "
              "it (LevelDB; a Redis has its own settings).")
@command_line.identity_option("This server's")
@insecure_servers.option
@prometheus.OPTION
@logs.OPTION
def command(store: str, listen: str, blocks: tuple[str, ...], controller: str | None,
            host: str | None, fsync: bool, identity: Path | None, insecure: str | None, metrics: str | None,
            log_level: str) -> int:
    """Store and serve metadata records until SIGTERM or SIGINT. Has the kernel take the addresses of the blocks that
    it owns for this host's (as root)."""
    logs.configure(log_level)
    if controller is not None and (blocks or host is None):
        raise InvalidArgument("--controller: give --host too, and no --block" if host is None
                              else "--block: does not go with --controller, which says what to own")
    joined = Controller(controller, identity) if controller is not None else None
    prometheus.check(metrics)
    bound, port = parse_address(listen, "--listen", lowest_port=0)
    insecure_servers.check(identity, insecure, listen=bound)
    certificate = None if identity is None else Identity(identity).require_role(DATASERVER)
    owned = {parse_block(text, "--block") for text in blocks}
    # Blocked before any thread starts and taken by sigwait: a handler could run while no thread looks.
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    engine = open_engine(store, fsync)
    ownership = Ownership(engine, f"{host or bound}:{port}", certificate)
    ownership.set_owned(owned)
    try:
        server = MetadataServer((bound, port), engine, ownership, certificate)
    except OSError as error:
        raise InvalidArgument(f"--listen: cannot listen on {listen}: {reason(error)}") from None
    if metrics:
        from speedwell.fs.metadata_store.metrics import StoreMetrics  # takes 10 MiB

        told = StoreMetrics(ownership)
        server.measure = told.note
        prometheus.serve(metrics, [told, *([server.handshakes.refusals] if server.handshakes else [])], identity)
    routes = OwnerRoutes()
    routes.set(owned)
    threading.Thread(target=server.serve_forever, name="accept", daemon=True).start()
    port = server.server_address[1]
    membership = Membership(joined, Peer(host, port), ownership, routes) if joined and host else None
    if membership is not None:
        membership.start()
    systemd.ready(f"ready {host or bound}:{port}")
    systemd.wait_for(STOP_SIGNALS, lambda: _answers((host or bound, port), certificate))
    if membership is not None:
        membership.stop()
    routes.set(set())
    server.shutdown()
    engine.close()
    return command_line.DONE


def _answers(address: tuple[str, int], identity: Identity | None) -> bool:
    """Whether the listener takes a connection: one that stands still lets it run out."""
    try:
        connect(address, PROBE_SECONDS, identity).close()
    except TimeoutError:
        return False
    except (OSError, SpeedwellError):
        return True     # it says why it does not, or its address is gone for a while
    return True


def main(arguments: list[str] | None = None) -> NoReturn:
    """Entry of the executable: ends the process with the exit status."""
    run_to_the_end(lambda: command_line.run(command, "speedwell-metadata-store", arguments,
                                            wrong_usage=(InvalidArgument,)))


if __name__ == "__main__":
    main()
