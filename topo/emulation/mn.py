"""The fabrics, switches and controller as the `mn` command takes them (see `topo/mininet_custom.py`)."""

import atexit
import os
import shutil
import signal
from collections.abc import Iterable
from contextlib import ExitStack
from functools import cache
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any, cast

from mininet.log import info, warn
from mininet.node import Controller

from topo.emulation import congestion_control, management, namespace, processes, requirements
from topo.emulation.discovery import wait_for_hosts, wait_for_network
from topo.emulation.errors import EmulationError, MissingRequirement
from topo.emulation.nodes import FabricSwitch, Site
from topo.emulation.prompt import FabricCLI
from topo.emulation.reservation import RUN_DIRECTORY, Reservation
from topo.emulation.settings import FailMode, Settings
from topo.emulation.topology import FabricTopo
from topo.fabric import Fabric, fat_tree, spine_leaf, three_tier
from topo.fabric.addresses import MACHINE_ADDRESS, switch_management_address

_REST_PORT = 8080
_CONTROLLER_URL = f"http://{MACHINE_ADDRESS}:{_REST_PORT}"
_cleanup = ExitStack()


@cache
def _reservation() -> Reservation:
    """The machine, held by this `mn` process. All that it starts from now on carries the marker."""
    requirements.check()
    reservation = Reservation("mn")
    atexit.register(_cleanup.close)
    _cleanup.push(reservation.release)
    os.environ[processes.MARKER_VARIABLE] = reservation.marker
    signal.signal(signal.SIGTERM, _end)     # at its default it ends a process without what is registered at exit
    return reservation


def _end(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


@cache
def _site(settings: Settings) -> Site:
    """The surroundings of the nodes of this `mn` process, taken down when it ends."""
    reservation = _reservation()
    algorithm, take_back = congestion_control.choose(settings.congestion_control)
    _cleanup.callback(take_back)
    directory = RUN_DIRECTORY / "mn"
    _cleanup.callback(shutil.rmtree, directory, ignore_errors=True)
    site = Site(settings, reservation.marker, directory, requirements.datapath_type(), algorithm)
    site.management.create()
    _cleanup.callback(management.remove_bridge)
    _cleanup.callback(processes.kill_marked, reservation.marker)
    return site


def _settings(shaped: int, mtu: int, queue_packets: int, fail_mode: str) -> Settings:
    return Settings(shaped=bool(shaped), mtu=mtu, queue_packets=queue_packets,
                    fail_mode=cast(FailMode, fail_mode))


class ThreeTierTopo(FabricTopo):
    """--topo three-tier,PODS,RACKS,HOSTS,AGGREGATIONS,CORES,..."""

    def __init__(self, pods: int = 2, racks: int = 2, hosts: int = 4, aggregations: int = 2, cores: int = 2,
                 host_mbps: float = 80, edge_ratio: float = 2, aggregation_ratio: float = 4, shaped: int = 1,
                 mtu: int = 9000, queue_packets: int = 20, fail_mode: str = "secure") -> None:
        fabric = three_tier(pods, racks, hosts, aggregations, cores, host_mbps * 1e6,
                            {"edge": edge_ratio, "aggregation": aggregation_ratio})
        super().__init__(fabric, _site(_settings(shaped, mtu, queue_packets, fail_mode)))


class FatTreeTopo(FabricTopo):
    """--topo fat-tree,K,..."""

    def __init__(self, k: int = 4, host_mbps: float = 80, shaped: int = 1, mtu: int = 9000,
                 queue_packets: int = 20, fail_mode: str = "secure") -> None:
        super().__init__(fat_tree(k, host_mbps * 1e6), _site(_settings(shaped, mtu, queue_packets, fail_mode)))


class SpineLeafTopo(FabricTopo):
    """--topo spine-leaf,LEAVES,SPINES,HOSTS,..."""

    def __init__(self, leaves: int = 4, spines: int = 2, hosts: int = 4, host_mbps: float = 80, ratio: float = 2,
                 shaped: int = 1, mtu: int = 9000, queue_packets: int = 20, fail_mode: str = "secure") -> None:
        fabric = spine_leaf(leaves, spines, hosts, host_mbps * 1e6, ratio)
        super().__init__(fabric, _site(_settings(shaped, mtu, queue_packets, fail_mode)))


class OwnSwitch(FabricSwitch):
    """--switch speedwell: the switches of any Mininet topology, each with an Open vSwitch of its own."""

    _numbers = count()

    def __init__(self, name: str, fail_mode: str = "secure", **params: Any) -> None:
        site = _site(Settings(shaped=False, fail_mode=cast(FailMode, fail_mode)))
        super().__init__(name, site=site, management_ip=switch_management_address(next(self._numbers)), **params)

    def start(self, controllers: Iterable[Any]) -> None:
        """Start the switch, once its neighbours compute their checksums themselves."""
        for interface in self.intfList():
            if interface.link:
                ends = (interface.link.intf1, interface.link.intf2)
                for end in ends:
                    end.cmd("ethtool", "-K", end.name, "tx", "off")
        super().start(controllers)


class SpeedwellController(Controller):  # type: ignore[misc]
    """--controller speedwell: our controller on the management network, its log in /tmp/c0.log."""

    def __init__(self, name: str, **params: Any) -> None:
        in_project = Path(__file__).parents[2] / ".venv" / "bin" / "speedwell-controller"
        program = str(in_project) if in_project.exists() else shutil.which("speedwell-controller")
        if program is None:
            raise MissingRequirement("speedwell-controller is not installed: run scripts/setup first")
        _reservation()
        super().__init__(name, **{
            "command": program, "ip": MACHINE_ADDRESS,
            "cargs": f"--openflow-host {MACHINE_ADDRESS} --openflow-port %d --rest-host {MACHINE_ADDRESS} "
                     f"--rest-port {_REST_PORT}", **params})

    def checkListening(self) -> None:  # noqa: N802
        """The management network is made for this run: nobody listens there yet."""


class Prompt(FabricCLI):
    """The prompt, shown once our controller knows the fabric. Says so where nobody tells the switches anything."""

    def __init__(self, network: Any, *arguments: Any, **options: Any) -> None:
        switches = [switch for switch in network.switches if isinstance(switch, FabricSwitch)]
        if any(isinstance(each, SpeedwellController) for each in network.controllers):
            if isinstance(network.topo, FabricTopo):
                info("*** Waiting until the controller knows every link and host\n")
                _wait_until_known(network)
        elif any(switch.forwards_nothing for switch in switches):
            warn("*** No controller: the switches forward nothing but what `dpctl add-flow` tells them. "
                 "`--controller speedwell` starts ours; in a fabric without loops `fail_mode=standalone` lets "
                 "switches learn addresses\n")
        super().__init__(network, *arguments, **options)


def _wait_until_known(network: Any) -> None:
    fabric: Fabric = network.topo.fabric
    try:
        wait_for_network(_CONTROLLER_URL, fabric)
        namespace.announce_all([(network[host.name].pid, host.ip) for host in fabric.hosts])
        wait_for_hosts(_CONTROLLER_URL, fabric)
    except EmulationError as failure:
        warn(f"*** {failure}\n")


topos = {"three-tier": ThreeTierTopo, "fat-tree": FatTreeTopo, "spine-leaf": SpineLeafTopo}
switches = {"speedwell": OwnSwitch}
controllers = {"speedwell": SpeedwellController}
CLI = Prompt
