"""A fabric with all systems on whose processes write JSON logs, send spans over TLS, and answer Prometheus."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import requests

from speedwell.cluster.controller_client import session
from speedwell.cluster.errors import NotRunning
from speedwell.cluster.fabric_settings import read_settings, with_all_systems
from speedwell.cluster.supervisor import down, up
from speedwell.fs.logs import FORMAT_VARIABLE
from speedwell.topo.emulation.processes import in_namespace
from speedwell.topo.fabric import spine_leaf
from tests.integration.cluster.collector import Collector, is_whole
from tests.integration.cluster.executable import SCRIPTS
from tests.integration.cluster.json_logs import json_lines
from tests.integration.cluster.prometheus import require_as_prometheus_wants
from tests.waiting import wait_until

pytestmark = [pytest.mark.root, pytest.mark.timeout(300)]

MACHINE = "10.255.0.1"
FABRIC = spine_leaf(leaves=2, spines=1, hosts_per_leaf=1, host_bps=40e6)
READER, SERVER = FABRIC.hosts
DEADLINE_SECONDS = 60.0


class Seen(NamedTuple):
    cluster: dict[str, Any]
    directory: Path
    collector: Collector

    @property
    def mountpoint(self) -> Path:
        return Path(self.cluster["mounts"][READER.name])

    def metrics_of_controller(self) -> str:
        url = self.cluster["controller"]
        return session(url).get(f"{url}/metrics", timeout=30).text

    def steered(self) -> float:
        counted = re.findall(r"^speedwell_reads_total\S* (\S+)", self.metrics_of_controller(), re.MULTILINE)
        return sum(map(float, counted))


@pytest.fixture(scope="module", name="seen")
def _seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    folder = tmp_path_factory.mktemp("seen")
    with Collector(MACHINE, folder / "collector.pem") as collector, pytest.MonkeyPatch.context() as patch:
        collector.tell(patch)
        patch.setenv("SPEEDWELL_STATE_DIRECTORY", str(folder / "state"))
        patch.setenv(FORMAT_VARIABLE, "json")
        for level in ("SPEEDWELL_LOG_LEVEL", "SPEEDWELL_CONTROLLER_LOG_LEVEL"):
            patch.setenv(level, "debug")
        try:
            cluster = up(read_settings(fabric=FABRIC, directory=folder / "cluster", replication=1, metrics=True,
                                       machine=True, mounts={READER.name: folder / "mount"},
                                       **with_all_systems(FABRIC)))
            (folder / "source").write_bytes(os.urandom(2 << 20))
            subprocess.run(in_namespace(cluster["hosts"][SERVER.name]["pid"], (
                str(SCRIPTS / "speedwell"), "put", "--replicas", SERVER.name, str(folder / "source"), "/file")),
                check=True, timeout=90)
            yield Seen(cluster, folder / "cluster", collector)
        finally:
            with contextlib.suppress(NotRunning):
                down()
            collector.shutdown()


def test_one_steered_read_is_one_trace_at_a_collector_over_tls(seen: Seen) -> None:
    before = seen.steered()

    def is_traced() -> bool:
        """Of a read that the controller steered: it may not know the hosts yet."""
        (seen.mountpoint / "file").read_bytes()
        roots = [span for span in seen.collector.spans if span.name == "open" and not span.parent]
        return seen.steered() > before and any(is_whole(
            [span for span in seen.collector.spans if span.trace == root.trace],
            {("read", root.process), ("read", f"speedwell-dataserver {SERVER.name}")}) and
            {"POST /v1/reads", "Lookup"} <= {
                span.name for span in seen.collector.spans if span.trace == root.trace} for root in roots)

    wait_until(is_traced, DEADLINE_SECONDS, seen.collector.seen, 0.5)


def test_every_line_of_every_log_is_json_and_one_request_is_in_those_of_all_that_serve_it(seen: Seen) -> None:
    (seen.mountpoint / "file").read_bytes()
    logs = sorted((seen.directory / "logs").glob("*.log"))
    wanted = {"controller", f"dataserver-{SERVER.name}", f"mount-{READER.name}"}
    assert wanted <= {log.stem for log in logs}

    def requests_of() -> dict[str, set[str]]:
        served: dict[str, set[str]] = defaultdict(set)
        for log in logs:
            for entry in json_lines(log):
                served[entry.get("request", "")].add(log.stem)
        return served

    wait_until(lambda: any(wanted <= names and any("nameserver" in name for name in names)
                           for request, names in requests_of().items() if request),
               DEADLINE_SECONDS, lambda: str(requests_of()), 0.5)


def test_every_process_names_its_metrics_as_prometheus_wants_them(seen: Seen) -> None:
    operator = str(seen.directory / "identity/operator/identity.pem")
    require_as_prometheus_wants(seen.metrics_of_controller().encode())
    targets = json.loads((seen.directory / "metrics-targets.json").read_text())
    assert len(targets) > 6
    for target in targets:
        scheme = target["labels"].get("__scheme__", "http")
        page = requests.get(f"{scheme}://{target['targets'][0]}/metrics", timeout=30, verify=False,
                            cert=operator if scheme == "https" else None)
        assert page.ok and "speedwell_" in page.text, target
        require_as_prometheus_wants(page.content)
