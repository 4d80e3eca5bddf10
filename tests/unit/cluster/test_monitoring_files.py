"""What the repository has for Prometheus and Grafana, checked by Prometheus' own tool."""

import json
import subprocess
from pathlib import Path

import pytest

MONITORING = Path(__file__).parents[3] / "monitoring"


@pytest.mark.parametrize("arguments", [("check", "config", "--syntax-only", "prometheus.yml"),
                                       ("check", "rules", "alerts.yml"),
                                       ("test", "rules", "alerts_test.yml")])
def test_promtool_finds_nothing_wrong(arguments: tuple[str, ...]) -> None:
    done = subprocess.run(["promtool", *arguments], cwd=MONITORING, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["grafana-dashboard.json", "grafana-network.json"])
def test_every_panel_of_a_dashboard_has_a_place_and_a_query(name: str) -> None:
    panels = [panel for panel in json.loads((MONITORING / name).read_text())["panels"]
              if panel["type"] != "row"]
    assert len(panels) > 10
    assert all(panel["targets"] and panel["gridPos"]["w"] > 0 for panel in panels)
    assert len({panel["id"] for panel in panels}) == len(panels)
