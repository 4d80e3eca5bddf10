"""A flow that is given another path while it sends: make before break, so no packet is lost for want of an entry."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from speedwell.coflow.report import UDP, Flow
from speedwell.coflow.reporter import Reporter
from speedwell.coflow.settings import scheduler
from speedwell.topo.fabric import spine_leaf
from tests.integration.controller.northbound import MACHINE, Northbound, northbound
from tests.waiting import wait_until

pytestmark = pytest.mark.root

SETTINGS = f"""
coflow_policy = "tailor"
coflow_host = "{MACHINE}"
coflow_stall_seconds = 60.0
"""
SOURCE_PORT, PORT = 7401, 7400
SIZE_BYTES = 50_000_000
MOVES = 8

SENDER = """
import signal, socket, sys, time
source, port, target, target_port = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
sending, running = socket.socket(socket.AF_INET, socket.SOCK_DGRAM), [True]
sending.bind((source, port))
sending.connect((target, target_port))
signal.signal(signal.SIGTERM, lambda *_: running.clear())
number = 0
while running:
    sending.send(number.to_bytes(8, "big"))
    number += 1
    time.sleep(0.001)
print(number, flush=True)
"""
RECEIVER = """
import signal, socket, sys
receiving, seen = socket.socket(socket.AF_INET, socket.SOCK_DGRAM), set()
receiving.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
receiving.bind((sys.argv[1], int(sys.argv[2])))
receiving.settimeout(0.2)
running = [True]
signal.signal(signal.SIGTERM, lambda *_: running.clear())
print("ready", flush=True)
while True:
    try:
        seen.add(int.from_bytes(receiving.recv(64), "big"))
    except TimeoutError:
        if not running:
            break
print(len(seen), flush=True)
"""


class Moving(Northbound):
    """A fabric on which reports are made for flows that need not exist."""

    key_file: Path

    def reporter(self) -> Reporter:
        return Reporter(scheduler(MACHINE, self.key_file))

    def members(self) -> list[dict[str, Any]]:
        return [flow for coflow in self.get("/v1/coflows")["coflows"]
                for flow in self.get(f"/v1/coflows/{coflow['id']}")["members"]]

    def start(self, host: str, script: str, *arguments: str | int) -> tuple[subprocess.Popen[bytes], Path]:
        log = self.directory / f"{host}.log"
        return self.emulation.popen(host, [sys.executable, "-c", script, *map(str, arguments)], log), log


@pytest.fixture
def fabric(tmp_path: Path) -> Iterator[Moving]:
    (tmp_path / "key").write_bytes(b"a key of good length")
    description = spine_leaf(leaves=2, spines=2, hosts_per_leaf=2, host_bps=20e6, oversubscription=1)
    with northbound(description, tmp_path, SETTINGS + f'coflow_key_file = "{tmp_path / "key"}"\n', Moving) as running:
        running.key_file = tmp_path / "key"
        running.meet_all_hosts()
        yield running


def way(fabric: Moving, port: int) -> str:
    """What the first switch does with the flow from this port, by its own entry; empty: it has none."""
    lines = fabric.emulation.ovs_ofctl("leaf0", "dump-flows", f"udp,tp_src={port}").splitlines()
    return next((line.partition("actions=")[2] for line in lines if f"tp_src={port}," in line), "")


def planned_spine(fabric: Moving, port: int) -> str:
    """Which spine the controller has the flow from this port go over; empty: the default."""
    [names] = [flow["path_names"] for flow in fabric.members() if flow["source_port"] == port]
    return next((name for name in names if name.startswith("spine")), "")


def test_a_flow_that_is_moved_again_and_again_loses_no_packet(fabric: Moving) -> None:
    receiver, received = fabric.start("r1h0", RECEIVER, fabric.ip("r1h0"), PORT)
    wait_until(lambda: b"ready" in received.read_bytes(), 10, "nobody receives")
    sender, sent = fabric.start("r0h0", SENDER, fabric.ip("r0h0"), SOURCE_PORT, fabric.ip("r1h0"), PORT)
    spines: list[str] = []
    ways: dict[str, str] = {}
    with fabric.reporter() as reporter:
        reporter.add([(Flow(fabric.ip("r0h0"), fabric.ip("r1h0"), SOURCE_PORT, PORT, UDP), SIZE_BYTES)])
        for other_port in count(8000):
            # A younger flow whose default is the path that the first has makes Tailor move that one.
            with fabric.reporter() as other:
                other.add([(Flow(fabric.ip("r0h1"), fabric.ip("r1h1"), other_port, PORT, UDP), SIZE_BYTES)])
                wait_until(lambda: len(fabric.members()) == 2, 10, "the reports are not heard")
                wait_until(lambda: all(flow["state"] != "waiting" for flow in fabric.members()), 10, "no decision")
                spine = planned_spine(fabric, SOURCE_PORT)
                if spine and spines[-1:] != [spine]:
                    former = ways.get(spines[-1]) if spines else ""
                    wait_until(lambda former=former: way(fabric, SOURCE_PORT) != former, 10, "the entry stays")
                    ways.setdefault(spine, way(fabric, SOURCE_PORT))
                    assert way(fabric, SOURCE_PORT) == ways[spine]
                    spines.append(spine)
            if len(spines) == MOVES:
                break
            wait_until(lambda: len(fabric.members()) == 1, 10, "the other does not end")
            assert other_port < 8200, f"the flow is not moved any more: {spines}"
    assert len(set(ways.values())) == 2, ways
    sender.terminate()
    assert sender.wait(60) == 0
    receiver.terminate()
    assert receiver.wait(60) == 0
    packets = int(sent.read_text().split()[-1])
    assert packets > 500
    assert int(received.read_text().split()[-1]) == packets
