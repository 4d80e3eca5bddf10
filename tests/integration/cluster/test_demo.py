"""The demonstration as a user runs it."""

import json
import subprocess
import sys

import pytest

from tests.machine_state import left_on_machine

pytestmark = [pytest.mark.root, pytest.mark.timeout(400)]


def test_the_demo_does_the_same_tasks_twice_reads_past_the_congested_link_and_leaves_nothing(tmp_path):
    before = left_on_machine()
    results = tmp_path / "results.json"
    finished = subprocess.run([sys.executable, "-m", "speedwell.cluster.demo", "--small-files", "50", "--json",
                               results], check=False, capture_output=True, text=True, timeout=380)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    measured = json.loads(results.read_text())
    assert measured["without"].keys() == measured["with"].keys()
    assert all(value > 0 for each in measured.values() for name, value in each.items() if name.endswith("seconds"))
    without, with_them = measured["without"]["congested_read"], measured["with"]["congested_read"]
    if without["replica_failures"] == 0:    # past a full queue, the nearest may not be reached in time
        (source,) = without["sources"]
        assert source["replica"] == without["nearest"]
        assert len(source["path"]) == 3, "the nearest replica is one switch away"
    for source in with_them["sources"]:
        assert len({*source["path"]}) == len(source["path"]), "each part has a path of its own"
    assert sum(source["bytes"] for source in with_them["sources"]) == with_them["bytes"] == without["bytes"] > 0
    assert with_them["replica"] != with_them["nearest"]
    assert with_them["seconds"] < without["seconds"]
    last = finished.stdout.splitlines()[-1]
    assert "https://10.255.0.1:8080/" in last and "as long as the installation runs" in last, last
    assert left_on_machine() == before
