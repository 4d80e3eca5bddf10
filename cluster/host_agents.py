"""The host agents of an installation on a fabric, the scheduler that gives them their turns, and their keys.

    DIRECTORY/agent-keys/    one file for each agent, and the scheduler's, of which they are made, for root alone
"""

from __future__ import annotations

import math
import os
import secrets
import shutil
from collections.abc import Callable, Sequence
from operator import attrgetter
from pathlib import Path

import requests
from prometheus_client.parser import text_string_to_metric_families

from speedwell.cluster.controller_client import session
from speedwell.cluster.errors import NotRunning
from speedwell.cluster.local_commands import LOOPBACK
from speedwell.cluster.processes import Command, program
from speedwell.cluster.switched import ALL, KEYS, METRICS_PORT, PORT, key_file
from speedwell.cluster.switched import TIMESLICES as SCHEDULER
from speedwell.controller.policy.network.traffic_classes import MINCOF_QUEUES
from speedwell.fs import durable
from speedwell.host_agent.class_shares import WHOLE_PERCENT
from speedwell.topo.emulation.settings import Settings
from speedwell.topo.fabric import Fabric
from speedwell.topo.fabric.addresses import KEY_NETWORK, SLOT_NETWORK

__all__ = ["ALL", "KEYS", "METRICS_PORT", "PORT", "SCHEDULER", "agent", "key_file", "make_keys", "scheduler",
           "slice_ms", "turns"]

PROCESS_BYTES = 30 << 20
"""Proportional set size of an agent with its guardian."""
ANSWER_SECONDS = 2.0
HOSTS_OF_PROCESSOR = 4
_FRAMES = 10
"""Of the slowest host's link in a slice; shorter slices lose much of it to what no longer fits."""
_LEAST_MS, _MOST_MS = 10, 1000


def make_keys(place: Path, fabric: Fabric, of_host: Callable[[bytes, str], bytes]) -> None:
    """New ones, one for all and one `of_host` for each address: nobody of an earlier run is believed."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(mode=0o700)
    key = secrets.token_hex(32).encode()
    durable.replace_all([(key_file(place), key + b"\n"),
                       *((key_file(place, host.ip), of_host(key, host.ip) + b"\n") for host in fabric.hosts)])


def slice_ms(fabric: Fabric) -> int:
    slowest_bps = min(fabric.ports(host.name)[0].capacity_bps for host in fabric.hosts)
    frames_ms = _FRAMES * Settings().fabric_mtu * 8 / slowest_bps * 1000
    return min(max(_LEAST_MS, math.ceil(frames_ms)), _MOST_MS)


def scheduler(directory: Path, fabric: Fabric, host: str, controller: str, *options: str) -> Command:
    return Command(SCHEDULER, [
        program("speedwell-timeslices"), "--controller", controller, "--listen", f"{host}:{PORT}",
        "--metrics", f"{LOOPBACK}:{METRICS_PORT}", "--key-file", str(key_file(directory / KEYS)),
        "--slice-ms", str(slice_ms(fabric)), *realtime(fabric), *options])


def realtime(fabric: Fabric) -> list[str]:
    """Slices are held closer with it. Where many hosts share this machine's processors, all else on it waits for
    agents then, and what turns give is lost again."""
    return ["--realtime"] if len(fabric.hosts) <= HOSTS_OF_PROCESSOR * (os.cpu_count() or 1) else []


def shares(slices: str) -> str:
    """What agents are told of the classes that ports between switches have with these `slices`."""
    queues = sorted(MINCOF_QUEUES, key=attrgetter("number")) if slices == "mincof" else ()
    return ",".join(str(round(each.share * WHOLE_PERCENT)) for each in queues)


def agent(directory: Path, fabric: Fabric, name: str, scheduler_host: str, prefix: Sequence[str],
          slices: str) -> Command:
    address = fabric.host(name).ip
    return Command(f"agent-{name}", [
        program("speedwell-host-agent"), "--address", address, "--scheduler", f"{scheduler_host}:{PORT}",
        "--key-file", str(key_file(directory / KEYS, address)), "--first", str(KEY_NETWORK),
        "--first", str(SLOT_NETWORK), *realtime(fabric), "--shares", shares(slices)], prefix=prefix)


def turns(metrics_url: str) -> dict[str, int]:
    """Of each agent that its scheduler hears, by address: for how many destinations it has turns now. Raises
    NotRunning if the scheduler does not answer."""
    try:
        answer = session(metrics_url).get(metrics_url, timeout=ANSWER_SECONDS)
        answer.raise_for_status()
    except requests.RequestException as error:
        raise NotRunning(f"the scheduler of turns does not answer at {metrics_url}: {error}") from None
    return {sample.labels["agent"]: int(sample.value) for family in text_string_to_metric_families(answer.text)
            for sample in family.samples if sample.name == "speedwell_timeslices_destinations"}
