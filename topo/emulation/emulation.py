"""Starting, using and stopping the emulation of one fabric."""

import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from speedwell.topo.emulation import capacity, management, namespace, processes, requirements
from speedwell.topo.emulation import congestion_control as tcp
from speedwell.topo.emulation.errors import EmulationError
from speedwell.topo.emulation.reservation import Reservation
from speedwell.topo.emulation.settings import Settings
from speedwell.topo.fabric import Fabric, hosts_file
from speedwell.topo.fabric.addresses import MACHINE_ADDRESS

if TYPE_CHECKING:
    from mininet.net import Mininet

    from speedwell.topo.emulation.nodes import FabricSwitch

log = logging.getLogger(__name__)

Progress = Callable[[str], None]

CONTROLLER_PORT = 6653
_SERVICE_STOP_SECONDS = 3.0


class Emulation:
    """A fabric of hosts and switches that run on this machine. As a context manager it starts and stops.

    `directory` takes the files and logs of the switches (`switches/NAME/`). The other parameters are those of
    `Settings`; `controller=None` leaves the switches without one. Once started, `congestion_control` is the
    algorithm in force on the hosts. `host_service_bytes` is the memory that services on each host will need.
    """

    def __init__(self, fabric: Fabric, *, directory: Path,
                 controller: tuple[str, int] | None = (MACHINE_ADDRESS, CONTROLLER_PORT), mtu: int = 9000,
                 queue_packets: int = 20, shaped: bool = True, congestion_control: str | None = None,
                 queues: bool = False, best_effort_packets: int = 2, host_queue_packets: int | None = None,
                 host_queues: Sequence[tuple[float, int]] = (), host_service_bytes: int = 0,
                 identities: Path | None = None, standby: tuple[str, int] | None = None) -> None:
        self.fabric = fabric
        self.directory = directory.resolve()
        self.settings = Settings(controller=controller, mtu=mtu, queue_packets=queue_packets, shaped=shaped,
                                 congestion_control=congestion_control, queues=queues,
                                 best_effort_packets=best_effort_packets, host_queue_packets=host_queue_packets,
                                 host_queues=host_queues, identities=identities, standby=standby)
        self.congestion_control = congestion_control or ""
        self._host_service_bytes = host_service_bytes
        self._cleanup = ExitStack()
        self._network: Mininet | None = None
        self._marker = ""
        self._services: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self.stop()

    def start(self, progress: Progress | None = None, when_reserved: Callable[[], None] = lambda: None) -> None:
        """Build the fabric; returns when every switch forwards (a controller may still have to be found).

        `progress` is told each step in words. `when_reserved` is called once no other emulation can run. Whatever
        fails half-way, nothing of it remains. Raises `MissingRequirement`, `TooLarge`, `EmulationRunning`,
        `AddressConflict` or another `EmulationError`.
        """
        if self._network is not None:
            raise EmulationError("the emulation is started already")
        requirements.check()
        capacity.check(self.fabric, self._host_service_bytes)
        try:
            self._start(progress or log.info, when_reserved)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop every process and remove every namespace and interface, also after a start that failed."""
        self._cleanup.close()

    @property
    def network(self) -> "Mininet":
        """The running Mininet network; raises `EmulationError` if the emulation is not started."""
        if self._network is None:
            raise EmulationError("the emulation is not started")
        return self._network

    def popen(self, host: str, argv: Sequence[str], log: Path,
              env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        """Start a service on a host, its output appended to `log`; `stop` ends it with SIGTERM, then SIGKILL.

        It sees the machine's files and mounts and this process's environment with the additions in `env`.
        """
        command = processes.in_namespace(self.host_pid(host), argv)
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            service = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                                       env=processes.environment(self._marker, env), start_new_session=True)
        self._services.append(service)
        return service

    def run(self, host: str, argv: Sequence[str],
            timeout_seconds: float = 30.0) -> subprocess.CompletedProcess[str]:
        """Run a command on a host to its end; raises `subprocess.TimeoutExpired` when it takes too long."""
        return subprocess.run(processes.in_namespace(self.host_pid(host), argv), stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, errors="replace", timeout=timeout_seconds,
                              env=self.environment, check=False)

    def host_pid(self, name: str) -> int:
        """A process in the namespace of a host, for `nsenter --net=/proc/PID/ns/net`; raises `UnknownNode`."""
        return int(self.network[self.fabric.host(name).name].pid)

    def switch_pid(self, name: str) -> int:
        """A process in the namespace of a switch, as `host_pid`; raises `UnknownNode`."""
        return int(self._switch(name).pid)

    @property
    def environment(self) -> dict[str, str]:
        """Of processes that are to end with the emulation, also if its owner is killed."""
        return processes.environment(self._marker)

    @property
    def hosts_file(self) -> Path:
        """The names of all nodes, in the format of /etc/hosts."""
        return self.directory / hosts_file.NAME

    def announce_hosts(self) -> None:
        """Let every host send an ARP request, from which a controller learns where it is.

        What they announced at their start was lost if the switches had no controller yet. Raises `EmulationError`.
        """
        namespace.announce_all([(self.host_pid(host.name), host.ip) for host in self.fabric.hosts])

    def kill_switch(self, name: str) -> None:
        """Kill the forwarding daemon of a switch with SIGKILL, as a crash would."""
        self._switch(name).vswitch.kill_forwarder()

    def start_switch(self, name: str) -> None:
        """Start a killed switch again; it comes back without flow entries and looks for its controller."""
        self._switch(name).vswitch.restart_forwarder()

    def set_link(self, a: str, b: str, up: bool) -> None:
        """Take both ends of the link between two neighbours down, or up again; raises `UnknownNode`."""
        for here, there in ((a, b), (b, a)):
            port = self.fabric.port_toward(here, there)
            command = ["ip", "link", "set", f"eth{port.number}", "up" if up else "down"]
            processes.run(processes.in_namespace(self.network[here].pid, command),
                          what=f"setting the link of {here} to {there}")

    def set_management_link(self, name: str, up: bool) -> None:
        """Take the link of a host or switch to the management network down, or up again; raises `UnknownNode`."""
        self.fabric.ports(name)     # knows whether there is such a node
        command = ["ip", "link", "set", management.NODE_INTERFACE, "up" if up else "down"]
        processes.run(processes.in_namespace(self.network[name].pid, command),
                      what=f"setting the management link of {name}")

    def set_management_network(self, up: bool) -> None:
        """Take the whole management network down, or up again: down, the machine itself, where controller and
        nameserver run, reaches no host and no switch."""
        processes.run(["ip", "link", "set", management.BRIDGE, "up" if up else "down"],
                      what="setting the management network")

    def switch_cpu_seconds(self) -> dict[str, float]:
        """CPU time that the forwarding daemon of each switch has used since the start."""
        return {switch.name: self._switch(switch.name).vswitch.cpu_seconds for switch in self.fabric.switches}

    def ovs_vsctl(self, switch: str, *arguments: str) -> str:
        """What `ovs-vsctl` says on a switch; raises `EmulationError` if it fails. The bridge is `br0`."""
        return self._switch(switch).vswitch.vsctl(*arguments)

    def ovs_ofctl(self, switch: str, command: str, *arguments: str, standard_input: str | None = None) -> str:
        """What an `ovs-ofctl` command says on a switch's bridge; raises `EmulationError` if it fails."""
        return self._switch(switch).vswitch.ofctl(command, *arguments, standard_input=standard_input)

    def wait_connected(self, timeout_seconds: float) -> None:
        """Wait until every switch is connected to the controller; raises `EmulationError` naming those not."""
        deadline = time.monotonic() + timeout_seconds
        missing = [switch.name for switch in self.fabric.switches]
        while missing := [name for name in missing if not self._switch(name).connected()]:
            if time.monotonic() > deadline:
                raise EmulationError(f"after {timeout_seconds:g} s the controller has no connection from "
                                     f"{', '.join(missing)}")
            time.sleep(0.1)

    def _start(self, progress: Progress, when_reserved: Callable[[], None]) -> None:
        from mininet.net import Mininet  # not importable on every machine, which `requirements.check` reports

        from speedwell.topo.emulation.nodes import Site
        from speedwell.topo.emulation.topology import FabricTopo

        reservation = Reservation(f"fabric {self.fabric.name} in {self.directory}")
        self._cleanup.push(reservation.release)
        when_reserved()
        self._marker = reservation.marker
        self.congestion_control, take_back = tcp.choose(self.settings.congestion_control)
        self._cleanup.callback(take_back)
        site = Site(self.settings, reservation.marker, self.directory, requirements.datapath_type(),
                    self.congestion_control)
        site.management.create()
        self._cleanup.callback(management.remove_bridge)
        self._cleanup.callback(processes.kill_marked, reservation.marker)

        progress(f"making {len(self.fabric.hosts)} hosts, {len(self.fabric.switches)} switches and "
                 f"{len(self.fabric.links)} links (TCP uses {self.congestion_control})")
        self._network = Mininet(topo=FabricTopo(self.fabric, site), controller=None, build=False)
        self._cleanup.callback(self._stop_network)
        self._network.build()
        progress(f"starting {len(self.fabric.switches)} switches ({site.datapath_type} datapath)")
        self._network.start()
        reservation.record(description=self.fabric.name, directory=str(self.directory),
                           namespaces={name: self._network[name].pid for name in self._network})
        self._cleanup.callback(self.stop_services)

    def _stop_network(self) -> None:
        network, self._network = self._network, None
        if network is not None:
            network.stop()

    def stop_services(self) -> None:
        """End what `popen` started, with SIGTERM, then SIGKILL."""
        services, self._services = self._services, []
        for service in services:
            with suppress(ProcessLookupError):
                os.killpg(service.pid, signal.SIGTERM)
        deadline = time.monotonic() + _SERVICE_STOP_SECONDS
        for service in services:
            try:
                service.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                os.killpg(service.pid, signal.SIGKILL)
                service.wait()

    def _switch(self, name: str) -> "FabricSwitch":
        switch: FabricSwitch = self.network[self.fabric.switch(name).name]
        return switch
