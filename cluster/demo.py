"""The demonstration: five tasks on an emulated fabric, without the five systems and with them.

`scripts/demo` runs it. It builds a cluster twice, and each time writes a large file through one mount and reads it
through another, copies many small files, has hosts send to one at once, and reads the large file while the link of
the nearest replica is saturated.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

from speedwell.cluster.commands.up import MOUNT_ROOT
from speedwell.cluster.controller_client import session
from speedwell.cluster.errors import ClusterError, InvalidSetting
from speedwell.cluster.fabric import run_on_host
from speedwell.cluster.fabric_settings import FabricSettings, read_settings, with_all_systems
from speedwell.cluster.machine import switch_cpu_seconds
from speedwell.cluster.supervisor import down, up
from speedwell.cluster.tables import Table
from speedwell.fs import command_line, units
from speedwell.fs.client import Client
from speedwell.topo.emulation.processes import in_namespace
from speedwell.topo.fabric import Fabric, three_tier
from speedwell.topo.waiting import wait_for

LARGE_FILE_BYTES = 16 << 20
HOST_BPS = 80e6
OVERSUBSCRIPTION = {"edge": 2.0, "aggregation": 1.0}   # every link then has the rate of a host's
COMPETING_FLOWS = 2
WITHOUT = {"replica_policy": "nearest", "path_policy": "ecmp", "placement_policy": "rack-aware"}
SMALL_FILES, WRITERS = 1_000, 8
INCAST_MIB, PINGS, PING_SECONDS = 4, 100, 0.02
IPERF_PORT = 5201
CONGESTED_SECONDS = 3.0                 # three polls of the controller


@dataclass(frozen=True)
class Stage:
    """Who plays which part in the congested read."""

    reader: str
    nearest: str
    sink: str
    edge_switch: str


@click.command()
@click.option("--keep", is_flag=True, help="Leave the cluster up and say what to try.")
@click.option("--small-files", type=click.IntRange(1, 100_000), default=SMALL_FILES, show_default=True,
              help="How many small files to copy in.")
@click.option("--runs", type=click.IntRange(1, 20), default=1, show_default=True,
              help="Congested reads each time; the table shows the medians.")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path),
              help="Also write the results here.")
def command(keep: bool, small_files: int, runs: int, json_file: Path | None) -> None:
    """Show Speedwell at work: the same five tasks without its five systems and with them."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=140)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        results = demonstrate(console, small_files, runs, keep)
    except KeyboardInterrupt:
        raise command_line.Interrupted from None
    if json_file:
        json_file.write_text(json.dumps(results, indent=2) + "\n")


def main() -> None:
    """Entry of `scripts/demo`."""
    sys.exit(command_line.run(command, "demo"))


def demonstrate(console: Console, small_files: int, runs: int, keep: bool) -> dict[str, Any]:
    """Run the whole demonstration; returns what was measured, `without` and `with` the systems. The second cluster is
    stopped unless `keep`."""
    fabric = three_tier(pods=2, racks_per_pod=2, hosts_per_rack=4, host_bps=HOST_BPS,
                        oversubscription=OVERSUBSCRIPTION)
    first, second = fabric.hosts[0].name, fabric.hosts[-1].name
    mounts = {first: MOUNT_ROOT / first, second: MOUNT_ROOT / second}
    results: dict[str, Any] = {}
    for name, chosen in (("without", WITHOUT), ("with", with_all_systems(fabric))):
        settings = read_settings(fabric=fabric, mounts=mounts, machine=True, **chosen)
        with ExitStack() as cleanup:
            with _step(console, f"{name} the five systems: {fabric.name} of {len(fabric.switches)} switches and "
                                f"{len(fabric.hosts)} hosts at {HOST_BPS / 1e6:g} Mbit/s") as status:
                cluster = up(settings, status)
            cleanup.callback(_stop, console)
            console.print(f"  watch it in a browser: {cluster['controller']}/", highlight=False)
            results[name] = _tasks(console, settings, cluster, small_files, runs)
            if name == "with":
                _show(console, results)
                if keep:
                    cleanup.pop_all()
                    _say_what_to_try(console, cluster)
    console.print(f"  the page: {cluster['controller']}/, as long as the installation runs"
                  + ("" if keep else " (`scripts/demo --keep` leaves it up)"), highlight=False)
    return results


# ---------------------------------------------------------------------- steps


def _tasks(console: Console, settings: FabricSettings, cluster: dict[str, Any], small_files: int,
           runs: int) -> dict[str, Any]:
    """Seconds that each task takes, the mean delay of a ping beside the incast, and the congested read."""
    fabric, (mount, other) = settings.fabric, settings.mounts.values()
    _fill_with_real_files(_large_source())
    write_seconds = _timed(console, f"write {units.size(LARGE_FILE_BYTES)}, three replicas",
                           lambda: _copy(_large_source(), mount / "large"))
    read_seconds = _timed(console, "read it at another mount", lambda: _compare(_large_source(), other / "large"))
    small_seconds = _timed(console, f"write {small_files:,} small files, and list them",
                           lambda: _small_files(mount / "small", other / "small", small_files))
    pings: list[float] = []
    senders = len({host.rack for host in fabric.hosts})
    incast_seconds = _timed(console, f"{senders} hosts send {INCAST_MIB} MiB each to one at once",
                            lambda: pings.append(_incast(fabric, cluster)))
    congested = _congested_reads(console, settings, cluster, runs)
    return {"write_seconds": write_seconds, "read_seconds": read_seconds, "small_files_seconds": small_seconds,
            "incast_seconds": incast_seconds, "incast_ping_seconds": pings[0],
            "congested_read_seconds": congested["seconds"], "congested_read": congested}


def _timed(console: Console, text: str, task: Callable[[], None]) -> float:
    with _step(console, text):
        begin = time.monotonic()
        task()
        return time.monotonic() - begin


def _copy(source: Path, target: Path) -> None:
    _require(subprocess.run(["cp", source, target], check=False).returncode == 0, f"cp to {target} failed")


def _compare(source: Path, copy: Path) -> None:
    if subprocess.run(["cmp", "-s", source, copy], check=False).returncode:
        raise ClusterError(f"{copy} differs from {source}")


def _small_files(directory: Path, other: Path, count: int) -> None:
    directory.mkdir()
    with ThreadPoolExecutor(WRITERS) as writers:
        list(writers.map(lambda number: (directory / f"{number}").write_text(f"{number}\n"), range(count)))
    _require(len([*other.iterdir()]) == count, f"{other} lists other files than {directory} was given")


def _incast(fabric: Fabric, cluster: dict[str, Any]) -> float:
    """A host of each rack sends to one of the last. Returns the mean delay of a ping to it meanwhile, in seconds."""
    hosts, sink = cluster["hosts"], fabric.hosts[-1]
    senders = list({host.rack: host.name for host in fabric.hosts if host is not sink}.values())
    address = hosts[sink.name]["ip"]
    quiet: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with ExitStack() as cleanup:
        sending = []
        for port in range(IPERF_PORT + 1, IPERF_PORT + 1 + len(senders)):
            server = run_on_host(hosts[sink.name]["pid"], ["iperf3", "-s", "-1", "-p", str(port)], **quiet)
            cleanup.callback(server.wait)
            cleanup.callback(server.terminate)
            _require(wait_for(lambda port=port: _listens(hosts[sink.name]["pid"], port), 5.0),  # type: ignore[misc]
                     f"iperf3 did not start to listen on {sink.name}")
        for port, sender in enumerate(senders, IPERF_PORT + 1):
            sending.append(run_on_host(hosts[sender]["pid"], [
                "iperf3", "-c", address, "-p", str(port), "-n", f"{INCAST_MIB}M", "-C", "cubic"], **quiet))
            cleanup.callback(sending[-1].wait)
            cleanup.callback(sending[-1].terminate)
        pinged = subprocess.run(
            in_namespace(hosts[fabric.hosts[0].name]["pid"], [
                "ping", "-q", "-i", str(PING_SECONDS), "-c", str(PINGS), address]),
            capture_output=True, text=True, check=False)
        _require(all(process.wait() == 0 for process in sending), f"a sender to {sink.name} failed")
    found = re.search(r"= [\d.]+/([\d.]+)/", pinged.stdout)
    _require(found is not None, f"no ping reached {sink.name}")
    assert found is not None
    return float(found[1]) / 1e3


def _congested_reads(console: Console, settings: FabricSettings, cluster: dict[str, Any],
                     runs: int) -> dict[str, Any]:
    stage = _cast(settings.fabric, cluster)
    with _competing_traffic(cluster, stage):
        with _step(console, f"{COMPETING_FLOWS} competing TCP flows {stage.nearest} → {stage.sink} saturate "
                            f"the link {stage.nearest} - {stage.edge_switch}"):
            _wait_until_measured(settings.fabric, cluster, stage)
        reads = [_read(console, settings, cluster, stage.reader) for _ in range(runs)]
    return {"reader": stage.reader, "nearest": stage.nearest,
            **sorted(reads, key=lambda read: float(read["seconds"]))[len(reads) // 2],
            "all_seconds": [round(read["seconds"], 3) for read in reads]}


def _cast(fabric: Fabric, cluster: dict[str, Any]) -> Stage:
    """Choose a reader with exactly one replica in its rack, so that "nearest" has no choice."""
    with Client(cluster["nameserver"]) as client:
        replicas = {replica.dataserver_id for replica in client.lookup("/large").replicas}
    for nearest in sorted(replicas):
        rack = fabric.host(nearest).rack
        others = [host.name for host in fabric.hosts if host.rack == rack and host.name != nearest]
        if not replicas & set(others):
            return Stage(others[0], nearest, others[1], fabric.edge_switch_of(nearest).name)
    raise ClusterError(f"no rack holds exactly one replica of the large file: {', '.join(sorted(replicas))}")


@contextmanager
def _competing_traffic(cluster: dict[str, Any], stage: Stage) -> Iterator[None]:
    hosts = cluster["hosts"]
    sink = hosts[stage.sink]["ip"]
    commands = [(stage.sink, ["iperf3", "-s", "-B", sink, "-p", str(IPERF_PORT)]),
                (stage.nearest, ["iperf3", "-c", sink, "-p", str(IPERF_PORT), "-P", str(COMPETING_FLOWS),
                                 "-C", "cubic", "-t", "86400", "--connect-timeout", "5000"])]
    with ExitStack() as cleanup:
        for host, argv in commands:
            process = run_on_host(hosts[host]["pid"], argv, stdin=subprocess.DEVNULL,
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            cleanup.callback(process.wait)
            cleanup.callback(process.terminate)
            if host == stage.sink:
                listening = wait_for(lambda: _listens(hosts[stage.sink]["pid"], IPERF_PORT), 5.0)
                _require(listening, f"iperf3 did not start to listen on {stage.sink}")
        yield


def _listens(pid: int, port: int) -> bool:
    sockets = subprocess.run(in_namespace(pid, ["ss", "-Hltn", f"sport = :{port}"]),
                             capture_output=True, text=True, check=False)
    return bool(sockets.stdout.strip())


def _wait_until_measured(fabric: Fabric, cluster: dict[str, Any], stage: Stage) -> None:
    """Wait until the controller's own counters have shown the congestion for some polls on end."""
    source = fabric.host(stage.nearest).ip
    begin = time.monotonic()

    def congested() -> bool:
        nonlocal begin
        links = session(cluster["controller"]).get(f"{cluster['controller']}/v1/links", timeout=2.0).json()["links"]
        if not any(link["source"] == source and (link["utilisation"] or 0) > 0.8 for link in links):
            begin = time.monotonic()
        return time.monotonic() - begin > CONGESTED_SECONDS

    _require(wait_for(congested, 30.0), f"the controller does not see the congestion at {stage.nearest}")


def _read(console: Console, settings: FabricSettings, cluster: dict[str, Any], reader: str) -> dict[str, Any]:
    host = cluster["hosts"][reader]
    argv = [sys.executable, "-m", "speedwell.evaluation.timed_read", "/large", "--nameserver", cluster["nameserver"],
            "--controller", cluster["controller"], "--local-host", host["ip"],
            "--replica-policy", settings.replica_policy, "--path-policy", settings.path_policy]
    before, begin = switch_cpu_seconds(), time.monotonic()
    with (_bar(console, f"read on {reader} meanwhile", DownloadColumn(binary_units=True)) as (progress, task),
          run_on_host(host["pid"], argv, stdout=subprocess.PIPE) as process):
        progress.update(task, total=LARGE_FILE_BYTES)
        result: dict[str, Any] = {}
        assert process.stdout is not None
        for line in process.stdout:
            result = json.loads(line)
            progress.update(task, completed=result["bytes"])
    cpu_share = (switch_cpu_seconds() - before) / (time.monotonic() - begin) / (os.cpu_count() or 1)
    _require(process.returncode == 0 and result.get("bytes") == LARGE_FILE_BYTES,
             f"the read failed after {result.get('bytes', 0)} bytes")
    _require(result["chosen_by"] == "controller", "the read was not steered by the controller")
    return {**result, "switch_cpu_share": cpu_share}


def _show(console: Console, results: dict[str, Any]) -> None:
    _table(results).show()
    for name, measured in results.items():
        read = measured["congested_read"]
        for source in read["sources"]:
            way = " → ".join([source["replica"], *source["path"][1:-1], read["reader"]])
            console.print(f"congested read {name} them: {source['bytes'] / LARGE_FILE_BYTES:.0%} over {way}",
                          highlight=False)
        if read["replica_failures"]:
            console.print(f"congested read {name} them: {read['replica_failures']} replicas could not be reached, "
                          "and others took over", highlight=False)
    share = max(measured["congested_read"]["switch_cpu_share"] for measured in results.values())
    console.print(f"ovs-vswitchd used at most {share:.0%} of the machine's processors during a read.")


def _table(results: dict[str, Any]) -> Table:
    """A row for each task."""
    rows = []
    for name, text in (("write_seconds", "replicated write, s"), ("read_seconds", "read, s"),
                       ("small_files_seconds", "small files, s"), ("incast_seconds", "incast, s"),
                       ("incast_ping_seconds", "a ping beside it, s"),
                       ("congested_read_seconds", "read past a congested link, s")):
        without, with_them = results["without"][name], results["with"][name]
        rows.append((text, f"{without:.3g}", f"{with_them:.3g}", f"{with_them / without:.2f}"))
    columns = ("task", "without", "with", "ratio")
    return Table("The same tasks without the five systems (nearest replica, ECMP, rack-aware) and with them", columns,
                 rows, columns[1:])


def _say_what_to_try(console: Console, cluster: dict[str, Any]) -> None:
    first = next(iter(cluster["mounts"]))
    url, identity = cluster["controller"], Path(cluster["identity"])
    curl = f"curl -sS --fail-with-body --cacert {identity}/authority.pem --cert {identity}/identity.pem"
    console.print("\n[bold]The cluster is up.[/bold] Try:", highlight=False)
    for command, meaning in (
        *((f"ls -l {mount}", f"the filesystem as {host} sees it") for host, mount in cluster["mounts"].items()),
        (f"{url}/", f"in a browser: links, reads and all else, live; token: {identity.parent}/tokens/reader"),
        (f"{curl} {url}/", "all that the controller tells: /v1/network, /v1/links, /v1/reads ..."),
        (f"speedwell enter {first}", "a shell on that host"),
        ("speedwell status", "processes, dataservers, capacity"),
        ("speedwell down", "stop it all"),
    ):
        path = command.replace("speedwell ", f"{Path(sys.executable).parent}/speedwell ", 1) \
            if command.startswith("speedwell ") else command
        console.print(f"  {path}  [dim]{meaning}[/dim]", highlight=False, soft_wrap=True)
    console.print(f"  logs: {cluster['directory']}", highlight=False)


# -------------------------------------------------------------------- helpers


def _stop(console: Console) -> None:
    _large_source().unlink(missing_ok=True)
    with _step(console, "stopped: no process, switch, namespace or mount left"):
        down()


def _large_source() -> Path:
    return Path(tempfile.gettempdir()) / f"speedwell-demo-{os.getpid()}.large"


def _fill_with_real_files(target: Path) -> None:
    """The first LARGE_FILE_BYTES of this machine's own shared libraries, one after the other."""
    with target.open("wb") as out:
        for library in sorted(Path("/usr/lib").rglob("*.so*")):
            if library.is_file() and not library.is_symlink():
                out.write(library.read_bytes()[:LARGE_FILE_BYTES - out.tell()])
            if out.tell() == LARGE_FILE_BYTES:
                return
    raise InvalidSetting(f"/usr/lib holds less than {LARGE_FILE_BYTES} bytes of shared libraries")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ClusterError(message)


@contextmanager
def _step(console: Console, text: str) -> Iterator[Any]:
    """A spinner while the step runs, then one line with its time. Yields a function that shows details."""
    begin = time.monotonic()
    with console.status(text) as status:
        def show(detail: str) -> None:
            status.update(f"{text} [dim]({detail})[/dim]")
            if not console.is_terminal:
                console.print(f"    {detail}", highlight=False)
        yield show
    console.print(f"[green]✓[/green] {text} [dim]{time.monotonic() - begin:.1f} s[/dim]", highlight=False)


@contextmanager
def _bar(console: Console, text: str, column: Any) -> Iterator[tuple[Progress, Any]]:
    """A progress bar that stays on the screen, followed by a tick when the step has worked."""
    with Progress(TextColumn("  {task.description}"), BarColumn(), column, TimeElapsedColumn(),
                  console=console) as progress:
        yield progress, progress.add_task(text, total=None)


if __name__ == "__main__":
    main()
