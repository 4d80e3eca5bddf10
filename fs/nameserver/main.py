"""The command `speedwell-nameserver`."""

import gc
import logging
import random
import shutil
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path
from typing import Any, NoReturn, cast

import click

from speedwell.fs import command_line, logs, rates, systemd, tracing, units
from speedwell.fs import insecure as insecure_servers
from speedwell.fs import metrics as prometheus
from speedwell.fs.addresses import parse_address
from speedwell.fs.command_line import Number
from speedwell.fs.config import config_option
from speedwell.fs.ending import run_to_the_end
from speedwell.fs.errors import DatabaseDamaged, InvalidArgument, SpeedwellError
from speedwell.fs.etcd_client import EtcdClient
from speedwell.fs.identity.bundle import Identity
from speedwell.fs.identity.roles import NAMESERVER
from speedwell.fs.nameserver.backup.copy_holders import FORCE_FLAG
from speedwell.fs.nameserver.backup.namespace_directory import NameserverDirectory
from speedwell.fs.nameserver.backup.namespace_keeper import Keeper
from speedwell.fs.nameserver.leadership import Leadership
from speedwell.fs.nameserver.replicas.placement_advice import PlacementAdvice
from speedwell.fs.nameserver.replicas.reports import Reports
from speedwell.fs.nameserver.service import settings as defaults
from speedwell.fs.nameserver.service.audit import Audit
from speedwell.fs.nameserver.service.frames import NameserverFrames, listen
from speedwell.fs.nameserver.service.metrics import MeasuredRequests, NamespaceMetrics
from speedwell.fs.nameserver.service.service import NameserverService
from speedwell.fs.nameserver.service.settings import Settings
from speedwell.fs.nameserver.sharing import Sharing
from speedwell.fs.option_types import Host, Size
from speedwell.fs.private_directory import keep_private
from speedwell.fs.store import LevelDBStore, Store
from speedwell.fs.store.replicated import ReplicatedStore
from speedwell.fs.store.shared import SharedStore

log = logging.getLogger(__name__)

STOP_SIGNALS = {signal.SIGTERM, signal.SIGINT}
STOP_GRACE_SECONDS = 0.2
PROBE_SECONDS = 10.0
CLOSED_SECONDS = 0.5
"""Who closes a connection so soon works: its door is full, or shut for a while to this host."""

STACK_BYTES = 256 << 10
"""Of a thread: there is one for each connection."""


def run(address: str, directory: Path, settings: Settings, *, etcd: Sequence[str] = (),
        etcd_prefix: str = "", shared: bool = False, slots_at: str = "", fabric_host: str = "", new: bool = False,
        force: bool = False, controller: str = "", metrics_address: str | None = None,
        identity_directory: Path | None = None, audit_log: Path | None = None, etcd_identity: Path | None = None,
        request_rate: float = rates.REQUESTS_PER_SECOND) -> None:
    """Serve until SIGTERM or SIGINT, with the namespace in `directory`, or as one of several nameservers with the
    namespace in etcd and a mirror of it in `directory`: one of them leads, or each owns a part if it is `shared`.
    With `slots_at` switches bring what is for its slots to that port, at this host, `fabric_host` on the fabric.
    `new` makes an empty namespace in an empty directory, `force` rebuilds one without waiting for dataservers, or
    gives an etcd that lost it what mirrors have. `controller` is the URL of whom to ask where large files go,
    `metrics_address` where Prometheus is answered. Requests come as frames or gRPC: with an identity over TLS
    alone, else from anybody. Changes are written to `audit_log`. `etcd_identity` is for TLS to etcd. Who makes more
    than `request_rate` requests a second waits. Raises SpeedwellError, IdentityError if the nameserver cannot
    start."""
    # Blocked in all threads and waited for below. A handler that wakes the main thread loses a signal that
    # arrives just before the thread falls asleep.
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    threading.stack_size(STACK_BYTES)
    host, port = parse_address(address, "--listen", lowest_port=0)
    identity = None if identity_directory is None else Identity(identity_directory).require_role(NAMESERVER)
    if shared and not etcd:
        raise InvalidArgument("--shared: it takes --etcd, which all owners write to")
    if shared and host in ("0.0.0.0", "::"):
        raise InvalidArgument("--shared: --listen must name the address at which others reach this nameserver")
    if slots_at and not (shared and controller and fabric_host):
        raise InvalidArgument("--slots-at: it takes --shared, --controller and --host, this host's address on the "
                              "fabric")
    if settings.encrypt_data and identity is None:
        raise InvalidArgument("--encrypt-data: it takes --identity, for TLS")
    sync = settings.fsync == defaults.ALWAYS
    with ExitStack() as cleanup:
        listener = cleanup.enter_context(listen(host, port))    # before anything is made on the disk
        bound_port = listener.getsockname()[1]
        advice = PlacementAdvice(controller, identity=identity_directory) if controller else None
        if advice:
            cleanup.callback(advice.close)

        def make_service(store: Store, doubt: Callable[[str], None] = log.error) -> NameserverService:
            return NameserverService(store, settings, generator=random.Random(), frame_port=bound_port, advice=advice,
                                     doubt=doubt, revoked=dict if identity is None else lambda: identity.revoked,
                                     door_warnings=lambda: frames.warnings)

        requests = MeasuredRequests(request_rate)
        audit = None
        if audit_log is not None:
            if identity is None:
                raise InvalidArgument("--audit-log: without --identity nobody is known")
            audit = Audit(audit_log)
            cleanup.callback(audit.close)
        frames = NameserverFrames(requests, listener, identity, audit)
        if metrics_address:
            prometheus.serve(metrics_address, [requests.seconds, requests.refused, requests.delayed,
                                               NamespaceMetrics(requests), *frames.door_metrics,
                                               *([audit.lost] if audit else [])], identity_directory)
        if etcd:
            client = EtcdClient(etcd, identity=None if etcd_identity is None else Identity(etcd_identity))
            replicated = _replicated_store(client, etcd_prefix, directory, address, sync=sync, shared=shared)
            replicated.refills = force
            cleanup.callback(replicated.close)
            if isinstance(replicated, SharedStore):
                member: Sharing | Leadership = Sharing(replicated, requests, lambda: make_service(replicated),
                                                       identity)
            else:
                member = Leadership(replicated, requests, lambda: make_service(replicated))
        else:
            place = NameserverDirectory(directory, sync=sync)
            cleanup.callback(place.close)
            keeper = Keeper(place, requests, make_service, new=new, force=force, mirrors=settings.mirrors > 0)
            keeper.start()
            cleanup.callback(keeper.stop)
        frames.start()
        if slots_at:
            slot_host, slot_port = parse_address(slots_at, "--slots-at")
            slot_frames = NameserverFrames(requests, cleanup.enter_context(listen(slot_host, slot_port)), identity,
                                           audit)
            slot_frames.start()
            cleanup.callback(slot_frames.stop, STOP_GRACE_SECONDS)
        if identity is None:
            log.warning("without --identity: everybody who reaches this address may do anything")
        shown_host = f"[{host}]" if ":" in host else host
        own_address = f"{shown_host}:{bound_port}"
        if etcd:
            replicated.address = own_address
            member.start()
            cleanup.callback(member.stop)
        if slots_at:
            from speedwell.fs.nameserver.steered import Steered  # netlink's library takes 0.1 s
            steered = Steered(cast(SharedStore, replicated), controller, fabric_host, identity_directory)
            steered.start()
            cleanup.callback(steered.stop)
        if controller:
            reports = Reports(controller, requests, own_address, identity_directory,
                              leads=lambda: not shared or cast(SharedStore, replicated).owners.is_first)
            reports.start()
            cleanup.callback(reports.stop)
        gc.collect()
        gc.freeze()     # what start-up made stays: a look through it held up requests for 25 ms, now and then
        systemd.ready(f"ready {own_address}")
        systemd.wait_for(STOP_SIGNALS, lambda: _answers(own_address, identity_directory))
        log.info("stopping")
        frames.stop(STOP_GRACE_SECONDS)


def _replicated_store(client: EtcdClient, prefix: str, directory: Path, address: str, *,
                      sync: bool, shared: bool) -> ReplicatedStore:
    keep_private(directory)
    try:
        try:
            mirror = LevelDBStore(directory / "mirror", sync=sync)
        except DatabaseDamaged as error:
            log.warning("%s: it is loaded anew from etcd", error)
            shutil.rmtree(directory / "mirror")
            mirror = LevelDBStore(directory / "mirror", sync=sync)
        return (SharedStore if shared else ReplicatedStore)(client, mirror, prefix, address)
    except BaseException:
        client.close()
        raise


def _answers(address: str, identity: Path | None) -> bool:
    from speedwell.fs.client.names.nameservers import leads  # only where there is a watchdog

    began = time.monotonic()
    try:
        return leads(address, PROBE_SECONDS, identity) is not None or time.monotonic() - began < CLOSED_SECONDS
    except SpeedwellError:
        return True     # it says why it cannot


@click.command("speedwell-nameserver", context_settings={"help_option_names": ["-h", "--help"]})
@config_option
@click.option("--listen", default="127.0.0.1:7400", show_default=True, metavar="HOST:PORT",
              help="Address of the service; port 0 takes any free port.")
@click.option("--directory", required=True, metavar="DIR", type=click.Path(path_type=Path),
              help="Where the namespace is kept; made if it does not exist.")
@click.option("--replication", type=int, default=defaults.DEFAULT_REPLICATION, show_default=True,
              help="Replicas of a file whose creator does not ask for another number.")
@click.option("--min-replicas", type=int, default=defaults.DEFAULT_MIN_REPLICAS, show_default=True, metavar="N",
              help="How many replicas of a file must hold a change before it is acknowledged.")
@click.option("--chunk-size", "chunk_size_bytes", type=Size(), default=defaults.DEFAULT_CHUNK_BYTES,
              help="Size of a chunk, if a file's creator does not ask for another.  "
                   f"[default: {units.size(defaults.DEFAULT_CHUNK_BYTES)}]")
@click.option("--deletion-grace", "deletion_grace_seconds", type=float,
              default=defaults.DEFAULT_DELETION_GRACE_SECONDS, show_default=True, metavar="SECONDS",
              help="How long the content of a removed file stays on the dataservers for open readers.")
@click.option("--session-lease", "session_lease_seconds", type=float,
              default=defaults.DEFAULT_SESSION_LEASE_SECONDS, show_default=True, metavar="SECONDS",
              help="How long a silent mount keeps its locks.")
@click.option("--lease", "lease_seconds", type=float, default=defaults.DEFAULT_LEASE_SECONDS, show_default=True,
              metavar="SECONDS",
              help="How long a silent dataserver keeps its files before others order the appends to them.")
@click.option("--recovery-grace", "recovery_grace_seconds", type=float,
              default=defaults.DEFAULT_RECOVERY_GRACE_SECONDS, show_default=True, metavar="SECONDS",
              help="How long a dataserver may be away before its replicas are made again elsewhere.")
@click.option("--fsync", type=click.Choice(defaults.FSYNC_POLICIES), default=defaults.DEFAULT_FSYNC,
              show_default=True,
              help="When changes are forced to the disks of nameserver and dataservers: before they "
              "are answered, when a program asks for it, or never.")
@click.option("--new", is_flag=True, help="Begin a new namespace if the directory is empty. Without it, an empty "
              "directory means that the namespace was lost: it is rebuilt from the dataservers.")
@click.option("--mirrors", type=int, default=defaults.DEFAULT_MIRRORS, show_default=True, metavar="N",
              help="Dataservers that keep a copy of the namespace to rebuild it from; 0: none.")
@click.option(FORCE_FLAG, "force", is_flag=True, help="Rebuild without waiting for dataservers that are lost for "
              "good: the last changes may be lost with them. With --etcd: if etcd has lost the namespace for good, "
              "give it what the nameservers have.")
@click.option("--etcd", metavar="HOST:PORT,...", default="",
              help="Keep the namespace in this etcd, as one of several nameservers of which one leads.")
@click.option("--etcd-identity", metavar="DIR", type=click.Path(path_type=Path),
              help="Key and certificate of this nameserver for etcd, which is spoken to over TLS then.")
@click.option("--etcd-prefix", metavar="PREFIX", default="/speedwell", show_default=True,
              help="Where in etcd, one for each installation.")
@click.option("--shared", is_flag=True, help="With --etcd: own a part of the namespace, as one of several "
              "nameservers that all answer.")
@click.option("--slots-at", metavar="HOST:PORT", default="", help="With --shared and --controller: requests that the "
              "fabric brings by the addresses of slots are answered there too, such as 0.0.0.0:7400 (as root).")
@click.option("--host", "fabric_host", metavar="ADDRESS", type=Host(), help="With --slots-at: this host's own "
              "address on the fabric.")
@click.option("--controller", metavar="URL[,URL]|installation", default="", help="Ask the SDN controller there "
              "where the replicas of large new files should go (default: by racks).")
@click.option("--token-lifetime", "token_seconds", type=float, default=defaults.DEFAULT_TOKEN_SECONDS,
              show_default=True, metavar="SECONDS", help="How long a client may use the token of a look-up on "
              "dataservers before it asks again, by itself.")
@click.option("--request-rate", type=Number(1, 1e6), default=rates.REQUESTS_PER_SECOND,
              show_default=True, metavar="N", help="How many requests a second each client may make; more wait.")
@click.option("--no-tokens", is_flag=True, help="Give no tokens: for dataservers that are told the same; "
              "with --insecure alone.")
@insecure_servers.option
@command_line.encryption_option
@command_line.identity_option("This nameserver's")
@click.option("--audit-log", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="Write who changes what there, a line of JSON each; needs --identity.")
@prometheus.OPTION
@logs.OPTION
def command(listen: str, directory: Path, new: bool, force: bool, etcd: str, etcd_identity: Path | None,
            etcd_prefix: str, shared: bool, slots_at: str, fabric_host: str | None, controller: str,
            identity: Path | None, insecure: str | None, audit_log: Path | None, metrics: str | None,
            request_rate: float, log_level: str,
            **namespace: Any) -> None:
    """Keep the namespace of a Speedwell installation: names, attributes and replicas of files."""
    logs.configure(log_level)
    tracing.start("speedwell-nameserver", listen)
    insecure_servers.check(identity, insecure, no_tokens=namespace["no_tokens"],
                           listen=parse_address(listen, "--listen", lowest_port=0)[0],
                           **({"slots_at": parse_address(slots_at, "--slots-at")[0]} if slots_at else {}))
    run(listen, directory, namespace_settings(namespace), etcd=etcd.split(",") if etcd else (),
        etcd_prefix=etcd_prefix, shared=shared, slots_at=slots_at, fabric_host=fabric_host or "", new=new,
        force=force, controller=controller, metrics_address=metrics,
        identity_directory=identity, audit_log=audit_log, etcd_identity=etcd_identity,
        request_rate=request_rate)


def namespace_settings(options: Mapping[str, Any]) -> Settings:
    """Raises InvalidArgument."""
    return Settings(**{each.name: options[each.name] for each in fields(Settings)})


def status_of(arguments: list[str] | None = None) -> int:
    """Run a nameserver; returns the exit status: 0 stopped, 1 could not start, 2 bad flags."""
    return command_line.run(command, "speedwell-nameserver", arguments, wrong_usage=(InvalidArgument,))


def main(arguments: list[str] | None = None) -> NoReturn:
    """Entry of the executable: ends the process with the exit status."""
    run_to_the_end(lambda: status_of(arguments))


if __name__ == "__main__":
    main()
