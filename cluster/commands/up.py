"""speedwell up"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from speedwell.cluster import current
from speedwell.cluster.commands.connection import installation_option, one_installation
from speedwell.cluster.commands.output import echo, echo_json
from speedwell.cluster.data_directories import MAX_DIRECTORIES
from speedwell.cluster.errors import InvalidSetting
from speedwell.cluster.processes import Processes
from speedwell.controller.own_policies import POLICIES
from speedwell.controller.policy.registry import Kind
from speedwell.controller.policy_options import PolicyOption, policy_path_option
from speedwell.fs.identity import places
from speedwell.fs.option_types import MountPoint, Size
from speedwell.fs.units import counted

if TYPE_CHECKING:
    from speedwell.cluster.local import LocalSettings

MOUNT_ROOT = Path("/mnt/speedwell")


@click.command()
@click.option("--local", "directory", type=click.Path(path_type=Path), metavar="DIR",
              help="Start on this machine's loopback; data, logs and state go below DIR. Default: the local "
                   "installation that was started last, if it was not stopped.")
@installation_option
@click.option("--fabric", metavar="SPEC", help="Start on an emulated fabric (as root): a fabric's JSON file, or for "
              "example three-tier,pods=4,racks=4,hosts=4.")
@click.option("--mount", type=MountPoint(), metavar="DIR", help="Mount the filesystem there.")
@click.option("--mount-on", multiple=True, metavar="HOST", help="With --fabric: mount on that host, at "
              f"{MOUNT_ROOT}/HOST. May be repeated.")
@click.option("--all/--plain", "all_systems", default=None, help="With --fabric: whether all five systems are on, as "
              "if --coflows coflow-plus, --host-agents, --placement-policy sinbad-plus, --metadata-stores with one "
              "for each rack, or only those that other options name [default: all].")
@click.option("--coflows", cls=PolicyOption, is_flag=False, flag_value=POLICIES.default(Kind.COFLOW),
              metavar="[POLICY]",
              help="With --fabric: slice links into queues, and schedule the transfers of the filesystem as coflows, "
              "by {coflow}.")
@click.option("--replica-policy", cls=PolicyOption, metavar="NAME", help="With --fabric: how the controller picks "
              "replicas where a read does not say: {replica}.")
@click.option("--path-policy", cls=PolicyOption, metavar="NAME", help="With --fabric: how the controller picks "
              "paths where a read does not say: {path}.")
@click.option("--placement-policy", cls=PolicyOption, metavar="NAME", help="With --fabric: how the controller picks "
              "the machines for new large files: {placement}.")
@policy_path_option
@click.option("--dataservers", type=click.IntRange(1), metavar="N", help="How many dataservers, up to "
              "64; later more, not fewer [default: 3].")
@click.option("--directories-per-server", type=click.IntRange(1, MAX_DIRECTORIES), metavar="N", help="How many "
              "directories each dataserver keeps files in, as if each were a disk of its own; later "
              "more, not fewer [default: 1].")
@click.option("--nameservers", type=click.IntRange(1), metavar="N", help="How many nameservers, up to 7, of which "
              "one leads; several keep the namespace in an etcd that is started too. It stays as it is [default: 1].")
@click.option("--metadata-servers", type=click.IntRange(1), metavar="N", help="N nameservers, 2 to 7, that all "
              "answer, each for a part of the names; with --fabric on N hosts. It stays as it is.")
@click.option("--metadata-stores", type=click.IntRange(1), metavar="N", help="With --fabric: N hosts run a metadata "
              "server, which the network finds by the hash of a key.")
@click.option("--host-agents", cls=PolicyOption, is_flag=False, flag_value=POLICIES.default(Kind.TIMESLICES),
              metavar="[POLICY]",
              help="With --fabric: large flows wait for their turn where they would congest a link (XCo): an agent "
              "on every host, and a scheduler, by {timeslices}.")
@click.option("--replication", type=click.IntRange(1), metavar="N", help="Replicas of a file, at most as many "
              "as dataservers [default: 3].")
@click.option("--chunk-size", type=Size(), help="Chunks of a stored file, 64KiB to 1TiB [default: "
              "256MiB].")
@click.option("--fsync", type=click.Choice(["always", "fsync", "never"]), help="When bytes are forced to the disks: "
              "with every change, when a program asks with fsync, or never [default: fsync].")
@click.option("--min-replicas", type=click.IntRange(1, 16), metavar="N", help="A change needs so many live replicas "
              "of the file, or all if it is to have fewer [default: 2].")
@click.option("--metrics", is_flag=True, help="Every process answers Prometheus; metrics-targets.json in "
              "the installation's directory says where.")
@click.option("--identity/--insecure", default=None, help="Whether its servers have certificates, and "
              "serve only clients that have one [default: they do].")
@click.option("--encrypt-data/--no-encrypt-data", default=None, help="Whether contents cross the network over TLS "
              "[default: they do not].")
@click.option("--json", "as_json", is_flag=True, help="Describe the installation as one JSON object.")
def up(directory: Path | None, installation: Path | None, fabric: str | None, mount: Path | None,
       mount_on: tuple[str, ...], all_systems: bool | None, coflows: str | None, replica_policy: str | None,
       path_policy: str | None, placement_policy: str | None, dataservers: int | None,
       directories_per_server: int | None, nameservers: int | None, metadata_servers: int | None,
       metadata_stores: int | None,
       host_agents: str | None, replication: int | None, chunk_size: int | None, fsync: str | None,
       min_replicas: int | None, metrics: bool, identity: bool | None, encrypt_data: bool | None,
       as_json: bool) -> None:
    """Start an installation.

    With --fabric: an emulated network with its controller, a nameserver, and a dataserver on every host.

    With --local: a nameserver, dataservers and a mount on this machine, without root and without a
    controller. `up` again (on the same DIR) starts what does not run, with the settings of before and the
    files that are stored; a running installation is left as it is.

    Without either, the installation that was started last, or the one in --installation, is started again if it does
    not run.
    """
    one_installation(installation, directory)
    if encrypt_data and identity is False:
        raise InvalidSetting("--encrypt-data: it does not go with --insecure")
    shared = {"nameservers": nameservers, "replication": replication, "fsync": fsync, "min_replicas": min_replicas,
              "directories_per_server": directories_per_server, "encrypt_data": encrypt_data}
    if fabric is not None:
        for name, given in (("--local", directory), ("--installation", installation), ("--mount", mount),
                            ("--dataservers", dataservers)):
            if given is not None:
                raise click.UsageError(f"{name} does not go with --fabric", click.get_current_context())
        _on_fabric(fabric, mount_on, all_systems is not False, {"coflows": coflows, "replica_policy": replica_policy,
                                      "path_policy": path_policy,
                                      "placement_policy": placement_policy, "chunk_size_bytes": chunk_size,
                                      "metadata_stores": metadata_stores,
                                      "metadata_servers": metadata_servers, "host_agents": host_agents,
                                      "identity": identity, "metrics": metrics, **shared}, as_json)
        return
    for name, used in (("--mount-on", mount_on), ("--all/--plain", all_systems is not None), ("--coflows", coflows),
                       ("--replica-policy", replica_policy), ("--path-policy", path_policy),
                       ("--placement-policy", placement_policy),
                       ("--metadata-stores", metadata_stores), ("--host-agents", host_agents)):
        if used:
            raise click.UsageError(f"{name} goes with --fabric", click.get_current_context())
    if directory is None:
        last = current.in_directory(installation) if installation is not None else current.read()
        if last is None:
            raise click.UsageError("say what to start: --local DIR or --fabric SPEC", click.get_current_context())
        if last.kind == "fabric":
            if any((mount, dataservers, chunk_size, metrics, identity is not None, *shared.values())):
                raise click.UsageError("say which fabric to start with these options: --fabric SPEC",
                                       click.get_current_context())
            _fabric_again(as_json)
            return
        directory = Path(last.directory)
    from speedwell.cluster import parts
    from speedwell.cluster.local import LocalSettings

    if directory.is_dir() and (processes := Processes(directory)).settings.get("kind") == parts.KIND:
        if any((mount, dataservers, chunk_size, identity is not None, *shared.values())):
            raise click.UsageError(f"the settings of this machine are in {directory}/*.toml",
                                   click.get_current_context())
        _part(processes, metrics, as_json)
        return

    _local(LocalSettings(directory, mount, dataservers, replication, chunk_size, nameservers, fsync, min_replicas,
                         metrics or None, identity, directories_per_server, encrypt_data, metadata_servers), as_json)


def _part(processes: Processes, metrics: bool, as_json: bool) -> None:
    from speedwell.cluster import parts, units

    if isinstance(place := processes.settings.get("systemd"), str):     # else an earlier version made the units
        names = units.write(processes, Path(place))
        echo(f"systemd starts the processes here; its units in {place} follow the settings now")
        echo(f"next: `systemctl daemon-reload`, `systemctl restart {' '.join(names)}`")
        return
    started = parts.up(processes, metrics)
    _tell_started(parts.described(processes), started, as_json)
    if as_json:
        return
    for record in processes.running():
        if record.name in started:
            echo(f"started {record.name:12} {record.address}")
    if machines := processes.settings.get("etcd"):
        echo(f"names are served while more than half of these machines run: {machines}")
    echo("next: `speedwell status`; stop with `speedwell down`")


def _local(settings: LocalSettings, as_json: bool) -> None:
    from speedwell.cluster import local

    result = local.up(settings, (lambda message: None) if as_json else _say)
    _make_default(result.current)
    _tell_started(result.current, result.started, as_json)
    if as_json:
        return
    echo(f"nameserver {result.current.nameserver}, {counted(result.dataservers, 'dataserver')}, "
         f"{counted(result.replication, 'replica')} of each file")
    for mountpoint in result.current.mounts:
        echo(f"mounted at {mountpoint}")
    echo("next: `speedwell status`, `speedwell put FILE /`, `speedwell ls -l`; stop with `speedwell down`")


def _tell_started(installation: current.Current, started: list[str], as_json: bool) -> None:
    if as_json:
        echo_json({**asdict(installation), "started": started})
    elif not started:
        echo(f"already running in {installation.directory}")


def _on_fabric(spec: str, mount_on: tuple[str, ...], all_systems: bool,
               settings: dict[str, int | str | bool | None], as_json: bool) -> None:
    from speedwell.cluster import supervisor
    from speedwell.cluster.fabric_settings import read_settings, with_all_systems
    from speedwell.topo.fabric_spec import parse_fabric

    wanted = parse_fabric(spec)
    given = {name: value for name, value in settings.items() if value is not None}
    chosen = read_settings(fabric=wanted, mounts={host: MOUNT_ROOT / host for host in mount_on}, machine=True,
                           **((with_all_systems(wanted) if all_systems else {}) | given))
    _tell_fabric(supervisor.up(chosen, (lambda message: None) if as_json else _say), as_json)


def _fabric_again(as_json: bool) -> None:
    from speedwell.cluster import supervisor

    description, started = supervisor.up_again((lambda message: None) if as_json else _say)
    if not started and not as_json:
        echo(f"already running in {description['directory']}")
    _tell_fabric(description, as_json)


def _tell_fabric(description: dict[str, Any], as_json: bool) -> None:
    if as_json:
        echo_json(description)
        return
    echo(f"nameserver {description['nameserver']}, controller {description['controller']}, "
         f"{counted(len(description['hosts']), 'host')} with a dataserver each")
    if systems := description.get("systems"):
        echo(f"with {', '.join(systems)}")
    for host, mountpoint in description["mounts"].items():
        echo(f"mounted on {host} at {mountpoint}")
    if "machine" in description:
        echo(f"commands on this machine take part as its host `machine`, {description['machine']['ip']}")
    echo("next: `speedwell status`, `speedwell enter HOST`; stop with `speedwell down`")


def _make_default(started: current.Current) -> None:
    """The other commands find the installation by this. It runs even if that cannot be written down."""
    try:
        current.write(started)
    except OSError as error:
        click.echo(f"speedwell: {places.state_directory()}: {error.strerror}; give the other commands "
                   f"--nameserver {started.nameserver}, and `down` --local {started.directory}", err=True)


def _say(message: str) -> None:
    click.echo(f"{message} ...", err=True)
