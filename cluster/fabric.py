"""A whole installation on an emulated fabric: switches, controller, nameserver, a dataserver per host, mounts.

`FabricCluster` starts and stops one in this process. `speedwell.cluster.supervisor` keeps one running in the
background; `up` and `down` there are what the command line calls.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from speedwell.cluster import host_agents, identities, local_metrics, mounts
from speedwell.cluster.controller_client import session
from speedwell.cluster.data_directories import directory_options
from speedwell.cluster.fabric_settings import FabricSettings
from speedwell.cluster.identities import with_identity
from speedwell.cluster.local_commands import LOOPBACK, durability_options
from speedwell.cluster.nameservers import (
    EtcdMember,
    etcd_commands,
    etcd_names,
    nameserver_commands,
    nameserver_names,
    require_etcd,
    stop_etcd,
)
from speedwell.cluster.processes import Command, Processes, program
from speedwell.cluster.registration import wait_for_dataservers
from speedwell.coflow.report import host_key
from speedwell.controller.own_policies import POLICIES
from speedwell.controller.policy.registry import Kind
from speedwell.fs import insecure
from speedwell.fs.coflows import ADDRESS_VARIABLE, KEY_FILE_VARIABLE
from speedwell.fs.slots import ANY_OWNER
from speedwell.host_agent.channel import agent_key
from speedwell.host_agent.class_shares import shares_of
from speedwell.topo.emulation import Emulation
from speedwell.topo.emulation.discovery import wait_for_hosts, wait_for_network
from speedwell.topo.emulation.processes import in_namespace
from speedwell.topo.fabric import Host
from speedwell.topo.fabric.machine import NAME, with_machine

if TYPE_CHECKING:
    import requests

MACHINE = "10.255.0.1"
OPENFLOW_PORT = 6653
REST_PORT = 8080
NAMESERVER_PORT = 7000   # of the first; each further one has the next
SLOTS_PORT = 7400
DATASERVER_PORT = 7100
COFLOW_KEYS = "coflow-keys"
ETCD_CLIENT_PORT, ETCD_PEER_PORT, ETCD_METRICS_PORT = 7020, 7040, 7060   # likewise
NAMESERVER_METRICS_PORT, SUPERVISOR_METRICS_PORT = 7010, 7019
HOST_METRICS_PORT = 7110   # of a host's dataserver; its mount, metadata server and agent have the next ones
DATASERVER_BYTES = 30 << 20     # proportional set size of an idle one
REST = f"{MACHINE}:{REST_PORT}"
CONTROLLER_URL = f"http://{REST}"
"""Of a controller without an identity."""
SECURE_CONTROLLER_URL = f"https://{REST}"
NAMESERVER = f"{MACHINE}:{NAMESERVER_PORT}"

Progress = Callable[[str], None]
RATES_AT_HOSTS = "varys"
"""The coflow policy whose rates are the hosts' to keep."""


class FabricCluster:
    """One installation on an emulated fabric. `stop` is complete after any failure of `start`."""

    def __init__(self, settings: FabricSettings) -> None:
        self.settings = settings
        self.processes = Processes(settings.directory)
        self.processes.settings = {"identity": settings.identity, "encrypt_data": settings.encrypt_data,
                                   "insecure": insecure.FABRIC}
        self.network = with_machine(settings.fabric) if settings.machine else settings.fabric
        self.emulation = Emulation(self.network, directory=settings.directory,
                                   controller=(MACHINE, OPENFLOW_PORT), shaped=settings.shaped,
                                   queue_packets=settings.queue_packets, queues=settings.coflows is not None,
                                   host_queues=shares_of(host_agents.shares(self._slices))
                                   if self._has_classes_at_hosts else (),
                                   host_queue_packets=settings.host_queue_packets, host_service_bytes=DATASERVER_BYTES
                                   + host_agents.PROCESS_BYTES * (settings.host_agents is not None),
                                   identities=settings.directory / identities.FOLDER if settings.identity else None)
        self._made_directories: list[Path] = []
        if settings.metrics:
            self.processes.settings["metrics"] = self._metrics_addresses()

    def start(self, progress: Progress = lambda message: None) -> None:
        """Build the fabric, start every service, wait until the controller sees the whole network.

        Raises ClusterError or the emulation's own errors; call `stop` then.
        """
        fabric = self.settings.fabric
        if self.settings.nameservers > 1:
            require_etcd()
        progress(f"building {fabric.name}: {len(fabric.switches)} switches, {len(fabric.hosts)} hosts")
        identities.forget(self.addresses)
        if self.settings.identity:
            identities.prepare(self.settings.directory, self.settings.identity_names, MACHINE)
            identities.remember(self.addresses, self.settings.directory)
        self.emulation.start()
        if self.settings.coflows:
            host_agents.make_keys(self._coflow_keys, fabric, host_key)
        progress("starting the controller and the nameserver")
        self.processes.start_together(etcd_commands(self.settings.directory, MACHINE, self._etcd_members))
        self._start([self._controller(), *self._nameservers("--new")])
        progress(f"starting {len(fabric.hosts)} dataservers")
        self._start([self._dataserver(host.name) for host in fabric.hosts])
        progress("waiting until the controller knows every link")
        wait_for_network(self.controller, self.network, self.session())
        progress("waiting until the controller knows every host")
        self.emulation.announce_hosts()
        wait_for_hosts(self.controller, self.network, self.session(), progress)
        progress("waiting until the nameserver hears every dataserver")
        wait_for_dataservers(self.nameserver, [host.name for host in fabric.hosts])
        if self.metadata_hosts:
            progress(f"starting {len(self.metadata_hosts)} metadata servers")
            self._start([self._metadata_store(name) for name in self.metadata_hosts])
        if self.settings.host_agents:
            progress(f"starting {len(self.network.hosts)} host agents and their scheduler")
            host_agents.make_keys(self.settings.directory / host_agents.KEYS, self.network, agent_key)
            self._start([self._turns()])
            self._start([self._agent(host.name) for host in self.network.hosts])
        for host, mountpoint in self.settings.mounts.items():
            progress(f"mounting on {host} at {mountpoint}")
            self._make_mountpoint(mountpoint)
        self._start([self._mount(*mount) for mount in self.settings.mounts.items()])
        local_metrics.write_targets(self.processes, self._always_measured)

    def _start(self, commands: Sequence[Command]) -> None:
        self.processes.start_together([local_metrics.with_metrics(self.processes, each) for each in commands])

    def stop(self) -> None:
        """Stop every service and take the fabric down; logs stay, stored data and mount points go."""
        with contextlib.ExitStack() as steps:     # runs all of them, the last pushed first
            steps.callback(self._remove_data)
            steps.callback(self.emulation.stop)
            steps.callback(self._stop_processes)

    def _stop_processes(self) -> None:
        etcd = etcd_names(self.settings.nameservers)
        self.processes.stop(names=[record.name for record in self.processes.records if record.name not in etcd])
        for mountpoint in self.settings.mounts.values():
            mounts.unmount(mountpoint, lazy=True)       # its process had to be killed
        stop_etcd(self.processes, etcd)
        identities.forget(self.addresses)

    def wanted(self) -> list[str]:
        """The services that run from the end of `start` to `stop`. A mount that somebody has unmounted stays so."""
        running = {record.name for record in self.processes.running()}
        mounted = [f"mount-{host}" for host, mountpoint in self.settings.mounts.items()
                   if f"mount-{host}" in running or mounts.is_dead(mountpoint)]
        agents = [host_agents.SCHEDULER, *(f"agent-{host.name}" for host in self.network.hosts)]
        agents = agents if self.settings.host_agents else []
        return [*etcd_names(self.settings.nameservers), "controller", *nameserver_names(self.settings.nameservers),
                *(f"dataserver-{host.name}" for host in self.settings.fabric.hosts),
                *(f"metadata-{name}" for name in self.metadata_hosts), *agents, *mounted]

    def command_again(self, name: str) -> Command:
        """The command of a service that ended."""
        return local_metrics.with_metrics(self.processes, self._command(name))

    def _metrics_addresses(self) -> dict[str, str]:
        """HOST:PORT by process: those on hosts answer at their hosts' addresses in the management network."""
        names = nameserver_names(self.settings.nameservers)
        found = {local_metrics.SUPERVISOR: f"{LOOPBACK}:{SUPERVISOR_METRICS_PORT}",
                 **{name: f"{self._owner_hosts[index].management_ip if self._owner_hosts else LOOPBACK}:"
                          f"{NAMESERVER_METRICS_PORT + index}" for index, name in enumerate(names)}}
        for host in self.network.hosts:
            roles = {"dataserver": host.name != NAME, "mount": host.name in self.settings.mounts,
                     "metadata": host.name in self.metadata_hosts, "agent": self.settings.host_agents}
            found |= {f"{role}-{host.name}": f"{host.management_ip}:{port}"
                      for port, (role, is_there) in enumerate(roles.items(), HOST_METRICS_PORT) if is_there}
        return found

    @property
    def _always_measured(self) -> dict[str, str]:
        scheduler = {host_agents.SCHEDULER: f"{LOOPBACK}:{host_agents.METRICS_PORT}"}
        return {**(scheduler if self.settings.host_agents else {}),
                **{name: f"{MACHINE}:{member.client_port}" if not member.metrics_port
                   else f"{LOOPBACK}:{member.metrics_port}"
                   for name, member in zip(etcd_names(self.settings.nameservers), self._etcd_members, strict=True)}}

    def _command(self, name: str) -> Command:
        role, _, host = name.partition("-")
        if role == "dataserver":
            return self._dataserver(host)
        if role == "metadata":
            return self._metadata_store(host)
        if role == "agent":
            return self._agent(host)
        if name == host_agents.SCHEDULER:
            return self._turns()
        if role == "mount":
            return self._mount(host, self.settings.mounts[host])
        commands = [*etcd_commands(self.settings.directory, MACHINE, self._etcd_members), self._controller(),
                    *self._nameservers()]
        return next(command for command in commands if command.name == name)

    def description(self) -> dict[str, Any]:
        """What a user needs to find the parts: addresses, mount points, hosts with the pid to enter them.

        Only once the emulation has started.
        """
        return {
            "kind": "fabric",
            "fabric": self.settings.fabric.name,
            "congestion_control": self.emulation.congestion_control,
            "controller": self.controller,
            "nameserver": self.nameserver,
            "identity": self.operator,
            "environment": self.environment(),
            "hosts_file": str(self.emulation.hosts_file),
            "metadata_stores": self.metadata_hosts,
            "systems": self.settings.systems,
            "mounts": {host: str(path) for host, path in self.settings.mounts.items()},
            "switches": {switch.name: {"pid": self.emulation.switch_pid(switch.name),
                                       "management_ip": switch.management_ip}
                         for switch in self.settings.fabric.switches},
            "hosts": {host.name: {"pid": self.emulation.host_pid(host.name), "ip": host.ip,
                                  "management_ip": host.management_ip, "rack": host.rack, "pod": host.pod}
                      for host in self.settings.fabric.hosts},
            **({"machine": {"pid": self.emulation.host_pid(NAME), "ip": self.network.host(NAME).ip}}
               if self.settings.machine else {}),
        }

    def _controller(self) -> Command:
        return with_identity(self.processes, Command("controller", [
            program("speedwell-controller"),
            "--openflow-host", MACHINE, "--openflow-port", str(OPENFLOW_PORT),
            "--rest-host", MACHINE, "--rest-port", str(REST_PORT),
            "--replica-policy", self.settings.replica_policy, "--path-policy", self.settings.path_policy,
            "--placement-policy", self.settings.placement_policy,
            "--placement-measurements", self.settings.placement_measurements,
            "--poll-interval-seconds", str(self.settings.poll_interval_seconds),
            "--hosts-file", str(self.emulation.hosts_file),
            *self._coflow_options(),
        ]))

    @property
    def _ranks_flows(self) -> bool:
        return self.settings.coflows is not None and POLICIES.get(Kind.COFLOW, self.settings.coflows).ranks_flows

    @property
    def _slices(self) -> str:
        """Of ports between switches, where coflows have any."""
        return "priorities" if self._ranks_flows else "mincof"

    @property
    def _has_classes_at_hosts(self) -> bool:
        return self.settings.host_agents is not None and self.settings.coflows is not None

    def _coflow_options(self) -> list[str]:
        policy = self.settings.coflows
        if policy is None:
            return []
        keeps = self.settings.host_agents is not None and policy == RATES_AT_HOSTS
        return ["--queues", self._slices, "--coflow-policy", policy, "--coflow-host", MACHINE,
                *(["--coflow-rates", "hosts"] if keeps else []),
                *(["--trust-dscp"] if self._has_classes_at_hosts else []),
                "--coflow-key-file", str(host_agents.key_file(self._coflow_keys))]

    def environment(self, host: str = host_agents.ALL) -> dict[str, str]:
        """What programs on the host with that address, or on any, need in their environment for their transfers to be
        coflows."""
        if not self.settings.coflows:
            return {}
        return {ADDRESS_VARIABLE: MACHINE, KEY_FILE_VARIABLE: str(host_agents.key_file(self._coflow_keys, host))}

    @property
    def _coflow_keys(self) -> Path:
        return self.settings.directory / COFLOW_KEYS

    @property
    def operator(self) -> str:
        """The directory of the identity with which commands talk to it; empty if it has none."""
        return str(identities.of_operator(self.settings.directory)) if self.settings.identity else ""

    @property
    def controller(self) -> str:
        """The URL of its REST interface."""
        return SECURE_CONTROLLER_URL if self.settings.identity else CONTROLLER_URL

    def session(self) -> requests.Session:
        """For requests to the controller."""
        return session(self.controller)

    @property
    def nameserver(self) -> str:
        """The addresses of the nameservers, with commas between them."""
        return ",".join(self._nameserver_addresses)

    @property
    def _nameserver_of_mounts(self) -> str:
        """Where several nameservers own the namespace, the switches take requests to them."""
        return f"{ANY_OWNER}:{SLOTS_PORT}" if self._owner_hosts else self.nameserver

    @property
    def addresses(self) -> str:
        """Of all that commands connect to with an identity."""
        return f"{self.nameserver},{REST}"

    @property
    def _nameserver_addresses(self) -> list[str]:
        return [f"{host.management_ip}:{NAMESERVER_PORT}" for host in self._owner_hosts] or [
            f"{MACHINE}:{NAMESERVER_PORT + index}" for index in range(self.settings.nameservers)]

    @property
    def _owner_hosts(self) -> list[Host]:
        """The hosts with a nameserver that owns a part of the namespace."""
        return [self.settings.fabric.host(name) for name in self._spread(self.settings.metadata_servers)]

    @property
    def _etcd_members(self) -> list[EtcdMember]:
        return [EtcdMember(ETCD_CLIENT_PORT + index, ETCD_PEER_PORT + index,
                           ETCD_METRICS_PORT + index if self.settings.identity else 0)
                for index in range(len(etcd_names(self.settings.nameservers)))]

    def _nameservers(self, *first: str) -> list[Command]:
        options = [*first, "--replication", str(self.settings.replication),
                   "--chunk-size", str(self.settings.chunk_size_bytes), "--controller", self.controller,
                   "--deletion-grace", str(self.settings.deletion_grace_seconds),
                   *durability_options(self.settings.model_dump(include={"fsync", "min_replicas"}))]
        if self._owner_hosts:
            options.append("--shared")
        commands = nameserver_commands(self.settings.directory, self._nameserver_addresses, options, MACHINE,
                                       self._etcd_members)
        for number, host in enumerate(self._owner_hosts):
            steered = ["--slots-at", f"0.0.0.0:{SLOTS_PORT}", "--host", host.ip]
            commands[number] = replace(commands[number], argv=[*commands[number].argv, *steered],
                                       prefix=self._inside(host.name))
        return [with_identity(self.processes, command) for command in commands]

    def _dataserver(self, name: str) -> Command:
        host = self.settings.fabric.host(name)
        # also on the management network, over which an experiment stores its files
        return with_identity(self.processes, Command(f"dataserver-{name}", [
            program("speedwell-dataserver"), "--id", name,
            "--listen", f"0.0.0.0:{DATASERVER_PORT}", "--advertise", host.ip,
            "--other-host", host.management_ip,
            "--rack", host.rack, "--pod", host.pod, "--nameserver", self.nameserver, "--controller", self.controller,
            *directory_options(self.settings.directory / "data" / name, self.settings.directories_per_server),
        ], prefix=self._inside(name), env=self.environment(host.ip)), name)

    @property
    def metadata_hosts(self) -> list[str]:
        """The hosts with a metadata store."""
        return self._spread(self.settings.metadata_stores)

    def _spread(self, number: int) -> list[str]:
        """So many hosts, the first of each rack before the second ones."""
        racks: dict[str, list[str]] = {}
        for host in self.settings.fabric.hosts:
            racks.setdefault(self.settings.fabric.edge_switch_of(host).name, []).append(host.name)
        turns = [name for turn in zip_longest(*racks.values()) for name in turn if name is not None]
        return turns[:number]

    def _metadata_store(self, name: str) -> Command:
        return with_identity(self.processes, Command(f"metadata-{name}", [
            program("speedwell-metadata-store"), "--controller", self.controller,
            "--host", self.settings.fabric.host(name).ip,
            "--store", f"leveldb:{self.settings.directory / 'metadata' / name}",
        ], prefix=self._inside(name)), name)

    def _turns(self) -> Command:
        return with_identity(self.processes, host_agents.scheduler(
            self.settings.directory, self.network, MACHINE, self.controller,
            "--policy", str(self.settings.host_agents)))

    def _agent(self, name: str) -> Command:
        shown = local_metrics.identity_of(self.processes)   # to who reads metrics; it has a key for all else
        return with_identity(self.processes, host_agents.agent(
            self.settings.directory, self.network, name, MACHINE, self._inside(name),
            self._slices if self._has_classes_at_hosts else "priorities"),
            shown.name if shown else None)

    def _mount(self, name: str, mountpoint: Path) -> Command:
        address = self.settings.fabric.host(name).ip
        return with_identity(self.processes, Command(f"mount-{name}", [
            program("speedwell-mount"), str(mountpoint), "--foreground", "--allow-other",
            "--nameserver", self._nameserver_of_mounts, "--controller", self.controller, "--local-host", address,
        ], prefix=self._inside(name), env=self.environment(address)))

    def _inside(self, name: str) -> Sequence[str]:
        return in_namespace(self.emulation.host_pid(name), ())

    def _make_mountpoint(self, mountpoint: Path) -> None:
        missing = [path for path in (mountpoint, *mountpoint.parents) if not path.exists()]
        mountpoint.mkdir(parents=True, exist_ok=True)
        self._made_directories += missing

    def _remove_data(self) -> None:
        for directory in sorted(self._made_directories, reverse=True):   # children before their parents
            with contextlib.suppress(OSError):   # somebody put files there: theirs to remove
                directory.rmdir()
        number = self.settings.nameservers
        (self.settings.directory / local_metrics.TARGETS_FILE).unlink(missing_ok=True)
        for part in ("data", "metadata", identities.FOLDER, COFLOW_KEYS, host_agents.KEYS,
                     *nameserver_names(number), *etcd_names(number)):
            shutil.rmtree(self.settings.directory / part, ignore_errors=True)


def run_on_host(pid: int, argv: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a program inside the network namespace of the emulated host whose process id is `pid`."""
    return subprocess.Popen(in_namespace(pid, argv), **options)
