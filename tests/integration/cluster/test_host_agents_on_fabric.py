"""`up --all`: host agents and their scheduler come up, are told of, come back, and go; and all five systems carry one
mixed load and leave nothing of it behind."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import re
import signal
import stat
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests

from speedwell.cluster import host_agents
from speedwell.cluster.controller_client import ask
from speedwell.cluster.errors import NotRunning
from speedwell.cluster.fabric_settings import read_settings, with_all_systems
from speedwell.cluster.local_commands import LOOPBACK
from speedwell.cluster.processes import Processes
from speedwell.cluster.supervisor import down, up
from speedwell.fs.client.names.metadata import MetadataClient
from speedwell.fs.identity import files
from speedwell.fs.limits import LEAST_ADVISED_BYTES
from speedwell.topo.emulation.processes import in_namespace
from speedwell.topo.fabric import spine_leaf
from tests.chromium import browser
from tests.integration.cluster.executable import SCRIPTS, Speedwell
from tests.integration.cluster.prometheus import prometheus, require_as_prometheus_wants, values
from tests.logs import TRACEBACK
from tests.machine_state import left_on_machine
from tests.waiting import wait_until

pytestmark = [pytest.mark.root, pytest.mark.timeout(600)]

FABRIC = spine_leaf(leaves=2, spines=2, hosts_per_leaf=2, host_bps=20e6)
SECONDS = 90.0
"""How long anything may take where the machine is busy elsewhere."""
NAMES = [f"agent-{name}" for name in (*(host.name for host in FABRIC.hosts), "machine")]


class Installation:
    def __init__(self, folder: Path) -> None:
        self.directory = folder / "cluster"
        self.speedwell = Speedwell(folder / "state")
        self.description = up(read_settings(
            fabric=FABRIC, directory=self.directory, machine=True, replication=2, metrics=True,
            mounts={host.name: folder / host.name for host in FABRIC.hosts[::2]}, **with_all_systems(FABRIC)))

    def entering(self, host: str, *command: str) -> list[str]:
        return in_namespace(self.description["hosts"][host]["pid"], command)

    def on(self, host: str, *command: str) -> str:
        return subprocess.run(self.entering(host, *command), check=True, capture_output=True, text=True, timeout=90,
                              env={**os.environ, **self.description["environment"]}).stdout

    @contextlib.contextmanager
    def running(self, host: str, *command: str) -> Iterator[subprocess.Popen[bytes]]:
        process = subprocess.Popen(self.entering(host, *command), stdout=subprocess.DEVNULL)
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def turns(self) -> dict[str, int]:
        """As the scheduler tells them."""
        with contextlib.suppress(NotRunning):
            return host_agents.turns(f"http://{LOOPBACK}:{host_agents.METRICS_PORT}/metrics")
        return {}

    def states(self) -> dict[str, str]:
        """As `speedwell status` tells them."""
        told: dict[str, Any] = json.loads(self.speedwell.run("status", "--json", "--installation",
                                                              str(self.directory)).stdout)
        return {each["name"]: told["roles"].get(each["address"], "") for each in told["processes"] if each["alive"]}

    def ask(self, path: str) -> dict[str, Any]:
        answer: dict[str, Any] = ask(self.description["controller"], path)
        return answer

    def traces(self) -> dict[str, object]:
        """What a load leaves in controller, switches and hosts while it runs."""
        found: dict[str, object] = {
            name: self.ask(f"/v1/{path}")[name] for path, name in (
                ("reads", "reads"), ("flows", "flows"), ("coflows", "coflows"), ("placements", "placements"),
                ("timeslices/pairs", "pairs"), ("meters", "meters"))}
        found["entries"] = self.ask("/v1/entries")["entries"] | {"timeslices": "its table stays, once it is there"}
        for switch in FABRIC.switches:
            place = f"unix:{self.directory}/switches/{switch.name}"
            commands = (["ovs-ofctl", "-O", "OpenFlow13", "dump-meters", f"{place}/br0.mgmt"],
                        ["ovs-vsctl", f"--db={place}/db.sock", "--columns=other_config", "list", "queue"])
            found[switch.name] = [subprocess.run(command, check=True, capture_output=True, text=True,
                                                 timeout=60).stdout for command in commands]
            found[f"{switch.name}, pinned"] = self.pinned_packets(switch.name)
        for host in FABRIC.hosts:
            found[host.name] = [self.on(host.name, "iptables", "-t", "mangle", "-S"),
                                self.on(host.name, "tc", "class", "show", "dev", "eth0"), self.turns().get(host.ip)]
        return found

    def wait_until_as(self, before: dict[str, object]) -> None:
        """Until there are the same traces as `before`."""
        after: dict[str, object] = {}

        def is_as_before() -> bool:
            after.update(self.traces())
            return after == before

        wait_until(is_as_before, 60, lambda: str({name: (before[name], after[name]) for name in after
                                                  if after[name] != before[name]}), 0.5)

    def log_lines(self, *words: bytes) -> list[str]:
        return [f"{log.name}: {line.decode(errors='replace')}" for log in self.directory.glob("logs/*.log")
                for line in log.read_bytes().splitlines() if any(word in line for word in words)]

    def pinned_packets(self, switch: str) -> dict[tuple[str, str], int]:
        """Of pairs that have an entry there."""
        place = f"unix:{self.directory}/switches/{switch}/br0.mgmt"
        entries = subprocess.run(["ovs-ofctl", "-O", "OpenFlow13", "dump-flows", place,
                                  "cookie=0x5750000000000000/0xffff000000000000"], check=True, capture_output=True,
                                 text=True, timeout=60).stdout
        found = re.findall(r"n_packets=(\d+).*nw_src=([\d.]+),nw_dst=([\d.]+)", entries)
        return {(source, destination): int(packets) for packets, source, destination in found}

    def wait_until_all_are_free(self) -> None:
        wait_until(lambda: sorted(self.turns().values()) == [0] * len(NAMES), SECONDS, lambda: str(self.turns()))

    def kill(self, name: str) -> None:
        record = Processes(self.directory).find(name)
        assert record is not None
        os.kill(record.pid, signal.SIGKILL)

        def is_ready_again() -> bool:
            now = Processes(self.directory).find(name)
            return now is not None and now.pid != record.pid and bool(now.address)

        wait_until(is_ready_again, SECONDS, f"{name} is not started again")


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    folder, before = tmp_path_factory.mktemp("agents"), left_on_machine()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPEEDWELL_STATE_DIRECTORY", str(folder / "state"))
        try:
            installation = Installation(folder)
            yield installation
        finally:
            with contextlib.suppress(NotRunning):
                down()
    assert left_on_machine() == before
    assert not list(installation.directory.rglob("*.key"))


def test_each_agent_has_a_key_of_its_own_that_only_root_reads(installation: Installation) -> None:
    keys = list(installation.directory.rglob("agent-keys/*.key"))
    assert len(keys) == len(NAMES) + 1
    assert {stat.S_IMODE(key.stat().st_mode) for key in keys} == {0o600}
    assert len({key.read_text() for key in keys}) == len(keys)


def test_status_shows_agents_their_state_and_the_scheduler(installation: Installation) -> None:
    installation.wait_until_all_are_free()
    states = installation.states()
    assert states[host_agents.SCHEDULER] == f"hears {len(NAMES)} agents"
    assert {name: states[name] for name in NAMES} == dict.fromkeys(NAMES, "free")


@contextlib.contextmanager
def all_sending_to_one(installation: Installation, first_port: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """All hosts to the last, until all have turns and longer."""
    *senders, receiver = FABRIC.hosts
    with contextlib.ExitStack() as stack:
        sending = []
        for number, sender in enumerate(senders, first_port):
            stack.enter_context(installation.running(receiver.name, "iperf3", "-s", "-p", str(number)))
            wait_until(lambda port=number: f":{port}" in installation.on(receiver.name, "ss", "-ltn"), SECONDS,
                       "iperf3 does not listen")
            sending.append(stack.enter_context(installation.running(
                sender.name, "iperf3", "-c", receiver.ip, "-p", str(number), "-t", "600")))
        yield sending


def test_the_page_shows_turns_who_leads_and_the_tree_of_keys_as_they_are(installation: Installation) -> None:
    installation.wait_until_all_are_free()
    token = (installation.directory / "identity/tokens/reader").read_text().strip()
    with browser() as page:
        page.ask("Security.setIgnoreCertificateErrors", ignore=True)
        page.open(f"{installation.description['controller']}/")
        page.until("document.querySelector('#login').open")
        page.value(f"document.querySelector('#login input').value = '{token}'")
        page.value("document.querySelector('#login button').click()")
        page.until("speedwell.model.frame")
        page.press("6")
        page.until("document.querySelector('#panel').innerText.includes('Dataservers: 4 of 4 alive')")
        assert f"{installation.description['nameserver']}\tleads" in page.text("#panel")
        page.press("5")
        page.until("document.querySelectorAll('#panel .leaf').length === 2")
        assert "spine0" in page.text("#panel") and "leaf1" in page.text("#panel")
        page.press("3")
        page.until("document.querySelector('#panel').innerText.includes('No link is contended')")
        *senders, receiver = FABRIC.hosts
        with all_sending_to_one(installation, 5501):
            rows = "[...document.querySelectorAll('#panel tbody tr')].map((row) => row.cells[0].innerText).sort()"
            wanted = sorted(f"{sender.name} \u2192 {receiver.name}" for sender in senders)
            wait_until(lambda: page.value(rows) == wanted, SECONDS, lambda: str(page.value(rows)))
            page.until("document.querySelector('#panel').innerText.includes('holds')")
            page.until("document.querySelector('#panel').innerText.includes('Mbit/s')")
        page.until("document.querySelector('#panel').innerText.includes('No link is contended')", SECONDS)
        before = page.value("speedwell.model.frame.health.uptime_seconds")
        installation.kill("controller")
        page.until(f"speedwell.model.frame?.health.uptime_seconds < {before}", SECONDS)
        page.until("document.querySelector('#panel').innerText.includes('No link is contended')", SECONDS)
        page.press("6")
        page.until("document.querySelector('#panel').innerText.includes('Dataservers: 4 of 4 alive')", SECONDS)


@pytest.mark.filterwarnings("ignore:Unverified HTTPS request")
def test_a_real_prometheus_hears_every_process(installation: Installation, tmp_path: Path) -> None:
    targets = json.loads((installation.directory / "metrics-targets.json").read_text())
    assert {target["labels"]["process"] for target in targets} == {
        "supervisor", *(record.name for record in Processes(installation.directory).records)} - {"controller"}
    shown = str(installation.directory / "identity" / "operator" / files.CERTIFICATE)
    for target in targets:
        url = f"{target['labels'].get('__scheme__', 'http')}://{target['targets'][0]}/metrics"
        require_as_prometheus_wants(requests.get(url, timeout=30, cert=shown, verify=False).content)
        if target["labels"]["process"].startswith(("dataserver-", "mount-", "metadata-")):
            assert url.startswith("https://") and requests.get(url, timeout=30, verify=False).status_code == 403
    with prometheus(tmp_path, installation.directory, ("speedwell-fabric", "speedwell-controller")) as url:
        wait_until(lambda: len(values(url, "up == 1", "instance")) == len(targets) + 1, SECONDS,
                   lambda: str(values(url, "up", "instance")))
        wait_until(lambda: values(url, "speedwell_process_up", "name").get("controller") == 1, SECONDS,
                   "the supervisor does not say that the controller runs")
        assert values(url, "speedwell_timeslices_agents", "process") == {"timeslices": len(NAMES)}
        victim = f"dataserver-{FABRIC.hosts[0].name}"
        installation.kill(victim)
        wait_until(lambda: values(url, "speedwell_process_restarts_total", "name").get(victim) == 1, SECONDS,
                   lambda: str(values(url, "speedwell_process_restarts_total", "name")))
        wait_until(lambda: len(values(url, "up == 1", "instance")) == len(targets) + 1, SECONDS,
                   lambda: f"it keeps its port: {values(url, 'up', 'instance')}")


def test_senders_to_one_host_get_turns_on_pinned_paths_whatever_dies_meanwhile(installation: Installation) -> None:
    installation.wait_until_all_are_free()
    *senders, receiver = FABRIC.hosts
    across = {(sender.ip, receiver.ip) for sender in senders if sender.rack != receiver.rack}

    def have_all_turns() -> bool:
        turns = installation.turns()
        return all(turns.get(sender.ip) == 1 for sender in senders)

    def are_all_pinned() -> bool:
        return across == {pair for pair, packets in installation.pinned_packets("leaf0").items() if packets > 10}

    with all_sending_to_one(installation, 5301) as sending:
        for name in ("", host_agents.SCHEDULER, "controller"):
            if name:
                installation.kill(name)
            wait_until(have_all_turns, SECONDS, lambda: str(installation.turns()))
            wait_until(are_all_pinned, SECONDS, lambda: str(installation.pinned_packets("leaf0")))
        assert [each.poll() for each in sending] == [None] * len(senders)
    installation.wait_until_all_are_free()
    wait_until(lambda: not installation.pinned_packets("leaf0"), SECONDS, "pairs stay pinned")


def test_an_agent_that_is_killed_comes_back(installation: Installation) -> None:
    installation.wait_until_all_are_free()
    installation.kill(NAMES[0])
    installation.wait_until_all_are_free()
    assert "SPEEDWELL-GATE" in installation.on(FABRIC.hosts[0].name, "iptables", "-t", "mangle", "-S")


@pytest.mark.full
def test_one_load_under_all_five_systems_is_served_and_leaves_nothing_behind(installation: Installation) -> None:
    status = installation.speedwell.ok("status", "--installation", installation.directory)
    assert "new large files by sinbad-plus" in status
    assert "with coflows by coflow-plus, turns by xco-plus, metadata on 2 stores" in status
    installation.wait_until_all_are_free()
    before = installation.traces()
    writer, reader = (Path(mountpoint) for mountpoint in installation.description["mounts"].values())
    source = installation.directory.parent / "source"
    source.write_bytes(os.urandom(LEAST_ADVISED_BYTES))
    *senders, receiver = FABRIC.hosts
    seen: set[str] = set()

    def has_seen_all() -> bool:
        seen.update(path for path in ("coflows", "reads") if installation.ask(f"/v1/{path}")[path])
        seen.update({"turns"} if any(installation.turns().values()) else ())
        return seen == {"coflows", "reads", "turns"}

    def speedwell_on(host: str, *command: str) -> str:
        return installation.on(host, str(SCRIPTS / "speedwell"), *command)

    def is_placed() -> bool:
        speedwell_on(FABRIC.hosts[0].name, "put", str(source), "/large")
        told = json.loads(installation.speedwell.ok("status", "--json", "--installation", installation.directory))
        return bool(told["statistics"]["placed_by_controller"].get("controller"))

    with contextlib.ExitStack() as stack, ThreadPoolExecutor() as beside:
        for number, sender in enumerate(senders, 5401):
            stack.enter_context(installation.running(receiver.name, "iperf3", "-s", "-1", "-p", str(number)))
            wait_until(lambda port=number: f":{port}" in installation.on(receiver.name, "ss", "-ltn"), SECONDS,
                       "iperf3 does not listen")
            stack.enter_context(installation.running(sender.name, "iperf3", "-c", receiver.ip, "-p", str(number),
                                                     "-t", "600"))
        placed = beside.submit(wait_until, is_placed, SECONDS, "the controller places nothing")
        for number in range(20):
            (writer / f"small-{number}").write_text(f"{number}")
        speedwell_on(writer.name, "metadata", "put", "key", "value")
        placed.result()
        assert [(reader / f"small-{number}").read_text() for number in range(20)] == [f"{n}" for n in range(20)]
        assert speedwell_on(reader.name, "metadata", "get", "key") == "value"
        with MetadataClient(installation.description["nameserver"]) as metadata:
            holders = {replica.dataserver_id for replica in metadata.lookup("/large").replicas}
        far = next(host.name for host in FABRIC.hosts if host.name not in holders)
        read = beside.submit(speedwell_on, far, "get", "/large", str(source.with_name("copy")))
        wait_until(has_seen_all, SECONDS, lambda: f"only {seen}")
        read.result()
        assert source.with_name("copy").read_bytes() == source.read_bytes()
    installation.wait_until_as(before)
    assert not installation.log_lines(TRACEBACK, b" ERROR ")


class Load:
    """Files written at one mount and read at the other, keys put and got, until told to stop. What was refused while
    something was dead counts for nothing; what was acknowledged has to be there."""

    def __init__(self, installation: Installation) -> None:
        self.writer, self.reader = (Path(mountpoint) for mountpoint in installation.description["mounts"].values())
        self._host = self.writer.name
        self._installation = installation
        self.stopped = threading.Event()
        self.files: dict[str, str] = {}
        """By name the sum of what was synced."""
        self.keys: set[str] = set()
        self.failed = 0

    def write(self, size_bytes: int, prefix: str) -> None:
        for number in itertools.count():
            if self.stopped.is_set():
                return
            name, content = f"{prefix}-{number}", os.urandom(size_bytes)
            try:
                with (self.writer / name).open("wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                self.files[name] = hashlib.sha256(content).hexdigest()
            except OSError:
                self.failed += 1

    def read(self) -> None:
        while not self.stopped.wait(0.2):
            for name, digest in list(self.files.items())[-3:]:
                with contextlib.suppress(OSError):
                    assert self._digest(name) == digest, name

    def put(self) -> None:
        for number in itertools.count():
            if self.stopped.wait(0.2):
                return
            with contextlib.suppress(subprocess.SubprocessError):
                self._installation.on(self._host, str(SCRIPTS / "speedwell"), "metadata", "put", f"k{number}",
                                      f"{number}")
                self.keys.add(f"{number}")

    def lost(self) -> list[str]:
        files = [name for name, digest in self.files.items() if self._digest(name) != digest]
        return files + [key for key in self.keys if self._installation.on(
            self.reader.name, str(SCRIPTS / "speedwell"), "metadata", "get", f"k{key}") != key]

    def _digest(self, name: str) -> str:
        return hashlib.sha256((self.reader / name).read_bytes()).hexdigest()


def received_bytes(installation: Installation, host: str) -> int:
    told = json.loads(installation.on(host, "ip", "-s", "-j", "link", "show", "eth0"))
    return int(told[0]["stats64"]["rx"]["bytes"])


def forwarder_pid(switch: str) -> int:
    """Of a switch of this fabric."""
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (entry / "cmdline").read_bytes().decode().split("\0")
            if command[0].endswith("ovs-vswitchd") and any(f"/{switch}/" in argument for argument in command):
                return int(entry.name)
    raise AssertionError(f"no ovs-vswitchd runs for {switch}")


@pytest.mark.full
@pytest.mark.timeout(1200)
def test_whatever_dies_under_one_load_nothing_acknowledged_is_lost_it_goes_on_and_leaves_nothing(
        installation: Installation) -> None:
    """A switch hangs and returns, as one that is dead is dead until `up`. How long it takes is printed, as the
    machine has its part in it (docs/together.md has the aim)."""
    installation.wait_until_all_are_free()
    before = installation.traces()
    receiver = FABRIC.hosts[-1].name
    load = Load(installation)

    def bps(seconds: float) -> float:
        begin, bytes_before = time.monotonic(), received_bytes(installation, receiver)
        time.sleep(seconds)
        received = received_bytes(installation, receiver) - bytes_before
        return 8 * received / (time.monotonic() - begin)

    def kill(name: str) -> None:
        record = Processes(installation.directory).find(name)
        assert record is not None
        os.kill(record.pid, signal.SIGKILL)

    def hang(pid: int) -> None:
        os.kill(pid, signal.SIGSTOP)

    nameserver = next(record.name for record in Processes(installation.directory).records
                      if record.name.startswith("nameserver"))
    switch = forwarder_pid("spine0")
    faults = {name: (lambda name=name: kill(name)) for name in (
        "controller", nameserver, f"metadata-{FABRIC.hosts[0].name}", NAMES[0], host_agents.SCHEDULER)}
    faults["spine0"] = lambda: hang(switch)
    recovered: dict[str, float] = {}
    with ThreadPoolExecutor() as beside, all_sending_to_one(installation, 5601):
        running = [beside.submit(load.write, LEAST_ADVISED_BYTES, "large"), beside.submit(load.write, 100, "small"),
                   beside.submit(load.read), beside.submit(load.put)]
        try:
            wait_until(lambda: len(load.files) > 5 and load.keys, SECONDS, "the load does not begin")
            for name, strike in faults.items():
                usual_bps = bps(5.0)
                strike()
                begin = time.monotonic()
                wait_until(lambda usual_bps=usual_bps: bps(0.5) >= 0.9 * usual_bps, SECONDS, f"{name}: no load again")
                recovered[name] = time.monotonic() - begin
                files = len(load.files)
                wait_until(lambda files=files: len(load.files) > files + 3, SECONDS, f"{name}: no file is written")
                os.kill(switch, signal.SIGCONT)
                wait_until(lambda: len(installation.turns()) == len(NAMES), SECONDS,
                           lambda: f"{name}: agents are missing: {installation.turns()}")  # noqa: B023
        finally:
            os.kill(switch, signal.SIGCONT)
            load.stopped.set()
        for each in running:
            each.result()
    print("back to 90 % after", {name: f"{seconds:.1f} s" for name, seconds in recovered.items()},
          f"{len(load.files)} files, {len(load.keys)} keys, {load.failed} writes refused")
    assert load.lost() == []
    for name in load.files:
        (load.writer / name).unlink()
    installation.wait_until_as(before)
