"""Plays coflows on an emulated fabric under one policy of the controller, and tells how long each took."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import requests

from speedwell.cluster import host_agents
from speedwell.cluster.errors import ClusterError, StartFailed
from speedwell.cluster.fabric import CONTROLLER_URL, MACHINE, OPENFLOW_PORT, REST_PORT
from speedwell.cluster.machine import busy_seconds
from speedwell.cluster.processes import Command, Processes, program
from speedwell.controller.policy.coflows.coflow import Coflow
from speedwell.evaluation.neighbours import introduce
from speedwell.host_agent.channel import agent_key
from speedwell.host_agent.class_shares import shares_of
from speedwell.topo.emulation import Emulation
from speedwell.topo.emulation.discovery import wait_for_hosts, wait_for_network
from speedwell.topo.emulation.processes import in_namespace
from speedwell.topo.fabric import Fabric

AGENT_PORT = 7400
READY_SECONDS = 30.0
CONTROLLER_SECONDS = 60.0
"""How long a controller may take to start: the first one compiles its policy."""
LEAST_BURST_BYTES = 128 << 10
"""Scaled-down flows are short, and at their low rates TCP stands still below a meter with less."""
MTU_BYTES = 1500
"""As on the paper's testbed. With frames of 9,000 bytes and some twenty flows on a link most have one packet on the
way, or none, and wait for timeouts: wide coflows took twice as long."""
QUEUE_PACKETS, BEST_EFFORT_PACKETS = 360, 12
"""Of a switch's port: as many as are on a link at once in the paper's workload. Of its best-effort queue: as many
bytes as two frames of 9,000."""
HOST_QUEUE_PACKETS = 6000
"""A host sends up to a hundred flows at once; TCP keeps few packets of each in its own queue."""
RATES_INTERVAL_SECONDS, REST_SECONDS = 0.1, 2.0

Progress = Callable[[str], None]


class ReplayFailed(ClusterError):
    """A host could not send, or a coflow did not end in time."""


@dataclass(frozen=True)
class Replayed:
    """What came of a replay: seconds from arrival to the last byte by coflow, what of a processor each switch
    took, and the part of the machine that was busy. Where these are near 1, they are what was measured."""

    seconds: dict[str, float]
    switch_cpu: dict[str, float]
    machine_busy: float
    congestion_control: str
    """TCP's at the hosts."""


@dataclass(frozen=True)
class ReplaySettings:
    """How a replay is run. `policy` is one that the controller offers for coflows, or None: nobody schedules. Coflows
    in `unreported` are background traffic. `slowdown` stretches the time between arrivals. `paced`: rates are kept by
    the hosts, not by meters. `hosts_enforce`: host agents keep the policy's queues on hosts' links."""

    fabric: Fabric
    directory: Path
    policy: str | None = "mincof"
    queues: str = "mincof"
    threshold_bytes: float = 2_500_000.0
    unreported: Collection[str] = ()
    slowdown: float = 1.0
    paced: bool = False
    hosts_enforce: bool = False
    timeout_seconds: float = 600.0
    """How long after the last arrival the last coflow may end."""


def replay(coflows: Sequence[Coflow], settings: ReplaySettings,
           progress: Progress = lambda message: None) -> Replayed:
    """Start a fabric, play all coflows (hosts by name), and stop it. Raises ClusterError or EmulationError."""
    queues = settings.queues if settings.policy is not None else "none"
    with ExitStack() as stack:
        emulation = stack.enter_context(Emulation(
            settings.fabric, directory=settings.directory / "switches", controller=(MACHINE, OPENFLOW_PORT),
            queues=queues != "none", mtu=MTU_BYTES, queue_packets=QUEUE_PACKETS,
            best_effort_packets=BEST_EFFORT_PACKETS, host_queue_packets=HOST_QUEUE_PACKETS,
            host_queues=shares_of(host_agents.shares(queues)) if settings.hosts_enforce else ()))
        processes = Processes(settings.directory)
        stack.callback(processes.stop)
        key_file = settings.directory / "coflow.key"
        key_file.write_text("only this machine reaches the management network")
        processes.start_together([_controller(settings, key_file, queues)])
        wait_for_network(CONTROLLER_URL, settings.fabric)
        emulation.announce_hosts()
        wait_for_hosts(CONTROLLER_URL, settings.fabric)
        introduce(settings.fabric, emulation.host_pid)
        if settings.hosts_enforce:
            processes.start_together(_host_agents(settings, emulation))
        reports = [MACHINE, str(key_file)] if settings.policy is not None else []
        agents = stack.enter_context(Agents(emulation, settings.directory, reports))
        progress(f"playing {len(coflows)} coflows under {settings.policy or 'no schedule'}")
        if settings.paced:
            stack.enter_context(Rates(agents))
        switches, busy, begin = emulation.switch_cpu_seconds(), busy_seconds(), time.monotonic()
        seconds = _play(coflows, agents, settings, progress)
        elapsed = time.monotonic() - begin
        shares = {name: (after - switches[name]) / elapsed for name, after in emulation.switch_cpu_seconds().items()}
        return Replayed(seconds, shares, (busy_seconds() - busy) / elapsed / (os.cpu_count() or 1),
                        emulation.congestion_control)


def _controller(settings: ReplaySettings, key_file: Path, queues: str) -> Command:
    config = settings.directory / "controller.toml"
    lines = [f'queues = "{queues}"', *(["trust_dscp = true"] if settings.hosts_enforce else [])]
    if settings.policy is not None:
        lines += [f'coflow_policy = "{settings.policy}"', f'coflow_key_file = "{key_file}"',
                  f'coflow_host = "{MACHINE}"', f"coflow_threshold_bytes = {float(settings.threshold_bytes)}",
                  f'coflow_rates = "{"hosts" if settings.paced else "meters"}"',
                  f"meter_min_burst_bytes = {LEAST_BURST_BYTES}"]
    config.write_text("\n".join(lines) + "\n")
    return Command("controller", [
        program("speedwell-controller"), "--insecure=fabric", "--config", str(config), "--openflow-host", MACHINE,
        "--openflow-port", str(OPENFLOW_PORT), "--rest-host", MACHINE, "--rest-port", str(REST_PORT)],
        ready_timeout_seconds=CONTROLLER_SECONDS)


def _host_agents(settings: ReplaySettings, emulation: Emulation) -> list[Command]:
    """They queue flows by class; nobody waits for a turn."""
    directory, fabric = settings.directory, settings.fabric
    host_agents.make_keys(directory / host_agents.KEYS, fabric, agent_key)
    return [host_agents.scheduler(directory, fabric, MACHINE, CONTROLLER_URL, "--no-turns", "--slice-ms", "1000",
                                  "--insecure=fabric"),
            *(host_agents.agent(directory, fabric, host.name, MACHINE,
                                in_namespace(emulation.host_pid(host.name), ()), settings.queues)
              for host in fabric.hosts)]


def _play(coflows: Sequence[Coflow], agents: Agents, settings: ReplaySettings,
          progress: Progress) -> dict[str, float]:
    begin = time.monotonic()
    arrived: dict[str, float] = {}
    for number, coflow in enumerate(sorted(coflows, key=lambda coflow: coflow.arrived_at)):
        due = begin + coflow.arrived_at * settings.slowdown
        time.sleep(max(0.0, due - time.monotonic()))
        arrived[str(coflow.id)] = time.monotonic()
        reported = str(coflow.id) not in settings.unreported
        agents.begin(coflow, number, reported, settings.paced and reported)
        progress(f"{number + 1} of {len(coflows)} coflows have arrived, {len(agents.ended)} have ended")
    agents.wait(len(coflows), settings.timeout_seconds)
    return {name: agents.ended[name] - at for name, at in arrived.items()}


class Rates:
    """Tells the hosts the rates of their flows for as long as it is entered."""

    def __init__(self, agents: Agents) -> None:
        self._agents = agents
        self._told: dict[tuple[str, int, str], float] = {}
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._tell_for_ever, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *unused: object) -> None:
        self._left.set()
        self._thread.join()

    def _tell_for_ever(self) -> None:
        with requests.Session() as session:
            while not self._left.wait(RATES_INTERVAL_SECONDS):
                try:
                    self._tell(session)
                except (requests.RequestException, OSError, KeyError):
                    continue    # a coflow ended meanwhile, or an agent: who waits for it says so

    def _tell(self, session: requests.Session) -> None:
        def pages(path: str) -> Iterator[Any]:
            offset: int | None = 0
            while offset is not None:
                page = session.get(CONTROLLER_URL + path, params={"offset": offset}, timeout=REST_SECONDS).json()
                yield page
                offset = page.get("next_offset")

        live = [coflow["id"] for page in pages("/v1/coflows") for coflow in page["coflows"]]
        flows = {(flow["source"], flow["source_port"], flow["destination"]): flow
                 for coflow in live for page in pages(f"/v1/coflows/{coflow}") for flow in page.get("members", ())}
        # Whoever had a rate and has none any more is free: its coflow lost its schedule.
        rates = {key: math.inf if flow["rate_bps"] is None else flow["rate_bps"] for key, flow in flows.items()
                 if flow["rate_bps"] is not None or key in self._told}
        self._agents.set_rates(flow | {"rate_bps": rates[key]} for key, flow in flows.items()
                               if key in rates and self._told.get(key) != rates[key])
        self._told = rates


class Agents:
    """The hosts' agents. `ended` has the time at which each coflow's last flow arrived."""

    def __init__(self, emulation: Emulation, directory: Path, reports: Sequence[str]) -> None:
        """`reports` are the scheduler's address and key file, or nothing. Raises StartFailed."""
        self._fabric = emulation.fabric
        self._heard: SimpleQueue[dict[str, Any]] = SimpleQueue()
        self._left: dict[str, int] = {}
        self._coflow_of: dict[str, str] = {}
        self.ended: dict[str, float] = {}
        self._failure: str | None = None
        self._changed = threading.Condition()
        self._telling = threading.Lock()
        self._name_of = {host.ip: host.name for host in self._fabric.hosts}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        try:
            for host in self._fabric.hosts:
                with (directory / f"agent-{host.name}.log").open("ab") as log:
                    self._processes[host.name] = subprocess.Popen(
                        in_namespace(emulation.host_pid(host.name), [
                            sys.executable, "-m", "speedwell.evaluation.coflow_replay.agent", str(AGENT_PORT),
                            *reports]),
                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True)
                threading.Thread(target=self._hear, args=(host.name,), daemon=True).start()
            for _ in self._fabric.hosts:
                if "ready" not in self._heard.get(timeout=READY_SECONDS):
                    raise StartFailed("an agent of a host did not start; see the logs of the agents")
        except Empty:
            self.close()
            raise StartFailed(f"the hosts' agents did not start within {READY_SECONDS:g} s") from None
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Agents:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def close(self) -> None:
        """End all agents."""
        for process in self._processes.values():
            process.kill()
            process.wait()

    def begin(self, coflow: Coflow, number: int, reported: bool, paced: bool) -> None:
        """Have the hosts send a coflow's flows now, `paced` at the rates that they are told. Hosts are named as in
        the fabric."""
        by_source: dict[str, list[tuple[str, int]]] = {}
        for flow in coflow.flows:
            target = self._fabric.host(flow.destination).ip
            by_source.setdefault(flow.source, []).append((target, max(1, round(flow.remaining_bytes))))
        name = str(coflow.id)
        with self._changed:
            self._left[name] = len(by_source)
        for source, flows in by_source.items():
            order = f"{number}/{source}"
            self._coflow_of[order] = name
            self._tell(source, {"id": order, "coflow": f"{number + 1:032x}", "source": self._fabric.host(source).ip,
                                "flows": flows, "reported": reported, "paced": paced})

    def set_rates(self, flows: Iterable[Mapping[str, Any]]) -> None:
        """Tell the hosts the rates of flows, which are as `/v1/coflows` has them."""
        by_source: dict[str, list[tuple[int, str, float]]] = {}
        for flow in flows:
            by_source.setdefault(self._name_of[flow["source"]], []).append(
                (flow["source_port"], flow["destination"], flow["rate_bps"]))
        for source, rates in by_source.items():
            self._tell(source, {"rates": rates})

    def _tell(self, host: str, order: dict[str, Any]) -> None:
        stdin = self._processes[host].stdin
        assert stdin is not None
        with self._telling:
            stdin.write(json.dumps(order).encode() + b"\n")
            stdin.flush()

    def wait(self, coflows: int, timeout_seconds: float) -> None:
        """Wait until so many have ended. Raises ReplayFailed."""
        with self._changed:
            done = self._changed.wait_for(lambda: self._failure or len(self.ended) >= coflows, timeout_seconds)
        if self._failure:
            raise ReplayFailed(self._failure)
        if not done:
            raise ReplayFailed(f"{coflows - len(self.ended)} coflows have not ended {timeout_seconds:g} s after the "
                               "last arrived")

    def _hear(self, host: str) -> None:
        stdout = self._processes[host].stdout
        assert stdout is not None
        for line in stdout:
            answer = json.loads(line)
            if "ready" in answer:
                self._heard.put(answer)
                continue
            with self._changed:
                if "error" in answer:
                    self._failure = f"{host} could not send: {answer['error']}"
                else:
                    name = self._coflow_of[answer["id"]]
                    self._left[name] -= 1
                    if not self._left[name]:
                        self.ended[name] = answer["ended"]
                self._changed.notify_all()
