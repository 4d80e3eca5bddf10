"""HDFS on the hosts of a running emulated fabric, as a system to replay traces against.

A NameNode on the machine itself and, on every host, a DataNode and a client that reads: Hadoop's own code, one Java
process a host. The replica is the first in the NameNode's order (host, rack, pod; at random among equals). With the
path policy `mayflower` the controller chooses the path from there; with `ecmp` the data takes the default paths.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from speedwell.cluster.errors import ClusterError
from speedwell.evaluation.hdfs import configuration
from speedwell.evaluation.hdfs.daemons import Daemons
from speedwell.evaluation.hdfs.libraries import HADOOP_VERSION, Libraries
from speedwell.evaluation.papers.reads import Method
from speedwell.evaluation.replay.agents import ReaderAgents
from speedwell.evaluation.replay.scale import StoredFile
from speedwell.evaluation.replay.system import Progress, ReadReport
from speedwell.topo.emulation.processes import in_namespace
from speedwell.topo.fabric import Fabric

NAMENODE_HEAP_MEGABYTES = 256
HOST_HEAP_MEGABYTES = 96
STARTING_AT_ONCE = 4 * (os.cpu_count() or 1)
STORING_AT_ONCE = 8
TIMEOUT_SECONDS = 120.0
GREETING_FILE, GREETING = "/greeting", b"Good morning.\n"


class Hdfs:
    """HDFS on the cluster whose description is given. `close` is complete after any failure of `start`."""

    def __init__(self, cluster: dict[str, Any], fabric: Fabric, libraries: Libraries, directory: Path) -> None:
        self._cluster = cluster
        self._fabric = fabric
        self._libraries = libraries
        self.directory = directory.absolute()
        self._daemons = Daemons(self.directory / "logs")
        self._agents: ReaderAgents | None = None
        self._stored: set[StoredFile] = set()
        self._data_address = {host.name: f"{host.management_ip}:{configuration.DATA_PORT}" for host in fabric.hosts}
        self._name = {host.ip: host.name for host in fabric.hosts}

    def start(self, progress: Progress) -> Self:
        """Start the NameNode and the hosts' processes; returns when all hosts have read a file.

        Raises StartFailed or another ClusterError; call `close` then.
        """
        self._remove_data()
        self._write_configuration()
        progress("starting HDFS's NameNode")
        self._daemons.start([("namenode", self._java("NameNodeProcess", "namenode", NAMENODE_HEAP_MEGABYTES))],
                            at_once=1, timeout_seconds=TIMEOUT_SECONDS)
        self._start_hosts(progress)
        return self

    def details(self) -> dict[str, Any]:
        """See `SystemUnderTest`."""
        return {"hadoop": HADOOP_VERSION}

    def prepare(self, files: Sequence[StoredFile], progress: Progress) -> None:
        """See `SystemUnderTest`. The primary's host writes, to the DataNodes of all the file's hosts."""
        missing = [file for file in files if file not in self._stored]
        with tempfile.TemporaryDirectory() as scratch:
            for first in range(0, len(missing), STORING_AT_ONCE):
                together = missing[first: first + STORING_AT_ONCE]
                for file, report in [(file, self._store(file, Path(scratch))) for file in together]:
                    self._check(file, report.result(TIMEOUT_SECONDS))
                    self._stored.add(file)
                progress(f"storing files in HDFS: {first + len(together)} of {len(missing)}")

    def read(self, host: str, file: StoredFile, method: Method) -> Future[ReadReport]:
        """See `SystemUnderTest`."""
        assert self._agents is not None
        return self._agents.read(host, file.path, file.size_bytes, steered=method.path_policy == "mayflower")

    def settle(self) -> None:
        """Nothing in HDFS remembers a read."""

    def abandon(self) -> None:
        """See `SystemUnderTest`."""
        self._ask_all(lambda number: None, abandon=True)

    def close(self) -> None:
        """See `SystemUnderTest`. Logs stay, stored files go."""
        with ExitStack() as steps:       # runs all of them, the last pushed first
            steps.callback(self._remove_data)
            steps.callback(self._daemons.stop)
            if self._agents is not None:
                steps.callback(self._agents.close)

    # ------------------------------------------------------------------ private

    def _write_configuration(self) -> None:
        directory = self.directory
        directory.mkdir(parents=True, exist_ok=True)
        common = configuration.common(directory)
        configuration.write_hosts(directory / "hosts", self._fabric)
        configuration.write_topology_script(directory / "topology.sh", self._fabric)
        configuration.write_site(directory / "namenode.xml", common | configuration.namenode(directory))
        for host in self._fabric.hosts:
            configuration.write_site(directory / f"{host.name}.xml",
                                     common | configuration.host(host, directory, self._cluster["controller"]))

    def _java(self, main_class: str, site: str, heap_megabytes: int) -> list[str]:
        return self._libraries.command(main_class, [str(self.directory / f"{site}.xml")],
                                       heap_megabytes=heap_megabytes, hosts_file=self.directory / "hosts")

    def _start_hosts(self, progress: Progress) -> None:
        """Start the hosts' processes, a few at once, and let each read, which starts the whole of them."""
        commands = {name: in_namespace(host["pid"], self._java("Host", name, HOST_HEAP_MEGABYTES))
                    for name, host in self._cluster["hosts"].items()}
        self._agents = ReaderAgents([sys.executable, "-m", "speedwell.evaluation.hdfs.hosts"], {"commands": commands},
                                    self.directory / "logs" / "hosts.log")
        total = len(commands)
        self._ask_all(lambda number: progress(f"{number} of {total} DataNodes have started"))
        writer = self._fabric.hosts[0].name
        with tempfile.NamedTemporaryFile() as source:
            source.write(GREETING)
            source.flush()
            self._agents.read(writer, GREETING_FILE, len(GREETING), store=source.name,
                              replicas=[self._data_address[writer]]).result(TIMEOUT_SECONDS)
        progress("reading on every host")
        self._ask_all(lambda number: None, GREETING_FILE, len(GREETING), steered=True)

    def _ask_all(self, answered: Callable[[int], None], path: str = "", size_bytes: int = 0,
                 **options: Any) -> None:
        """Ask every host the same, STARTING_AT_ONCE at once; `answered` hears how many have answered."""
        assert self._agents is not None
        agents = self._agents
        hosts = [host.name for host in self._fabric.hosts]

        def ask(host: str) -> None:
            agents.read(host, path, size_bytes, **options).result(TIMEOUT_SECONDS)

        pool = ThreadPoolExecutor(STARTING_AT_ONCE)
        try:
            for number, answer in enumerate(as_completed([pool.submit(ask, host) for host in hosts]), 1):
                answer.result()
                answered(number)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)    # after Ctrl-C the answers never come

    def _store(self, file: StoredFile, scratch: Path) -> Future[ReadReport]:
        source = scratch / str(file.size_bytes)
        if not source.exists():
            source.write_bytes(os.urandom(file.size_bytes))
        assert self._agents is not None
        return self._agents.read(file.replicas[0], file.path, file.size_bytes, store=str(source),
                                 replicas=[self._data_address[host] for host in file.replicas])

    def _check(self, file: StoredFile, report: ReadReport) -> None:
        holders = {self._name.get(source, source) for source in report.sources}
        if holders != set(file.replicas) or report.size_bytes != file.size_bytes:
            raise ClusterError(f"HDFS has stored {report.size_bytes} bytes of {file.path} on "
                               f"{', '.join(sorted(holders))}, not {file.size_bytes} on {', '.join(file.replicas)}")

    def _remove_data(self) -> None:
        for part in ("namenode", "data", "temporary"):
            shutil.rmtree(self.directory / part, ignore_errors=True)
