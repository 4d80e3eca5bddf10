"""`speedwell fabric`: a network by itself, with a controller and Mininet's prompt."""

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from speedwell.topo.click_types import HostPort
from speedwell.topo.emulation import INSECURE, Emulation, EmulationError, identities
from speedwell.topo.emulation.discovery import wait_for_hosts, wait_for_network
from speedwell.topo.fabric import Fabric, InvalidFabric, fat_tree, spine_leaf, three_tier
from speedwell.topo.fabric.addresses import MACHINE_ADDRESS
from speedwell.topo.fabric_spec import parse_fabric

_DIRECTORY = Path("/run/speedwell/fabric")
_OPENFLOW_PORT = 6653
_CONNECT_TIMEOUT_SECONDS = 60.0
_CONTROLLER_STOP_SECONDS = 3.0


@dataclass(frozen=True)
class _Options:
    host_mbps: float
    unshaped: bool
    mtu: int
    queue_packets: int
    queues: bool
    congestion_control: str | None
    controller: tuple[str, int] | None
    no_controller: bool
    identity: Path | None
    insecure: bool
    directory: Path
    describe: bool


_SHARED_OPTIONS = (
    click.option("--host-mbps", type=float, default=80.0, show_default=True, help="Rate of a host's link, Mbit/s."),
    click.option("--unshaped", is_flag=True, help="Do not limit the links to their rates."),
    click.option("--mtu", type=int, default=9000, show_default=True, help="MTU of the hosts, bytes."),
    click.option("--queue-packets", type=int, default=20, show_default=True, help="Length of each queue, packets."),
    click.option("--queues", is_flag=True,
                 help="Slice the links between switches into queues by MPLS traffic class."),
    click.option("--congestion-control", metavar="NAME", help="TCP's, on the hosts [default: cubic where allowed]."),
    click.option("--controller", type=HostPort(), help="Use the controller there instead of starting one."),
    click.option("--no-controller", is_flag=True, help="Start no controller: switches forward what you tell them."),
    click.option("--identity", type=click.Path(path_type=Path, file_okay=False), metavar="DIR", help="With "
                 "--controller: the directory of its authority, for the switches' certificates."),
    click.option("--insecure", is_flag=True, help="No certificates: OpenFlow, OVSDB and REST in plain text, open "
                 "to anybody who reaches them."),
    click.option("--directory", type=click.Path(path_type=Path), default=_DIRECTORY, show_default=True,
                 help="Where files and logs of the switches and the controller go."),
    click.option("--describe", is_flag=True, help="Print the fabric as JSON and build nothing."),
)


def _with_shared_options(function: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(_SHARED_OPTIONS):
        function = option(function)
    return function


class _FabricGroup(click.Group):
    """Takes a fabric's description in place of a family's name as well."""

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        return super().get_command(context, name) or _command_of(name)


def _print_schema(context: click.Context, option: click.Parameter, wanted: bool) -> None:
    if wanted:
        click.echo(json.dumps(Fabric.json_schema(), indent=2))
        context.exit()


@click.group(cls=_FabricGroup, subcommand_metavar="FAMILY|SPEC [OPTIONS]")
@click.option("--schema", is_flag=True, is_eager=True, expose_value=False, callback=_print_schema,
              help="Print the JSON schema of a fabric's file.")
def fabric() -> None:
    """Build a network fabric by itself, with a Mininet prompt.

    SPEC is a fabric's JSON file, or a family with parameters: three-tier,pods=4,racks=4,hosts=4.

    Needs root and Open vSwitch. Ends with `exit`, and leaves nothing behind.
    """


@fabric.command("three-tier")
@click.option("--pods", type=int, default=2, show_default=True)
@click.option("--racks", type=int, default=2, show_default=True, help="Racks per pod.")
@click.option("--hosts", type=int, default=4, show_default=True, help="Hosts per rack.")
@click.option("--aggregations", type=int, default=2, show_default=True, help="Aggregation switches per pod.")
@click.option("--cores", type=int, default=2, show_default=True, help="Core switches.")
@click.option("--edge-ratio", type=float, default=2.0, show_default=True,
              help="Over-subscription of the edge switches' uplinks.")
@click.option("--aggregation-ratio", type=float, default=4.0, show_default=True,
              help="Over-subscription of the aggregation switches' uplinks.")
@_with_shared_options
def three_tier_command(pods: int, racks: int, hosts: int, aggregations: int, cores: int, edge_ratio: float,
                       aggregation_ratio: float, **shared: Any) -> None:
    """Pods of racks below a core. The product of the two ratios is the core-to-rack over-subscription."""
    options = _Options(**shared)
    _run(three_tier(pods, racks, hosts, aggregations, cores, options.host_mbps * 1e6,
                    {"edge": edge_ratio, "aggregation": aggregation_ratio}), options)


@fabric.command("fat-tree")
@click.option("-k", "k", type=int, default=4, show_default=True, help="Ports of each switch, an even number.")
@click.option("--pods", type=int, help="Pods, at most k.  [default: k]")
@click.option("--edge-ratio", type=float, default=1.0, show_default=True,
              help="Over-subscription of the edge switches' uplinks.")
@click.option("--aggregation-ratio", type=float, default=1.0, show_default=True,
              help="Over-subscription of the aggregation switches' uplinks.")
@_with_shared_options
def fat_tree_command(k: int, pods: int | None, edge_ratio: float, aggregation_ratio: float, **shared: Any) -> None:
    """The k-ary fat-tree, with k**2/4 hosts in each pod."""
    options = _Options(**shared)
    _run(fat_tree(k, options.host_mbps * 1e6, {"edge": edge_ratio, "aggregation": aggregation_ratio}, pods), options)


@fabric.command("spine-leaf")
@click.option("--leaves", type=int, default=4, show_default=True)
@click.option("--spines", type=int, default=2, show_default=True)
@click.option("--hosts", type=int, default=4, show_default=True, help="Hosts per leaf.")
@click.option("--ratio", type=float, default=2.0, show_default=True, help="Over-subscription of the leaves' uplinks.")
@_with_shared_options
def spine_leaf_command(leaves: int, spines: int, hosts: int, ratio: float, **shared: Any) -> None:
    """Leaves that all link to all spines."""
    options = _Options(**shared)
    _run(spine_leaf(leaves, spines, hosts, options.host_mbps * 1e6, ratio), options)


def _command_of(spec: str) -> click.Command:
    def run(**shared: Any) -> None:
        # the rates are in the description
        try:
            described = parse_fabric(spec)
        except InvalidFabric as error:
            raise click.UsageError(str(error), click.get_current_context().parent) from None
        _run(described, _Options(host_mbps=0.0, **shared))

    return click.Command(spec, callback=run, params=[parameter for parameter in three_tier_command.params
                                                     if parameter.name in _Options.__dataclass_fields__
                                                     and parameter.name != "host_mbps"],
                         help="The fabric that SPEC describes.")


def _run(description: Fabric, options: _Options) -> None:
    if options.describe:
        click.echo(description.to_json())
        return
    if options.controller and options.no_controller:
        raise click.UsageError("--controller and --no-controller exclude each other")
    if options.identity and (options.insecure or not options.controller):
        raise click.UsageError("--identity: it goes with --controller, and without --insecure")
    if options.controller and not (options.identity or options.insecure):
        raise click.UsageError("--controller: name the directory of its authority with --identity, or say --insecure")
    target = None if options.no_controller else options.controller or (MACHINE_ADDRESS, _OPENFLOW_PORT)
    certified = options.identity
    if target and not options.controller and not options.insecure:
        certified = options.directory.resolve() / identities.FOLDER
    emulation = Emulation(description, directory=options.directory, controller=target, mtu=options.mtu,
                          queue_packets=options.queue_packets, shaped=not options.unshaped,
                          congestion_control=options.congestion_control, queues=options.queues, identities=certified)
    with ExitStack() as at_last, ExitStack() as cleanup:
        def certify() -> None:
            if certified and not options.controller:
                at_last.callback(identities.remove, options.directory)
                identities.make(options.directory)
            if certified:
                identities.add_switches(certified, [switch.dpid_hex for switch in description.switches])

        cleanup.callback(emulation.stop)
        emulation.start(_say, certify)
        if target and not options.controller:
            _start_controller(options.directory, emulation, cleanup)
        # a second Ctrl-C must not end the clean-up half-way
        cleanup.callback(signal.signal, signal.SIGINT, signal.SIG_IGN)
        if target:
            _say(f"waiting for {len(description.switches)} switches to find their controller")
            emulation.wait_connected(_CONNECT_TIMEOUT_SECONDS)
        if target and not options.controller:
            _say("waiting until the controller knows every link and host")
            url, session = identities.url(certified), identities.session(certified)
            wait_for_network(url, description, session)
            emulation.announce_hosts()
            wait_for_hosts(url, description, session, warn=_say)
        _say(f"logs are in {options.directory}; `exit` stops everything")
        _prompt(emulation)


def _prompt(emulation: Emulation) -> None:
    from speedwell.topo.emulation.prompt import FabricCLI  # needs Mininet, which `Emulation.start` has checked for

    FabricCLI(emulation.network)


def _start_controller(directory: Path, emulation: Emulation, cleanup: ExitStack) -> None:
    beside = Path(sys.executable).with_name("speedwell-controller")
    program = str(beside) if beside.exists() else shutil.which("speedwell-controller")
    if program is None:
        raise EmulationError("speedwell-controller is not installed: run scripts/setup, or use --no-controller")
    certified = emulation.settings.identities
    log_path = directory / "controller.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [program, "--openflow-host", MACHINE_ADDRESS, "--openflow-port", str(_OPENFLOW_PORT),
             "--rest-host", MACHINE_ADDRESS, "--rest-port", str(identities.REST_PORT), "--hosts-file",
             str(emulation.hosts_file), *identities.options(certified)],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=emulation.environment, start_new_session=True)
    cleanup.callback(_stop_controller, process)
    _say(f"started the controller, its REST interface is {identities.url(certified)}")
    _say(f"certificates are in {certified}" if certified else INSECURE)


def _stop_controller(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_CONTROLLER_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _say(message: str) -> None:
    click.echo(message, err=True)
