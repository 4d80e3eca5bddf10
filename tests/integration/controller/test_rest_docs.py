"""The examples of docs/reference/rest.md run as they stand."""

import contextlib
import itertools
import re
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from speedwell.coflow import Flow, FlowReport, Report, encode
from speedwell.topo.fabric import spine_leaf
from tests.integration.controller.northbound import Northbound, northbound
from tests.waiting import wait_until

pytestmark = pytest.mark.root

IDENTITY = "/var/tmp/speedwell/fabric/identity"
KEY = b"a key of good length"
COFLOW_ADDRESS = ("127.0.0.1", 6655)
PAGE = Path(__file__).parents[3] / "docs/reference/rest.md"


def test_every_example_works_and_every_route_has_one(tmp_path: Path) -> None:
    examples = re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(examples) > 8
    fabric = spine_leaf(leaves=2, spines=2, hosts_per_leaf=1, host_bps=40e6)
    (tmp_path / "key").write_bytes(KEY)
    settings = f'poll_interval_seconds = 0.3\nqueues = "mincof"\ncoflow_key_file = "{tmp_path / "key"}"\n'
    with northbound(fabric, tmp_path, settings) as running:
        running.meet_all_hosts()
        before = answered(running)
        examples = [example.replace(IDENTITY, str(tmp_path / "identity")) for example in examples]
        script = "".join(f"echo '#{number}'\n{example}" for number, example in enumerate(examples))
        with coflow([host.ip for host in fabric.hosts]):
            wait_until(lambda: running.ask("GET", "/v1/coflows").json()["total"], 20, "no coflow is known")
            done = subprocess.run(["bash", "-euo", "pipefail", "-c", script], cwd=tmp_path, capture_output=True,
                                  text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        after = answered(running)
        paths = running.ask("GET", "/openapi.json").json()["paths"]
        routes = {(method.upper(), route) for route, methods in paths.items() for method in methods
                  if not route.startswith("/page")}
    assert len(routes) > 40
    assert {route for route in routes if after[route] <= before[route]} == set(), "without an example"
    assert "urn:speedwell:problem:invalid-request" in done.stdout


def answered(running: Northbound) -> Counter[tuple[str, str]]:
    """How often each method of each route was answered as it was asked."""
    counted: Counter[tuple[str, str]] = Counter()
    for method, route, count in re.findall(
            r'^speedwell_http_requests_total{method="(\w+)",route="(\S+)",status="2\d\d"} (\S+)',
            running.ask("GET", "/metrics").text, re.MULTILINE):
        counted[method, route] += int(float(count))
    return counted


@contextlib.contextmanager
def coflow(hosts: Sequence[str]) -> Iterator[None]:
    """One that its sender reports twice a second."""
    ended = threading.Event()

    def report() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for sequence in itertools.count(1):
                flow = FlowReport(Flow(hosts[0], hosts[1], 5000, 9000), (1 << 30) - sequence)
                sender.sendto(encode(Report(bytes(16), 1, sequence, time.time_ns() // 1000, (flow,)), KEY),
                              COFLOW_ADDRESS)
                if ended.wait(0.5):
                    return

    thread = threading.Thread(target=report)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
