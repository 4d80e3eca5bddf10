"""The demonstration as a user runs it."""

import json
import subprocess
import sys

import pytest

from tests.machine_state import left_on_machine

pytestmark = [pytest.mark.root, pytest.mark.timeout(300)]


def test_the_demo_reads_the_congested_file_from_another_replica_and_leaves_nothing(tmp_path):
    before = left_on_machine()
    results = tmp_path / "results.json"
    finished = subprocess.run([sys.executable, "-m", "speedwell.cluster.demo", "--json", results], check=False,
                              capture_output=True, text=True, timeout=280)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    nearest, mayflower = json.loads(results.read_text())
    assert nearest["policy"] == "nearest+ecmp" and mayflower["policy"] == "mayflower+mayflower"
    assert nearest["bytes"] == mayflower["bytes"] > 0
    (source,) = nearest["sources"]
    assert len(source["path"]) == 3, "the nearest replica is one switch away"
    for source in mayflower["sources"]:
        assert len({*source["path"]}) == len(source["path"]), "each part has a path of its own"
    assert sum(source["bytes"] for source in mayflower["sources"]) == mayflower["bytes"]
    assert mayflower["replica"] != nearest["replica"]
    assert mayflower["ratio"] < 1
    assert left_on_machine() == before
