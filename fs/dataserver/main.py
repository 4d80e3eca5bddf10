"""`speedwell-dataserver`: the command line of the dataserver."""

import os
import signal
import socket
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import click

from speedwell.fs import command_line, insecure, logs, metrics, systemd, tracing, units
from speedwell.fs.addresses import parse_address
from speedwell.fs.coflows import configured, host_heartbeats
from speedwell.fs.command_line import Number
from speedwell.fs.config import config_option
from speedwell.fs.copy_source import ClientSource
from speedwell.fs.dataserver.admission import Door
from speedwell.fs.dataserver.disk.quarantine import DEFAULT_KEEP_SECONDS, Quarantine
from speedwell.fs.dataserver.disk.store import FileStore
from speedwell.fs.dataserver.disk.watch import Watch
from speedwell.fs.dataserver.metrics import MeasuredDataServer, StateMetrics
from speedwell.fs.dataserver.nameserver_link import NameserverLink
from speedwell.fs.dataserver.namespace_identity import Identity
from speedwell.fs.dataserver.replication.copies import Copies
from speedwell.fs.dataserver.replication.lease import Lease
from speedwell.fs.dataserver.replication.primary_office import Authority
from speedwell.fs.dataserver.upkeep.heartbeat import Heartbeats
from speedwell.fs.dataserver.upkeep.mirror import Mirror
from speedwell.fs.dataserver.upkeep.mirroring import Mirroring
from speedwell.fs.dataserver.upkeep.pace import Pace
from speedwell.fs.dataserver.upkeep.scrub import Scrubber
from speedwell.fs.ending import run_to_the_end
from speedwell.fs.errors import InvalidArgument, reason
from speedwell.fs.identity.bundle import Identity as Certificate
from speedwell.fs.identity.roles import DATASERVER
from speedwell.fs.limits import MAX_KEEP_SECONDS
from speedwell.fs.option_types import Host, Rate, ServerName, Size
from speedwell.fs.proto.speedwell_pb2 import Replica
from speedwell.fs.wire import local_sockets as local
from speedwell.fs.wire.connections import ConnectionPool
from speedwell.fs.wire.secure_channel import data_connector

STACK_BYTES = 256 * 1024
STOP_SIGNALS = {signal.SIGTERM, signal.SIGINT}


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises InvalidArgument when the address cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=256)
    except OSError as error:
        raise InvalidArgument(f"--listen: cannot listen on {host}:{port}: {reason(error)}") from None


@click.command("speedwell-dataserver", context_settings={"help_option_names": ["-h", "--help"]})
@config_option
@click.option("--id", required=True, type=ServerName(), help="Stable name of this dataserver, for example p0r0h0.")
@click.option("--listen", required=True, metavar="HOST:PORT", help="Data channel; port 0: any free one.")
@click.option("--advertise", type=Host(), help="Address that clients connect to.  [default: --listen's]")
@click.option("--other-host", "other_hosts", multiple=True, type=Host(),
              help="Another address of this machine, at which other dataservers may be sent here. May be repeated.")
@click.option("--rack", default="rack0", show_default=True, help="Failure domain, for placement.")
@click.option("--pod", default="pod0", show_default=True, help="Group of racks, for placement.")
@click.option("--nameserver", required=True, metavar="HOST:PORT,...",
              help="The nameserver; where there are several, all of them.")
@click.option("--directory", "directories", required=True, multiple=True, type=Path,    # click.Path asks the disk
              metavar="DIR", help="Where the chunks are kept. May be repeated, for one directory on each disk: new "
              "files go where there is room, and a disk that fails takes only its own replicas with it.")
@click.option("--accept-empty", is_flag=True, help="A directory of this server that is empty now has a new disk. "
              "Else it counts as failed where there are others: its disk may not be mounted.")
@click.option("--reserve", type=Size(),
              help="Bytes of each disk that are kept for files that grow: new files go elsewhere.  "
              "[default: 1 GiB, or a fiftieth of a smaller disk]")
@click.option("--disk-rate", type=Rate(), default=0,
              help="How fast each disk writes: large files go where links and disks have most to spare.  "
              "[default: not known, only links count]")
@click.option("--controller", metavar="URL[,URL]|installation",
              help="SDN controller that chooses where the copies of lost replicas are read from.")
@click.option("--recovery-rate", type=Rate(1), default=64 << 20,
              help="How fast this server receives, and sends, lost replicas at most; the rest is for "
              f"clients.  [default: {units.size(64 << 20)}/s]")
@click.option("--scrub-rate", type=Number(0, 1 << 20), default=1.0, show_default=True, metavar="MIB",
              help="MiB a second to compare with their checksums; 0: only what clients report.")
@click.option("--quarantine", type=Number(0, MAX_KEEP_SECONDS), default=DEFAULT_KEEP_SECONDS, metavar="SECONDS",
              help="How long contents that belong to no file are kept.  "
              f"[default: {units.duration(DEFAULT_KEEP_SECONDS)}]")
@click.option("--no-tokens", is_flag=True, help="Serve everybody who reaches the data channel, without the "
              "nameserver's tokens; with --insecure alone.")
@insecure.option
@command_line.encryption_option
@command_line.identity_option("This dataserver's")
@metrics.OPTION
@logs.OPTION
def command(**flags: Any) -> int:
    """Store and serve files' content until SIGTERM or SIGINT."""
    logs.configure(flags["log_level"])
    tracing.start("speedwell-dataserver", flags["id"])
    return run(SimpleNamespace(**flags))


def status_of(arguments: list[str] | None = None) -> int:
    """Run a dataserver; returns the exit status: 0 stopped, 1 could not start, 2 bad flags."""
    return command_line.run(command, "speedwell-dataserver", arguments, wrong_usage=(InvalidArgument,))


def run(flags: SimpleNamespace) -> int:
    """Serve until a signal. Raises InvalidArgument for bad flags, StorageFailed for the directories."""
    host, port = parse_address(flags.listen, "--listen", lowest_port=0)
    insecure.check(flags.identity, flags.insecure, no_tokens=flags.no_tokens, listen=host)
    for nameserver in flags.nameserver.split(","):
        parse_address(nameserver, "--nameserver")
    advertised = flags.advertise or host
    if advertised in ("0.0.0.0", "::"):
        raise InvalidArgument(f"--advertise: clients cannot connect to {advertised}, name an address")
    certificate = None if flags.identity is None else Certificate(flags.identity).require_role(DATASERVER)
    if certificate is not None and certificate.own.name != flags.id:
        raise InvalidArgument(f"--identity: {flags.identity} is the identity of the {certificate.own}, "
                              f"not of {flags.id}")
    if flags.encrypt_data and certificate is None:
        raise InvalidArgument("--encrypt-data: it takes --identity, for TLS")
    securing = certificate if flags.encrypt_data else None
    configured()    # a key that cannot be used is said now
    # Blocked before any thread starts and taken by sigwait: a handler could run while no thread looks.
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)

    store = FileStore(flags.directories, flags.id, flags.reserve, rate_bytes=flags.disk_rate,
                      accept_empty=flags.accept_empty)
    door = Door(store, insecure=flags.no_tokens, learn=None if certificate is None else certificate.learn)
    quarantine = Quarantine(store, flags.quarantine)
    listener = listen(host, port)
    port = listener.getsockname()[1]
    threading.stack_size(STACK_BYTES)
    link = NameserverLink(flags.nameserver, flags.id, certificate)
    lease = Lease()
    connections = ConnectionPool(connector=None if securing is None else data_connector(securing))
    scrubber = Scrubber(store, flags.id, link.look_up, connections, door, rate_bytes=flags.scrub_rate * (1 << 20))
    authority = Authority(flags.id, lease, link)
    mirror = Mirror(store.directory / "mirror")
    identity = Identity(store.directories,
                        lambda: bool(quarantine) or not mirror.is_empty or next(store.ids(), None) is not None,
                        mirror.holders.namespace)
    server = MeasuredDataServer(store, listener, authority, scrubber=scrubber,
                                local_listener=local.listen(advertised, port), quarantine=quarantine,
                                identity=identity, pace=Pace(flags.recovery_rate), certificate=securing, door=door)
    if flags.metrics:
        metrics.serve(flags.metrics, [*server.collectors, StateMetrics(store, lease, door)], flags.identity)
    own = Replica(dataserver_id=flags.id, host=advertised, port=port, rack=flags.rack, pod=flags.pod,
                  other_hosts=flags.other_hosts)
    source = ClientSource(flags.nameserver, door, controller=flags.controller, local_host=advertised,
                          identity=flags.identity)
    copies = Copies(store, own, source, door, bytes_per_second=flags.recovery_rate)
    mirroring = Mirroring(mirror, link, flags.id)
    heartbeats = Heartbeats(link, lease, own, store, copies, mirroring, identity, quarantine, authority.policy,
                            door)
    host_beats = host_heartbeats(advertised)
    watch = Watch(store.directories, lambda: os._exit(1))   # what waits for the disk cannot be ended otherwise
    acceptor = threading.Thread(target=server.serve, name="accept", daemon=True)
    acceptor.start()
    heartbeats.start()
    mirroring.start()
    scrubber.start()
    watch.start()
    if host_beats is not None:
        host_beats.start()
    systemd.ready(f"ready {advertised}:{port}")
    systemd.wait_for(STOP_SIGNALS, heartbeats.come_round)
    watch.stop()
    if host_beats is not None:
        host_beats.stop()
    scrubber.stop()
    heartbeats.stop()
    mirroring.stop()
    copies.stop()
    server.stop()
    connections.close()
    store.close()
    return 0


def main(arguments: list[str] | None = None) -> NoReturn:
    """Entry of the executable: ends the process with the exit status."""
    run_to_the_end(lambda: status_of(arguments))


if __name__ == "__main__":
    main()

