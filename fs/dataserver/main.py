"""`speedwell-dataserver`: the command line of the dataserver."""

import argparse
import logging
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import NoReturn

from fs import local
from fs.addresses import parse_address
from fs.coflows import configured, host_heartbeats
from fs.connections import ConnectionPool
from fs.dataserver.copies import Copies
from fs.dataserver.disk_rate import DiskRate
from fs.dataserver.heartbeat import Heartbeats
from fs.dataserver.identity import Identity
from fs.dataserver.lease import Lease
from fs.dataserver.mirror import Mirror
from fs.dataserver.mirroring import Mirroring
from fs.dataserver.nameserver_link import NameserverLink
from fs.dataserver.office import Authority
from fs.dataserver.pace import Pace
from fs.dataserver.quarantine import DEFAULT_KEEP_SECONDS, MAX_KEEP_SECONDS, Quarantine
from fs.dataserver.scrub import Scrubber
from fs.dataserver.server import DataServer
from fs.dataserver.store import FileStore
from fs.ending import run_to_the_end
from fs.errors import InvalidArgument, SpeedwellError
from fs.proto.speedwell_pb2 import Replica

STACK_BYTES = 256 * 1024
STOP_SIGNALS = {signal.SIGTERM, signal.SIGINT}


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises InvalidArgument when the address cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=256)
    except OSError as error:
        raise InvalidArgument(f"--listen: cannot listen on {host}:{port}: {error.strerror or error}") from None


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    """The flags of `speedwell-dataserver`; argparse ends the process with one message for bad ones."""
    parser = argparse.ArgumentParser(prog="speedwell-dataserver", description="Stores and serves files' content.")
    parser.add_argument("--id", required=True, help="stable name of this dataserver, for example p0r0h0")
    parser.add_argument("--listen", required=True, metavar="HOST:PORT", help="data channel; port 0: any free one")
    parser.add_argument("--advertise", metavar="HOST", help="address that clients connect to (default: --listen's)")
    parser.add_argument("--rack", default="rack0", help="failure domain, for placement (default: %(default)s)")
    parser.add_argument("--pod", default="pod0", help="group of racks, for placement (default: %(default)s)")
    parser.add_argument("--nameserver", required=True, metavar="HOST:PORT,...", help="all, where there are several")
    parser.add_argument("--directory", required=True, type=Path, help="where the chunks are kept")
    parser.add_argument("--reserve", type=int, metavar="BYTES", help="of the disk are kept for files that "
                        "grow: new ones go elsewhere (default: 1 GiB, or a fiftieth of a smaller disk)")
    parser.add_argument("--disk-rate", type=float, default=0.0, metavar="BYTES",
                        help="that the disk writes a second: large files go where links and disks have most to "
                        "spare (default: not known, only links count)")
    parser.add_argument("--controller", metavar="URL",
                        help="SDN controller that chooses where the copies of lost replicas are read from")
    parser.add_argument("--recovery-rate", type=float, default=64 << 20, metavar="BYTES",
                        help="of lost replicas, this server receives at most so many bytes a second, and sends "
                        "as many; the rest is for clients (default: 64 MiB)")
    parser.add_argument("--scrub-rate", type=float, default=1.0, metavar="MIB", help="how much is compared with "
                        "its checksums per second; 0: only what clients report (default: %(default)s)")
    parser.add_argument("--quarantine", type=float, default=DEFAULT_KEEP_SECONDS, metavar="SECONDS", help="for how "
                        "long contents that no file has are kept aside (default: 7 days)")
    parser.add_argument("--log-level", default="info", choices=["debug", "info", "warning", "error"])
    return parser.parse_args(arguments)


def status_of(arguments: list[str] | None = None) -> int:
    """Run a dataserver until SIGTERM or SIGINT; returns the exit status."""
    flags = parse_arguments(arguments)
    logging.basicConfig(stream=sys.stderr, level=flags.log_level.upper(),
                        format="%(asctime)s %(levelname)s %(message)s")
    try:
        return run(flags)
    except SpeedwellError as error:
        print(f"speedwell-dataserver: {error}", file=sys.stderr)
        return 2 if isinstance(error, InvalidArgument) else 1


def run(flags: argparse.Namespace) -> int:
    """Serve until a signal. Raises InvalidArgument for bad flags, StorageFailed for the directory."""
    host, port = parse_address(flags.listen, "--listen", lowest_port=0)
    for nameserver in flags.nameserver.split(","):
        parse_address(nameserver, "--nameserver")
    if not 0 <= flags.scrub_rate <= 1 << 20:
        raise InvalidArgument(f"--scrub-rate: {flags.scrub_rate} is not in 0..{1 << 20}")
    if not 0 <= flags.quarantine <= MAX_KEEP_SECONDS:
        raise InvalidArgument(f"--quarantine: {flags.quarantine:g} s is not between 0 and ten years")
    if flags.reserve is not None and not 0 <= flags.reserve < 1 << 62:
        raise InvalidArgument(f"--reserve: {flags.reserve} is not in 0..2^62-1")
    if not 0 <= flags.disk_rate < 1 << 62:
        raise InvalidArgument(f"--disk-rate: {flags.disk_rate:g} is not in 0..2^62-1")
    if not flags.recovery_rate > 0:
        raise InvalidArgument(f"--recovery-rate: {flags.recovery_rate:g} is not positive")
    if not flags.id or len(flags.id) > 200 or not flags.id.isprintable():
        raise InvalidArgument(f"--id: {flags.id!r} is not a name of 1 to 200 printable characters")
    advertised = flags.advertise or host
    if advertised in ("0.0.0.0", "::"):
        raise InvalidArgument(f"--advertise: clients cannot connect to {advertised}, name an address")
    configured()    # a key that cannot be used is said now
    # Blocked before any thread starts and taken by sigwait: a handler could run while no thread looks.
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)

    store = FileStore(flags.directory, flags.id, flags.reserve)
    quarantine = Quarantine(store, flags.quarantine)
    listener = listen(host, port)
    port = listener.getsockname()[1]
    threading.stack_size(STACK_BYTES)
    link = NameserverLink(flags.nameserver, flags.id)
    lease = Lease()
    connections = ConnectionPool()
    scrubber = Scrubber(store, flags.id, link.look_up, connections, rate_bytes=flags.scrub_rate * (1 << 20))
    authority = Authority(flags.id, lease, link)
    mirror = Mirror(flags.directory / "mirror")
    identity = Identity(flags.directory,
                        lambda: bool(quarantine) or not mirror.is_empty or next(store.ids(), None) is not None,
                        mirror.holders.namespace)
    server = DataServer(store, listener, authority, scrubber=scrubber,
                        local_listener=local.listen(advertised, port), quarantine=quarantine, identity=identity,
                        pace=Pace(flags.recovery_rate))
    own = Replica(dataserver_id=flags.id, host=advertised, port=port, rack=flags.rack, pod=flags.pod)
    copies = Copies(store, own, flags.nameserver, controller=flags.controller, local_host=advertised,
                    bytes_per_second=flags.recovery_rate)
    mirroring = Mirroring(mirror, link, flags.id)
    heartbeats = Heartbeats(link, lease, own, store, copies, mirroring, identity, quarantine, authority.policy,
                            DiskRate(flags.disk_rate))
    host_beats = host_heartbeats(advertised)
    acceptor = threading.Thread(target=server.serve, name="accept", daemon=True)
    acceptor.start()
    heartbeats.start()
    mirroring.start()
    scrubber.start()
    if host_beats is not None:
        host_beats.start()
    print(f"ready {advertised}:{port}", flush=True)
    signal.sigwait(STOP_SIGNALS)
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

