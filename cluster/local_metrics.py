"""Where the processes of an installation answer Prometheus, and the file that tells it so.

    DIRECTORY/metrics-targets.json    for Prometheus' file_sd_configs
"""

import json
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from speedwell.cluster import current
from speedwell.cluster.identities import FOLDER
from speedwell.cluster.nameservers import etcd_names, free_ports
from speedwell.cluster.processes import Command, Processes
from speedwell.cluster.state_files import STATE_MODE
from speedwell.cluster.supervision import Supervision
from speedwell.fs import durable
from speedwell.fs.addresses import bracketed, parse_address
from speedwell.fs.identity import files
from speedwell.fs.metrics import is_loopback

TARGETS_FILE = "metrics-targets.json"
SUPERVISOR = "supervisor"


def addresses(recorded: Mapping[str, str], names: Sequence[str], running: Sequence[str], host: str) -> dict[str, str]:
    """HOST:PORT by process. One that had an address keeps it, unless it does not run and somebody has its port."""
    kept = {name: recorded[name] for name in names
            if name in recorded and (name in running or is_free(recorded[name]))}
    missing = [name for name in names if name not in kept]
    return kept | {name: f"{bracketed(host)}:{port}"
                   for name, port in zip(missing, free_ports(host, len(missing)), strict=True)}


def with_metrics(processes: Processes, command: Command) -> Command:
    """The command of a process that also answers Prometheus, if the installation's do."""
    address = processes.settings.get("metrics", {}).get(command.name)
    return replace(command, argv=[*command.argv, "--metrics", address]) if address else command


def write_targets(processes: Processes, others: Mapping[str, str]) -> None:
    """Tell Prometheus where to ask; nothing if the installation's processes do not answer. `others` always do."""
    known = processes.settings.get("metrics")
    if known:
        own = identity_of(processes)
        targets = [{"targets": [address], "labels": {"process": name} | (
                    {} if own is None or is_loopback(address) else {"__scheme__": "https"})}
                   for name, address in (known | others).items()]
        durable.replace(processes.directory / TARGETS_FILE, (json.dumps(targets, indent=2) + "\n").encode(),
                        STATE_MODE)


def serve(processes: Processes, supervision: Supervision) -> None:
    """Answer for the supervisor, if the installation's processes do. Raises InvalidArgument as `fs.metrics.serve`."""
    if address := processes.settings.get("metrics", {}).get(SUPERVISOR):
        from speedwell.cluster.supervisor_metrics import SupervisorMetrics  # takes 10 MiB
        from speedwell.fs import metrics

        metrics.serve(address, [SupervisorMetrics(supervision)], identity_of(processes))


def identity_of(processes: Processes) -> Path | None:
    """What this machine's supervisor shows, which has none of its own; None if the installation has no identity."""
    settings = processes.settings
    is_secured = settings.get("identity") or settings.get("kind") == current.MACHINE
    return files.any_identity(processes.directory / FOLDER) if is_secured else None


def of_etcd(host: str, settings: Mapping[str, Any]) -> dict[str, str]:
    """Members of etcd answer where they serve clients, or with TLS on a port of its own."""
    return {name: f"{host}:{ports[2] if len(ports) > 2 else ports[0]}"
            for name, ports in zip(etcd_names(settings["nameservers"]), settings["etcd_ports"], strict=True)}


def is_free(address: str) -> bool:
    """Whether a server could listen at HOST:PORT."""
    host, port = parse_address(address, "address")
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True
