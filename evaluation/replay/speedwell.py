"""Speedwell on an emulated fabric as a system to replay traces against."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import requests

from speedwell.cluster.controller_client import session
from speedwell.cluster.errors import ClusterError
from speedwell.evaluation.papers.reads import Method
from speedwell.evaluation.replay.agents import ReaderAgents
from speedwell.evaluation.replay.scale import StoredFile
from speedwell.evaluation.replay.system import Progress, ReadReport
from speedwell.fs.client import Client
from speedwell.fs.errors import AlreadyExists, SpeedwellError
from speedwell.fs.paths import parent
from speedwell.fs.proto.speedwell_pb2 import Attributes
from speedwell.topo.waiting import wait_for

STORING_THREADS = 4
PUT_SECONDS = 30.0
BLOCK_BYTES = 1 << 20
QUIET_POLLS = 3
QUIET_TIMEOUT_SECONDS = 60.0
BUSY_LINK_SHARE = 0.02
"""What a quiet link may carry: the controller's probes."""


class Speedwell:
    """The cluster whose description is given. Reads go through the client library on the reading host."""

    def __init__(self, cluster: dict[str, Any], poll_interval_seconds: float) -> None:
        self._cluster = cluster
        self._poll_interval_seconds = poll_interval_seconds
        self._client = Client(cluster["nameserver"])
        self._session = session(cluster["controller"])
        self._management = {host["ip"]: host["management_ip"] for host in cluster["hosts"].values()}
        self._stored: set[StoredFile] = set()
        self._agents = self._start_agents()

    def details(self) -> dict[str, Any]:
        """See `SystemUnderTest`."""
        return {"system": "speedwell", "congestion_control": self._cluster["congestion_control"]}

    def prepare(self, files: Sequence[StoredFile], progress: Progress) -> None:
        """Store the files over the management network: the shaped one would take minutes."""
        missing = [file for file in files if file not in self._stored]
        for directory in dict.fromkeys(parent(file.path.encode()) for file in missing):
            self._make_directory(directory)
        done = 0
        lock = threading.Lock()

        def store(file: StoredFile) -> None:
            nonlocal done
            self._store(file)
            with lock:
                self._stored.add(file)
                done += 1
                progress(f"storing files: {done} of {len(missing)}")

        with ThreadPoolExecutor(STORING_THREADS) as pool:
            list(pool.map(store, missing))

    def read(self, host: str, file: StoredFile, method: Method) -> Future[ReadReport]:
        """See `SystemUnderTest`."""
        return self._agents.read(host, file.path, file.size_bytes, replica_policy=method.replica_policy,
                                 path_policy=method.path_policy, parts=method.parts)

    def write(self, host: str, path: str, size_bytes: int) -> Future[ReadReport]:
        """Start to write a new file on a host, over the fabric; returns at once. Its holders are the report's
        sources."""
        return self._agents.read(host, path, size_bytes, kind="write", replica_policy="nearest", path_policy="ecmp",
                                 parts=1)

    def remove(self, path: str) -> None:
        """Delete a file. Raises SpeedwellError."""
        self._client.remove(path)

    def flood(self, host: str, address: str, seconds: float, rate_bps: float) -> Future[ReadReport]:
        """Let a host send datagrams to an address where nobody listens; returns at once."""
        return self._agents.read(host, address, 0, kind="flood", seconds=seconds, rate_bps=rate_bps,
                                 replica_policy="nearest", path_policy="ecmp", parts=1)

    def send(self, host: str, address: str, size_bytes: int) -> Future[ReadReport]:
        """Let a host send bytes over TCP to another, of which nobody is told; returns at once."""
        return self._agents.read(host, address, size_bytes, kind="send", replica_policy="nearest", path_policy="ecmp",
                                 parts=1)

    def look_up(self, host: str, path: str) -> Future[ReadReport]:
        """Let a host ask for the record of a stored file, at the metadata server that the switches find where there
        are some, else at the nameserver; returns at once."""
        return self._agents.read(host, path, 0, kind="get" if self._cluster["metadata_stores"] else "lookup",
                                 replica_policy="nearest", path_policy="ecmp", parts=1)

    def put_records(self, host: str, files: Sequence[StoredFile]) -> None:
        """Have the metadata servers, if there are some, know the stored files. Raises ClusterError."""
        for file in files if self._cluster["metadata_stores"] else ():
            self._agents.read(host, file.path, 0, kind="put", replica_policy="nearest", path_policy="ecmp",
                              parts=1).result(PUT_SECONDS)

    def link_use(self) -> float:
        """The mean part of all links between switches that the controller measures as used."""
        parts = [link["utilisation"] or 0.0 for link in self._get("/v1/links")["links"]
                 if None not in (link["source_port"], link["destination_port"])]
        return sum(parts) / len(parts)

    def settle(self) -> None:
        """Wait until the controller knows of no read and its counters have shown idle links for some polls."""
        quiet_since = 0

        def quiet() -> bool:
            nonlocal quiet_since
            quiet_since = 0 if self._get("/v1/reads")["reads"] or self._busy_links() else quiet_since + 1
            return quiet_since >= QUIET_POLLS

        if not wait_for(quiet, QUIET_TIMEOUT_SECONDS, self._poll_interval_seconds):
            raise ClusterError(f"{QUIET_TIMEOUT_SECONDS:g} s after the last read the network is not quiet")

    def abandon(self) -> None:
        """End the reading processes with their reads, and start new ones."""
        self._agents.close()
        self._agents = self._start_agents()

    def close(self) -> None:
        """See `SystemUnderTest`."""
        self._agents.close()
        self._client.close()

    # ------------------------------------------------------------------ private

    def _start_agents(self) -> ReaderAgents:
        return ReaderAgents([sys.executable, "-m", "speedwell.evaluation.replay.speedwell_agents"], self._cluster,
                            Path(self._cluster["directory"]) / "logs" / "readers.log")

    def _make_directory(self, path: bytes) -> None:
        if path == b"/":
            return
        self._make_directory(parent(path))
        try:
            self._client.mkdir(path)
        except AlreadyExists:
            return

    def _store(self, file: StoredFile) -> None:
        try:
            attributes = self._client.create(file.path, exclusive=True, replicas=file.replicas)
            with self._client.open_append(file.path, self._over_management(attributes)) as appender:
                for offset in range(0, file.size_bytes, BLOCK_BYTES):
                    appender.write(content(file, offset, min(BLOCK_BYTES, file.size_bytes - offset)))
            stored = self._client.lookup(file.path, fresh=True)
        except SpeedwellError as error:
            raise ClusterError(f"cannot store {file.path}: {error}") from error
        holders = tuple(replica.dataserver_id for replica in stored.replicas)
        if holders != file.replicas or stored.size != file.size_bytes:
            raise ClusterError(f"{file.path} has {stored.size} bytes on {', '.join(holders)}, "
                               f"not {file.size_bytes} on {', '.join(file.replicas)}")

    def _over_management(self, attributes: Attributes) -> Attributes:
        """The same file, its replicas at their addresses on the management network."""
        copy = Attributes()
        copy.CopyFrom(attributes)
        for replica in copy.replicas:
            replica.host = self._management[replica.host]
        return copy

    def _busy_links(self) -> list[dict[str, Any]]:
        return [link for link in self._get("/v1/links")["links"] if (link["utilisation"] or 0) > BUSY_LINK_SHARE]

    def _get(self, target: str) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = self._session.get(self._cluster["controller"] + target, timeout=5.0).json()
        except (requests.RequestException, ValueError) as error:
            raise ClusterError(f"the controller at {self._cluster['controller']} does not answer") from error
        return answer


def content(file: StoredFile, offset: int, size_bytes: int) -> bytes:
    """Bytes of a file that tell which file and which place they are from."""
    line = f"{file.path} {offset}\n".encode()
    return (line * (size_bytes // len(line) + 1))[:size_bytes]
