"""The fabrics, switches and controller as the `mn` command takes them (see `topo/mininet_custom.py`)."""

import atexit
import os
import shutil
import signal
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import cache, wraps
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any, cast

from mininet.log import info, warn
from mininet.net import Mininet
from mininet.node import Controller

from speedwell.fs.errors import IdentityError
from speedwell.topo.emulation import (
    capacity,
    congestion_control,
    identities,
    management,
    namespace,
    processes,
    requirements,
)
from speedwell.topo.emulation.discovery import wait_for_hosts, wait_for_network
from speedwell.topo.emulation.errors import EmulationError, MissingRequirement
from speedwell.topo.emulation.nodes import FabricSwitch, Site
from speedwell.topo.emulation.prompt import FabricCLI
from speedwell.topo.emulation.reservation import RUN_DIRECTORY, Reservation
from speedwell.topo.emulation.settings import INSECURE, FailMode, Settings
from speedwell.topo.emulation.topology import FabricTopo
from speedwell.topo.fabric import Fabric, InvalidFabric, hosts_file
from speedwell.topo.fabric.addresses import MACHINE_ADDRESS, switch_management_address
from speedwell.topo.fabric_spec import PARAMETERS, build, read_fabric

_DIRECTORY = RUN_DIRECTORY / "mn"
_SETTINGS = ("shaped", "mtu", "queue_packets", "fail_mode")
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


def _or_end(make: Callable[..., None]) -> Callable[..., None]:
    """Whatever is refused ends `mn` at once. After any other exception Mininet cleans up, by names of processes and
    interfaces: that kills the hosts of every emulation on the machine."""

    @wraps(make)
    def make_or_end(*arguments: Any, **options: Any) -> None:
        try:
            make(*arguments, **options)
        except (EmulationError, InvalidFabric, IdentityError) as error:
            raise SystemExit(f"mn: {error}") from None
        except OSError as error:
            raise SystemExit(f"mn: {error.filename or 'the machine'}: {error.strerror or error}") from None

    return make_or_end


def _end(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


@cache
def _site(settings: Settings) -> Site:
    """The surroundings of the nodes of this `mn` process, taken down when it ends."""
    reservation = _reservation()
    algorithm, take_back = congestion_control.choose(settings.congestion_control)
    _cleanup.callback(take_back)
    _cleanup.callback(shutil.rmtree, _DIRECTORY, ignore_errors=True)
    site = Site(settings, reservation.marker, _DIRECTORY, requirements.datapath_type(), algorithm)
    site.management.create()
    _cleanup.callback(management.remove_bridge)
    _cleanup.callback(processes.kill_marked, reservation.marker)
    return site


class _FabricTopo(FabricTopo):
    """Parameters of the fabric in their order or by name, then those of its emulation."""

    takes: tuple[str, ...]

    @_or_end
    def __init__(self, *values: Any, **given: Any) -> None:
        arguments = self._arguments(values, given)
        of_emulation = {name: arguments.pop(name) for name in _SETTINGS if name in arguments}
        if "shaped" in of_emulation:
            of_emulation["shaped"] = bool(of_emulation["shaped"])
        fabric = self.fabric_of(arguments)
        capacity.check(fabric)
        super().__init__(fabric, _site(Settings(**of_emulation)))

    @classmethod
    def description(cls, *values: Any, **given: Any) -> Fabric:
        """The fabric alone, of parameters that are all its own."""
        return cls.fabric_of(cls._arguments(values, given))

    @classmethod
    def fabric_of(cls, arguments: dict[str, Any]) -> Fabric:
        """The fabric of these parameters. Raises InvalidFabric."""
        raise NotImplementedError

    @classmethod
    def _arguments(cls, values: tuple[Any, ...], given: dict[str, Any]) -> dict[str, Any]:
        names = (*cls.takes, *_SETTINGS)
        if len(values) > len(names):
            raise InvalidFabric(f"{len(values)} parameters are given, of which there are {', '.join(names)}")
        return {**dict(zip(names, values, strict=False)), **given}


class _FromFile(_FabricTopo):
    """--topo file,FILE,..."""

    takes = ("path",)

    @classmethod
    def fabric_of(cls, arguments: dict[str, Any]) -> Fabric:
        """The fabric that FILE describes as JSON."""
        path = arguments.pop("path", None)
        if path is None or arguments:
            raise InvalidFabric(f"--topo file,FILE: give a file with a fabric's JSON, not {list(arguments)}")
        return read_fabric(Path(str(path)))


def _topo_of(family_name: str) -> type[_FabricTopo]:
    class OfFamily(_FabricTopo):
        takes = PARAMETERS[family_name]

        @classmethod
        def fabric_of(cls, arguments: dict[str, Any]) -> Fabric:
            return build(family_name, arguments)

    OfFamily.__doc__ = f"--topo {','.join((family_name, *(name.upper() for name in OfFamily.takes)))},..."
    return OfFamily


class OwnSwitch(FabricSwitch):
    """--switch speedwell: the switches of any Mininet topology, each with an Open vSwitch of its own."""

    _numbers = count()

    @_or_end
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
    """--controller speedwell[,insecure=1]: our controller on the management network, its log in /tmp/c0.log."""

    @_or_end
    def __init__(self, name: str, insecure: int = 0, **params: Any) -> None:
        in_project = Path(__file__).resolve().parents[2] / ".venv" / "bin" / "speedwell-controller"
        program = str(in_project) if in_project.exists() else shutil.which("speedwell-controller")
        if program is None:
            raise MissingRequirement("speedwell-controller is not installed: run scripts/setup first")
        _reservation()
        self.identities: Path | None = None
        if insecure:
            info(f"*** The controller is {INSECURE}\n")
        else:
            _cleanup.callback(identities.remove, _DIRECTORY)
            self.identities = identities.make(_DIRECTORY)
            info(f"*** Certificates are in {self.identities}\n")
        super().__init__(name, **{
            "command": program, "ip": MACHINE_ADDRESS,
            "cargs": f"--openflow-host {MACHINE_ADDRESS} --openflow-port %d --rest-host {MACHINE_ADDRESS} "
                     f"--rest-port {identities.REST_PORT}{self._hosts_option()} "
                     + " ".join(identities.options(self.identities)), **params})

    @staticmethod
    def _hosts_option() -> str:
        """The names of a fabric's hosts; there are none with a topology of Mininet's own."""
        file = _DIRECTORY / hosts_file.NAME
        return f" --hosts-file {file}" if file.exists() else ""

    def checkListening(self) -> None:  # noqa: N802
        """The management network is made for this run: nobody listens there yet."""


class Network(Mininet):  # type: ignore[misc]
    """Prompts and tests begin once our controller knows the fabric. Says it where nobody tells switches anything."""

    @_or_end
    def start(self) -> None:
        """Mininet's, which waits for connections at most."""
        switches = [switch for switch in self.switches if isinstance(switch, FabricSwitch)]
        ours = [each for each in self.controllers if isinstance(each, SpeedwellController)]
        certified = ours[0].identities if ours else None
        if certified:
            identities.add_switches(certified, [switch.dpid for switch in switches])
        for switch in switches:
            switch.site.identities = certified
        super().start()
        if ours:
            if isinstance(self.topo, FabricTopo):
                info("*** Waiting until the controller knows every link and host\n")
                _wait_until_known(self, certified)
        elif any(switch.forwards_nothing for switch in switches):
            warn("*** No controller: the switches forward nothing but what `dpctl add-flow` tells them. "
                 "`--controller speedwell` starts ours; in a fabric without loops `fail_mode=standalone` lets "
                 "switches learn addresses\n")


def _wait_until_known(network: Any, certified: Path | None) -> None:
    fabric: Fabric = network.topo.fabric
    url, session = identities.url(certified), identities.session(certified)
    try:
        wait_for_network(url, fabric, session)
        namespace.announce_all([(network[host.name].pid, host.ip) for host in fabric.hosts])
        wait_for_hosts(url, fabric, session, warn=lambda text: warn(f"*** {text}\n"))
    except EmulationError as failure:
        warn(f"*** {failure}\n")


topos = {**{family: _topo_of(family) for family in PARAMETERS}, "file": _FromFile}
switches = {"speedwell": OwnSwitch}
controllers = {"speedwell": SpeedwellController}
CLI = FabricCLI
