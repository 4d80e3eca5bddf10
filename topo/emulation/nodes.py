"""Hosts, switches and links as Mininet classes."""

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mininet.link import Intf, Link
from mininet.node import Host, Node, Switch
from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from speedwell.fs.identity import files
from speedwell.topo.emulation import namespace, processes, shaping
from speedwell.topo.emulation.errors import EmulationError
from speedwell.topo.emulation.management import ManagementNetwork
from speedwell.topo.emulation.openvswitch import BRIDGE, DATABASE_PORT, OpenVSwitch
from speedwell.topo.emulation.requirements import DatapathType
from speedwell.topo.emulation.settings import Settings
from speedwell.topo.fabric import Fabric
from speedwell.topo.fabric.addresses import FABRIC_NETWORK, MACHINE_ADDRESS
from speedwell.topo.fabric.hosts_file import NAME, hosts_file

_CONTROLLER_MAX_BACKOFF_MILLISECONDS = 1000
_CONTROLLER_INACTIVITY_PROBE_MILLISECONDS = 5000


@dataclass
class Site:
    """What all nodes of one emulation share."""

    settings: Settings
    marker: str
    directory: Path
    datapath_type: DatapathType
    congestion_control: str
    management: ManagementNetwork = field(default_factory=ManagementNetwork)
    hosts_file: Path | None = None
    """What shells on the nodes have as /etc/hosts; None: the machine's."""
    identities: Path | None = None
    """As in the settings."""

    def __post_init__(self) -> None:
        self.identities = self.settings.identities

    def name_hosts(self, fabric: Fabric) -> None:
        """Let names of the fabric resolve on its nodes."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self.hosts_file = self.directory / NAME
        machines = Path("/etc/hosts")
        self.hosts_file.write_text(hosts_file(fabric, machines.read_text() if machines.exists() else ""))


class _EmulatedNode(Node):  # type: ignore[misc]
    """A Mininet node in a network namespace of its own that is reached over the management network."""

    def __init__(self, name: str, *, site: Site, management_ip: str, **params: Any) -> None:
        self.site = site
        self.management_ip = management_ip
        super().__init__(name, **{**params, "inNamespace": True})
        site.management.attach(self.pid)

    def _popen(self, cmd: list[str], **params: Any) -> Any:
        if cmd[:2] == ["mnexec", "-cdn"]:
            # mnexec's namespaces would hide from this shell what is mounted later, filesystems of ours included
            cmd = ["mnexec", "-cd", *cmd[2:]]
            if self.site.hosts_file is not None:
                cmd = processes.with_host_names(self.site.hosts_file, cmd)
            cmd = ["unshare", "--net", *cmd]
        return super()._popen(cmd, **{**params, "env": processes.environment(self.site.marker, params.get("env"))})


class FabricHost(_EmulatedNode, Host):  # type: ignore[misc]
    """A server of a fabric: `eth0` on the fabric, `mgmt0` on the management network."""

    def config(self, ip: str | None = None, **params: Any) -> dict[str, Any]:
        """Set up the namespace of the host, once its link is made."""
        interface = self.defaultIntf()
        settings = self.site.settings
        address = (ip or "").partition("/")[0]
        shaped = settings.shaped and interface.capacity_bps is not None
        namespace.set_up_host(
            self.name, self.pid, address=address, management_address=self.management_ip,
            congestion_control=self.site.congestion_control,
            traffic_control=shaping.host_traffic_control(interface.name, interface.capacity_bps, settings)
            if shaped else [])
        interface.ip, interface.prefixLen = address, str(FABRIC_NETWORK.prefixlen)
        return {}


class FabricSwitch(_EmulatedNode, Switch):  # type: ignore[misc]
    """A switch that is a machine of its own: a namespace with its own Open vSwitch, controlled out of band."""

    def __init__(self, name: str, dpid: str | None = None, batch: bool = False, **params: Any) -> None:
        self._batch = batch
        self._controllers: list[tuple[str, int]] = []
        self.controlIntf = None
        super().__init__(name, dpid=dpid, **params)
        self.vswitch = OpenVSwitch(name, self.pid, self._directory, self.site.marker)

    @property
    def _directory(self) -> Path:
        return Path(self.site.directory, "switches", self.name)

    def _popen(self, cmd: list[str], **params: Any) -> Any:
        # `core0 ovs-vsctl show` at the prompt
        return super()._popen(cmd, **{**params, "env": {**params.get("env", {}), "OVS_RUNDIR": str(self._directory)}})

    def start(self, controllers: Iterable[Any]) -> None:
        """Start the switch, or, when Mininet starts many, leave it to `batchStartup`.

        `controllers` are Mininet's controllers, used where the settings name none. They are reached at the
        machine's management address if they listen on all addresses.
        """
        self._controllers = list(self.site.settings.controllers) or [_reachable(each.IP(), each.port)
                                                                     for each in controllers]
        if not self._batch:
            self._start()

    @classmethod
    def batchStartup(cls, switches: Sequence["FabricSwitch"]) -> Sequence["FabricSwitch"]:  # noqa: N802
        """Mininet's hook to start many switches at once."""
        with ThreadPoolExecutor(max_workers=2 * (os.cpu_count() or 1)) as pool:
            for _ in pool.map(FabricSwitch._start, switches):
                pass
        for switch in switches:
            switch._batch = False
        return switches

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}: dpid={self.dpid} management={self.management_ip} pid={self.pid}>"

    def stop(self, deleteIntfs: bool = True) -> None:  # noqa: N803
        """Kill the daemons. The interfaces go with the namespace."""
        self.vswitch.stop()

    def connected(self) -> bool:
        """Whether the switch is connected to a controller, or has none to connect to."""
        # what Open vSwitch's database says of it is up to 5 s old
        return not self._controllers or any(processes.has_tcp_connection(self.pid, address, port)
                                            for address, port in self._controllers)

    @property
    def forwards_nothing(self) -> bool:
        """Whether no controller is to tell the switch what to do, and it does nothing by itself."""
        return not self._controllers and self.site.settings.fail_mode == "secure"

    def dpctl(self, *arguments: str) -> str:
        """Mininet's `dpctl`: an `ovs-ofctl` command on this switch."""
        return self.vswitch.ofctl(*arguments)

    def _start(self) -> None:
        interfaces = [(port, self.intfs[port]) for port in sorted(self.intfs)]
        namespace.set_up_switch(self.name, self.pid, management_address=self.management_ip,
                                interfaces=[interface.name for _, interface in interfaces])
        configuration = self._bridge_configuration()
        for port, interface in interfaces:
            configuration += self._port_configuration(port, interface)
        self.vswitch.start(configuration)
        self._check_ports([interface.name for _, interface in interfaces])
        if self.site.settings.queues:
            # the queues' roots exist once Open vSwitch has taken its configuration over
            namespace.set_traffic_control(self.name, self.pid, [
                line for _, interface in interfaces if _leads_to_switch(interface)
                for line in shaping.classify(interface.name, self.site.settings)])
        if self.site.settings.host_queues:
            namespace.set_traffic_control(self.name, self.pid, [
                line for _, interface in interfaces if _leads_to_host(interface)
                for line in shaping.classify_by_dscp(interface.name)])

    def _bridge_configuration(self) -> list[str]:
        identities = self.site.identities
        configuration = [
            *(_set_ssl(identities / self.dpid) if identities else ()),
            "--", "set-manager", f"{'pssl' if identities else 'ptcp'}:{DATABASE_PORT}:{self.management_ip}",
            # one thread each: a thread per core for each of dozens of switches only costs memory
            "--", "set", "Open_vSwitch", ".", "other_config:n-handler-threads=1",
            "other_config:n-revalidator-threads=1", f"external_ids:hostname={self.name}",
            "--", "add-br", BRIDGE,
            "--", "set", "Bridge", BRIDGE, f"datapath_type={self.site.datapath_type}",
            f"fail_mode={self.site.settings.fail_mode}", "protocols=OpenFlow13",
            f"other_config:datapath-id={self.dpid}", f"other_config:dp-desc={self.name}",
            "other_config:disable-in-band=true"]
        if self._controllers:
            names = [f"@controller{number}" for number, _ in enumerate(self._controllers)]
            for name, (address, port) in zip(names, self._controllers, strict=True):
                configuration += ["--", f"--id={name}", "create", "Controller",
                                  f"target=\"{'ssl' if identities else 'tcp'}:{address}:{port}\"",
                                  "connection_mode=out-of-band",
                                  f"max_backoff={_CONTROLLER_MAX_BACKOFF_MILLISECONDS}",
                                  f"inactivity_probe={_CONTROLLER_INACTIVITY_PROBE_MILLISECONDS}"]
            configuration += ["--", "set", "Bridge", BRIDGE, f"controller={','.join(names)}"]
        return configuration

    def _port_configuration(self, port: int, interface: Any) -> list[str]:
        capacity_bps = getattr(interface, "capacity_bps", None)
        configuration = ["--", "add-port", BRIDGE, interface.name,
                         "--", "set", "Interface", interface.name, f"ofport_request={port}"]
        if capacity_bps is not None:
            configuration.append(f"external_ids:capacity_bps={capacity_bps}")
            if self.site.settings.shaped:
                is_sliced = self.site.settings.host_queues and _leads_to_host(interface)
                make = shaping.host_port_qos if is_sliced else shaping.port_qos
                configuration += make(interface.name, capacity_bps, self.site.settings)
        return configuration

    def _check_ports(self, names: Sequence[str]) -> None:
        listed = self.vswitch.vsctl("--columns=name,error", "--bare", "--format=csv", "--no-headings", "list",
                                    "Interface")
        for line in listed.splitlines():
            name, _, error = line.partition(",")
            if name in names and error:
                raise EmulationError(f"{self.name}: Open vSwitch cannot use port {name}: {error}")


class FabricInterface(Intf):  # type: ignore[misc]
    """An interface that the scripts of its node set up: Mininet would start several processes for it."""

    def __init__(self, name: str, capacity_bps: int | None = None, **params: Any) -> None:
        self.capacity_bps = capacity_bps
        super().__init__(name, **params)

    def __str__(self) -> str:
        return f"{self.node.name}-{self.name}"     # as in Mininet, where the interface itself is called so

    def config(self, **params: Any) -> dict[str, Any]:
        """Nothing to do here."""
        return {}

    def status(self) -> str:
        """As Mininet's, which asks by a program that does not run on every machine."""
        return "OK" if f" {self.name}" in str(self.cmd("ip", "-o", "link", "show", "dev", self.name)) else "MISSING"

    def updateIP(self) -> str | None:  # noqa: N802
        """The address, which does not change. Mininet's prompt puts it for a host's name in every line."""
        return str(self.ip) if self.ip else None


class FabricLink(Link):  # type: ignore[misc]
    """A link whose ends are made right inside their namespaces, as `eth{port}`."""

    def __init__(self, node1: Any, node2: Any, **params: Any) -> None:
        super().__init__(node1, node2, **{**params, "intf": FabricInterface})

    def intfName(self, node: Any, n: int) -> str:  # noqa: N802
        """Interfaces live in namespaces of their own, so the node's name need not be part of theirs."""
        return f"eth{n}"

    @classmethod
    def makeIntfPair(cls, intfname1: str, intfname2: str, addr1: str | None = None,  # noqa: N802
                     addr2: str | None = None, node1: Any = None, node2: Any = None,
                     deleteIntfs: bool = True) -> None:  # noqa: N803
        """Mininet's hook to make the two interfaces."""
        settings: Settings = node1.site.settings
        first, second = ({"ifname": name, "address": address, "net_ns_pid": node.pid,
                          "mtu": settings.mtu if isinstance(node, FabricHost) else settings.fabric_mtu,
                          **({"txqlen": settings.queue_packets} if settings.shaped else {})}
                         for name, address, node in ((intfname1, addr1, node1), (intfname2, addr2, node2)))
        try:
            with IPRoute() as netlink:
                netlink.link("add", kind="veth", peer=second, **first)
        except NetlinkError as error:
            raise EmulationError(f"cannot make the link {node1.name} - {node2.name}: {error}") from None

    def stop(self) -> None:
        """The link goes with the namespaces of its nodes."""


def _set_ssl(identity: Path) -> list[str]:
    own = str(identity / files.CERTIFICATE)     # with the key
    return ["--", "set-ssl", own, own, str(identity / files.AUTHORITY)]


def _leads_to_switch(interface: Any) -> bool:
    ends = (interface.link.intf1, interface.link.intf2)
    return all(isinstance(end.node, Switch) for end in ends) and getattr(interface, "capacity_bps", None) is not None


def _leads_to_host(interface: Any) -> bool:
    return getattr(interface, "capacity_bps", None) is not None and not _leads_to_switch(interface)


def _reachable(address: str, port: int) -> tuple[str, int]:
    return (MACHINE_ADDRESS if address.startswith("127.") else address, port)
