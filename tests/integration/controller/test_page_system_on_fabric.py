"""A new system, `tests/unit/controller/page_system`, in the real controller and in real switches, by one line."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from speedwell.topo.fabric import spine_leaf
from tests.integration.controller.northbound import northbound
from tests.unit.controller.controller_process import PROGRAM, controller_process
from tests.waiting import wait_until

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "tests" / "unit" / "controller"
"""Where `page_system` is."""
LINES = "[speedwell.applications]\npage = page_system.app\n[speedwell.policies]\npage = page_system.policy\n"


def install(directory: Path, lines: str) -> str:
    """A PYTHONPATH with the system as an installed package whose entry points are `lines`."""
    package = directory / "page_system-1.dist-info"
    package.mkdir(parents=True, exist_ok=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: page-system\nVersion: 1\n")
    (package / "entry_points.txt").write_text(lines)
    return f"{directory}{os.pathsep}{FOLDER}"


@pytest.fixture(name="installed")
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PYTHONPATH", install(tmp_path, LINES))
    yield


@pytest.mark.usefixtures("installed")
def test_its_line_starts_it_and_offers_its_policy_in_help_document_and_choice() -> None:
    output = subprocess.run([PROGRAM, "--help"], capture_output=True, text=True, check=True, timeout=60).stdout
    assert "first-named" in "".join(output.split()), "a line may end after its hyphen"
    with controller_process("--replica-policy", "first-named") as controller:
        assert controller.get("/v1/page") == {"packets": {}}
        document = controller.get("/openapi.json")
        assert "/v1/page" in document["paths"] and '"first-named"' in json.dumps(document["components"])
        assert controller.get("/v1/health")["policies"]["replica_policy"] == "first-named"


@pytest.mark.parametrize(("module", "text", "reason"), [
    ("absent.app", None, "cannot load the application absent.app: ModuleNotFoundError"),
    ("empty", "", "cannot load the application empty: it has no class derived from"),
    ("lonely", "from speedwell.controller.application import Application\n"
     "from speedwell.controller.tables.plan import TablePlanner\n"
     "class Lonely(Application):\n    def start(self):\n        self.services.get(TablePlanner)\n",
     "nothing provides speedwell.controller.tables.plan.TablePlanner"),
])
def test_an_application_that_cannot_start_ends_the_controller_with_one_line(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, text: str | None, reason: str) -> None:
    if text is not None:
        (tmp_path / f"{module}.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", install(tmp_path, f"[speedwell.applications]\nown = {module}\n"))
    done = subprocess.run([PROGRAM, "--openflow-port", "0", "--rest-port", "0"], capture_output=True, text=True,
                          check=False, timeout=60)
    assert done.returncode == 1 and done.stdout == ""
    assert reason in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr


@pytest.mark.root
@pytest.mark.usefixtures("installed")
def test_its_entry_is_in_a_real_switch_whose_count_its_route_tells(tmp_path: Path) -> None:
    fabric = spine_leaf(leaves=2, spines=1, hosts_per_leaf=1, host_bps=100e6, oversubscription=1)
    with northbound(fabric, tmp_path, 'replica_policy = "first-named"\npoll_interval_seconds = 0.5\n') as running:
        running.meet_all_hosts()
        leaf = fabric.switch("leaf0")
        listed = running.emulation.ovs_ofctl(leaf.name, "dump-flows", "table=30")
        assert "udp,tp_dst=5005 actions=resubmit(,40)" in listed or "udp,tp_dst=5005 actions=goto_table:40" in listed
        assert running.place("r1h0", "r0h0", port=5001)["replica_policy"] == "first-named"
        sender = ("import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); "
                  f"[s.sendto(b'hello', ('{running.ip('r1h0')}', 5005)) for _ in range(3)]")
        assert running.emulation.run("r0h0", ["/usr/bin/python3", "-c", sender]).returncode == 0
        wait_until(lambda: running.get("/v1/page")["packets"].get(leaf.dpid_hex, 0) >= 1, 20,
                   "the route does not tell of the packets")
