"""One request through real processes: its spans at an OpenTelemetry collector, its id in their logs."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.integration.cluster.collector import Collector, is_whole
from tests.integration.fuse_mount.mounting import Mounted
from tests.local_cluster import SCRIPTS, START_SECONDS, LocalCluster, _first_line
from tests.waiting import wait_until

MIB = 1 << 20
DEADLINE_SECONDS = 60


class Installation(NamedTuple):
    cluster: LocalCluster
    controller: str
    directory: Path


@pytest.fixture
def collector(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Collector]:
    """That every process is told of which the test starts; over TLS where the test says so."""
    certificate = tmp_path / "collector.pem" if getattr(request, "param", "http") == "https" else None
    with Collector(certificate=certificate) as server:
        server.tell(monkeypatch)
        yield server
        server.shutdown()


@pytest.fixture
def debugging(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every process that the test starts logs each request."""
    monkeypatch.setenv("SPEEDWELL_LOG_LEVEL", "debug")
    monkeypatch.setenv("SPEEDWELL_CONTROLLER_LOG_LEVEL", "debug")


@pytest.fixture
def installation(tmp_path: Path) -> Iterator[Installation]:
    """Three dataservers, and a controller that knows none of the hosts: it answers, and places nothing."""
    with ExitStack() as cleanup:
        log = cleanup.enter_context((tmp_path / "controller.log").open("wb"))
        controller = subprocess.Popen([SCRIPTS / "speedwell-controller", "--openflow-port", "0", "--rest-port", "0"],
                                      stdout=subprocess.PIPE, stderr=log)
        cleanup.callback(controller.wait)
        cleanup.callback(controller.terminate)
        assert controller.stdout is not None
        words = _first_line(controller.stdout, 4 * START_SECONDS).decode().split()
        url = "http://" + next(word.removeprefix("rest=") for word in words if word.startswith("rest="))
        cluster = cleanup.enter_context(LocalCluster(
            tmp_path / "cluster", dataservers=3, secure=False, nameserver_arguments=("--controller", url)))
        yield Installation(cluster, url, tmp_path)


def speedwell(installation: Installation, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [SCRIPTS / "speedwell", *map(str, arguments), "--nameserver", installation.cluster.nameserver.address,
         "--controller", installation.controller, "--local-host", "127.0.0.9"],
        capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False)


def servers(cluster: LocalCluster) -> dict[str, str]:
    """What processes are called in traces, by their names here."""
    return {each.name: f"speedwell-dataserver {each.name}" for each in cluster.dataservers}


@pytest.mark.parametrize("collector", ["https"], indirect=True)
def test_one_write_is_one_trace_through_nameserver_controller_and_the_chain_of_replicas(
        collector: Collector, installation: Installation) -> None:
    source = installation.directory / "source"
    source.write_bytes(os.urandom(9 * MIB))
    done = speedwell(installation, "put", source, "/file")
    assert done.returncode == 0, done.stderr
    attributes = installation.cluster.client().lookup("/file")
    chain = [servers(installation.cluster)[replica.dataserver_id] for replica in attributes.replicas]
    wait_until(lambda: is_whole(collector.trace_with("write") or [], {
        ("append", process) for process in chain} | {("POST /v1/placements", "speedwell-controller 127.0.0.1:0"), *(
            (name, "speedwell-nameserver 127.0.0.1:0") for name in ("Create", "Commit", "Rename"))}),
        DEADLINE_SECONDS, collector.seen)
    trace = collector.trace_with("write")
    assert trace is not None
    by_id = {span.id: span for span in trace}
    assert [span.name for span in trace if span.parent not in by_id] == ["write"], collector.seen()
    [create] = [span for span in trace if span.name == "Create"]
    [placement] = [span for span in trace if span.name == "POST /v1/placements"]
    assert by_id[placement.parent] == create and by_id[create.parent].name == "write"
    for before, following in zip(["speedwell", *chain], chain, strict=False):
        of_one = [span for span in trace if span.name == "append" and span.process == following]
        assert of_one and {by_id[span.parent].process for span in of_one} == {before}, collector.seen()


def test_one_read_through_a_mount_is_one_trace(collector: Collector, installation: Installation) -> None:
    client = installation.cluster.client()
    client.create("/file", replication=1)
    with client.open_append("/file") as appender:
        appender.write(os.urandom(2 * MIB))
    [replica] = client.lookup("/file", fresh=True).replicas
    mounted = Mounted(installation.directory / "mount", installation.cluster.nameserver.address,
                      "--controller", installation.controller, "--local-host", "127.0.0.9")
    try:
        mount = f"speedwell-mount {mounted.path}"
        with (mounted.path / "file").open("rb", buffering=0) as file:
            while file.read(MIB):
                pass
        dataserver = servers(installation.cluster)[replica.dataserver_id]
        wait_until(lambda: is_whole(collector.trace_with("open", mount) or [], {
            ("read", mount), ("read", dataserver), ("Lookup", "speedwell-nameserver 127.0.0.1:0"),
            ("POST /v1/reads", "speedwell-controller 127.0.0.1:0")}), DEADLINE_SECONDS, collector.seen)
    finally:
        mounted.clean_up()
    trace = collector.trace_with("open", mount, dataserver)
    assert trace is not None
    by_id = {span.id: span for span in trace}
    [root] = [span for span in trace if span.parent not in by_id]
    assert root.name == "open" and root.process == mount
    [read] = [span for span in trace if span.name == "read" and span.process == mount]
    assert by_id[read.parent] == root
    assert {by_id[span.parent] for span in trace if span.process == dataserver and span.name == "read"} == {read}
    assert {by_id[span.parent] for span in trace if span.name == "POST /v1/reads"} == {read}
    assert {by_id[span.parent] for span in trace if span.name == "Lookup"} == {root}


def test_the_id_in_an_error_leads_through_the_logs_of_all_servers(
        debugging: None, installation: Installation) -> None:
    cluster = installation.cluster
    attributes = cluster.client().create("/file", replication=1)
    with cluster.client().open_append("/file") as appender:
        appender.write(os.urandom(2 * MIB))
    [replica] = attributes.replicas
    for path in cluster.stored(replica.dataserver_id, attributes.file_id).iterdir():
        if path.name.isdigit():
            path.write_bytes(bytes(path.stat().st_size))
    done = speedwell(installation, "get", "/file", installation.directory / "copy")
    assert done.returncode == 1
    found = re.search(r"\(request ([0-9a-f]{32})\)$", done.stderr.strip())
    assert found, done.stderr
    controller, nameserver, dataserver = (
        [line for line in log.read_text().splitlines() if found[1] in line]
        for log in (installation.directory / "controller.log", cluster.nameserver.log,
                    cluster.dataserver(replica.dataserver_id).log))
    assert any("POST /v1/reads ended" in line for line in controller)
    assert any("Lookup ended" in line for line in nameserver)
    assert any("read ended" in line for line in dataserver)
