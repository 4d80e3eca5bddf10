"""The demonstration: real files through a mount on an emulated fabric, and one congested read, steered and not.

`scripts/demo` runs it. It builds a cluster, copies a directory tree and a large file in through one mount,
checks every byte through another, saturates the link of the replica nearest to a reader and reads the
large file twice: from the nearest replica over an ECMP path, and as Mayflower chooses.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from speedwell.cluster.commands.up import MOUNT_ROOT
from speedwell.cluster.controller_client import session
from speedwell.cluster.errors import ClusterError, InvalidSetting
from speedwell.cluster.fabric import run_on_host
from speedwell.cluster.fabric_settings import read_settings
from speedwell.cluster.machine import switch_cpu_seconds
from speedwell.cluster.supervisor import down, up
from speedwell.cluster.tables import Table
from speedwell.fs import command_line, units
from speedwell.fs.client import Client
from speedwell.topo.emulation.processes import in_namespace
from speedwell.topo.fabric import Fabric, three_tier
from speedwell.topo.waiting import wait_for

TREE = Path("/usr/lib/python3.11/encodings")
LARGE_FILE_BYTES = 16 << 20
HOST_BPS = 80e6
OVERSUBSCRIPTION = {"edge": 2.0, "aggregation": 1.0}   # every link then has the rate of a host's
COMPETING_FLOWS = 2
POLICIES = (("nearest", "ecmp"), ("mayflower", "mayflower"))
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
@click.option("--tree", type=click.Path(exists=True, file_okay=False, path_type=Path), default=TREE,
              show_default=True, help="Directory tree to copy in.")
@click.option("--runs", type=click.IntRange(1, 20), default=1, show_default=True,
              help="Congested reads with each policy; the table shows the medians.")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path),
              help="Also write the results here.")
def command(keep: bool, tree: Path, runs: int, json_file: Path | None) -> None:
    """Show Speedwell at work: a mount on an emulated network whose controller steers every read."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=140)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        results = demonstrate(console, tree, runs, keep)
    except KeyboardInterrupt:
        raise command_line.Interrupted from None
    if json_file:
        json_file.write_text(json.dumps(results, indent=2) + "\n")


def main() -> None:
    """Entry of `scripts/demo`."""
    sys.exit(command_line.run(command, "demo"))


def demonstrate(console: Console, tree: Path, runs: int, keep: bool) -> list[dict[str, Any]]:
    """Run the whole demonstration; returns one row a policy. The cluster is stopped unless `keep`."""
    fabric = three_tier(pods=2, racks_per_pod=2, hosts_per_rack=4, host_bps=HOST_BPS,
                        oversubscription=OVERSUBSCRIPTION)
    first, second = fabric.hosts[0].name, fabric.hosts[-1].name
    mounts = {first: MOUNT_ROOT / first, second: MOUNT_ROOT / second}
    settings = read_settings(fabric=fabric, mounts=mounts, machine=True)
    with ExitStack() as cleanup:
        with _step(console, f"cluster on {fabric.name}: {len(fabric.switches)} switches, "
                            f"{len(fabric.hosts)} hosts at {HOST_BPS / 1e6:g} Mbit/s") as status:
            cluster = up(settings, status)
        cleanup.callback(_stop, console)
        console.print(f"  watch it in a browser: {cluster['controller']}/", highlight=False)
        _copy_in(console, tree, mounts[first])
        _verify(console, tree, mounts[second])
        results = _congested_reads(console, fabric, cluster, runs)
        _show(console, results)
        if keep:
            cleanup.pop_all()
            _say_what_to_try(console, cluster)
    return results


# ---------------------------------------------------------------------- steps


def _copy_in(console: Console, tree: Path, mount: Path) -> None:
    total = sum(len(names) + len(files) for _, names, files in os.walk(tree)) + 1
    with _bar(console, f"cp -r {tree} {mount}", MofNCompleteColumn()) as (progress, task):
        progress.update(task, total=total)
        with subprocess.Popen(["cp", "-rv", str(tree), str(mount)], stdout=subprocess.PIPE) as copy:
            assert copy.stdout is not None
            for _ in copy.stdout:
                progress.advance(task)
        _require(copy.returncode == 0, f"cp -r into {mount} failed with exit code {copy.returncode}")
    _fill_with_real_files(_large_source())
    with _bar(console, f"cp large file {mount}/large", DownloadColumn(binary_units=True)) as (progress, task):
        progress.update(task, total=LARGE_FILE_BYTES)
        target = mount / "large"
        with subprocess.Popen(["cp", _large_source(), target]) as copy:
            while copy.poll() is None:
                time.sleep(0.1)
                progress.update(task, completed=target.stat().st_size if target.exists() else 0)
        _require(copy.returncode == 0, f"cp of the large file failed with exit code {copy.returncode}")
        progress.update(task, completed=LARGE_FILE_BYTES)


def _verify(console: Console, tree: Path, mount: Path) -> None:
    """Compare every byte with the other mount's view."""
    pairs = [(path, mount / tree.name / path.relative_to(tree)) for path in sorted(tree.rglob("*"))
             if path.is_file()]
    pairs.append((_large_source(), mount / "large"))
    total = sum(source.stat().st_size for source, _ in pairs)
    with _bar(console, f"compare {len(pairs)} files through {mount}",
              DownloadColumn(binary_units=True)) as (progress, task):
        progress.update(task, total=total)
        for source, copy in pairs:
            with source.open("rb") as wanted, copy.open("rb") as found:
                while True:
                    block = wanted.read(1 << 20)
                    if found.read(max(1, len(block))) != block:
                        raise ClusterError(f"{copy} differs from {source}")
                    progress.advance(task, len(block))
                    if not block:
                        break


def _congested_reads(console: Console, fabric: Fabric, cluster: dict[str, Any], runs: int) -> list[dict[str, Any]]:
    stage = _cast(fabric, cluster)
    results = []
    with _competing_traffic(cluster, stage):
        with _step(console, f"{COMPETING_FLOWS} competing TCP flows {stage.nearest} → {stage.sink} saturate "
                            f"the link {stage.nearest} - {stage.edge_switch}"):
            _wait_until_measured(fabric, cluster, stage)
        measured: dict[tuple[str, str], list[dict[str, Any]]] = {policy: [] for policy in POLICIES}
        for _ in range(runs):
            for policy in POLICIES:
                measured[policy].append(_read(console, cluster, stage.reader, *policy))
    for policy in POLICIES:
        reads = sorted(measured[policy], key=lambda read: float(read["seconds"]))
        results.append({"policy": "+".join(policy), "reader": stage.reader, **reads[len(reads) // 2],
                        "all_seconds": [round(read["seconds"], 3) for read in measured[policy]]})
    slowest = results[0]["seconds"]
    return [{**row, "ratio": row["seconds"] / slowest} for row in results]


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
                listening = wait_for(lambda: _listens(hosts[stage.sink]["pid"]), 5.0)
                _require(listening, f"iperf3 did not start to listen on {stage.sink}")
        yield


def _listens(pid: int) -> bool:
    sockets = subprocess.run(in_namespace(pid, ["ss", "-Hltn", f"sport = :{IPERF_PORT}"]),
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


def _read(console: Console, cluster: dict[str, Any], reader: str, replica_policy: str,
          path_policy: str) -> dict[str, Any]:
    host = cluster["hosts"][reader]
    name = f"{replica_policy} + {path_policy}"
    argv = [sys.executable, "-m", "speedwell.evaluation.timed_read", "/large", "--nameserver", cluster["nameserver"],
            "--controller", cluster["controller"], "--local-host", host["ip"],
            "--replica-policy", replica_policy, "--path-policy", path_policy]
    before, begin = switch_cpu_seconds(), time.monotonic()
    with (_bar(console, f"read on {reader}: {name}", DownloadColumn(binary_units=True)) as (progress, task),
          run_on_host(host["pid"], argv, stdout=subprocess.PIPE) as process):
        progress.update(task, total=LARGE_FILE_BYTES)
        result: dict[str, Any] = {}
        assert process.stdout is not None
        for line in process.stdout:
            result = json.loads(line)
            progress.update(task, completed=result["bytes"])
    cpu_share = (switch_cpu_seconds() - before) / (time.monotonic() - begin) / (os.cpu_count() or 1)
    _require(process.returncode == 0 and result.get("bytes") == LARGE_FILE_BYTES,
             f"the read with {name} failed after {result.get('bytes', 0)} bytes")
    _require(result["chosen_by"] == "controller", f"the read with {name} was not steered by the controller")
    return {**result, "switch_cpu_share": cpu_share}


def _show(console: Console, results: list[dict[str, Any]]) -> None:
    _table(results).show()
    share = max(row["switch_cpu_share"] for row in results)
    console.print(f"ovs-vswitchd used at most {share:.0%} of the machine's processors during a read.")


def _table(results: list[dict[str, Any]]) -> Table:
    """A row for each replica that served a read, as a read in parts has a path for each of them."""
    columns = ("replica + path policy", "replica", "path", "share", "seconds", "MiB/s", "ratio")
    rows = []
    for row in results:
        figures = [f"{row['seconds']:.2f}", f"{row['bytes'] / row['seconds'] / (1 << 20):.2f}", f"{row['ratio']:.2f}"]
        for source in row["sources"]:
            rows.append((row["policy"].replace("+", " + "), source["replica"],
                         " → ".join([source["replica"], *source["path"][1:-1], row["reader"]]),
                         f"{source['bytes'] / row['bytes']:.0%}", *figures))
            figures = [""] * len(figures)
    return Table(f"The large file ({units.size(LARGE_FILE_BYTES)}), read on {results[0]['reader']} while the way to "
                 "the nearest replica is congested", columns, rows, columns[3:])


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
