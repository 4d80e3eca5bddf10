"""The simulate command, end to end."""

import csv
import json
from pathlib import Path

from click.testing import CliRunner, Result

from speedwell.evaluation.commands.simulate import simulate
from speedwell.topo.fabric import three_tier

FABRIC = three_tier(pods=2, racks_per_pod=2, hosts_per_rack=4, host_bps=1e9)


def invoke(output: Path, *arguments: str) -> Result:
    return CliRunner().invoke(simulate, ["--output", str(output), *arguments])


def test_an_overload_that_only_shows_in_the_run_ends_it_and_is_said(tmp_path: Path) -> None:
    (tmp_path / "fabric.json").write_text(FABRIC.to_json())
    result = invoke(tmp_path / "results", "--fabric", str(tmp_path / "fabric.json"), "--method", "nearest+ecmp",
                    "--files", "2", "--rate", "0.4", "--reads", "100000", "--runs", "1")

    assert result.exit_code == 0, result.output
    assert "overloaded in 1 of 1" in " ".join(result.output.split())
    assert "a run was stopped: after" in result.output
    (row,) = csv.DictReader((tmp_path / "results/table.csv").open())
    assert (row["overloaded_runs"], row["mean_seconds_value"]) == ("1", "")


def test_a_described_fabric_is_simulated_and_kept_beside_the_results(tmp_path: Path) -> None:
    (tmp_path / "fabric.json").write_text(FABRIC.to_json())

    result = invoke(tmp_path / "results", "--fabric", str(tmp_path / "fabric.json"), "--reads", "60", "--runs", "2",
                    "--rate", "0.02", "--rate", "0.05")

    assert result.exit_code == 0, result.output
    assert (tmp_path / "results/fabric.json").read_text() == FABRIC.to_json()
    rows = list(csv.DictReader((tmp_path / "results/table.csv").open()))
    assert [(row["point"], row["method"]) for row in rows] == [
        (rate, method) for rate in ("0.02", "0.05") for method in ("mayflower+mayflower", "nearest+ecmp")]
    assert (tmp_path / "results/plot.png").read_bytes().startswith(b"\x89PNG")
    manifest = json.loads((tmp_path / "results/manifest.json").read_text())
    assert manifest["runs"][0]["workload"]["reads_per_server_second"] == 0.02
