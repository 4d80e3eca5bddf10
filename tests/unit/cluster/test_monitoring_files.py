"""What the repository has for Prometheus and Grafana, checked by Prometheus' own tool."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

MONITORING = Path(__file__).parents[3] / "monitoring"
DASHBOARDS = ("grafana-dashboard.json", "grafana-network.json")


@pytest.mark.parametrize("arguments", [("check", "config", "--syntax-only", "prometheus.yml"),
                                       ("check", "rules", "alerts.yml"),
                                       ("test", "rules", "alerts_test.yml")])
def test_promtool_finds_nothing_wrong(arguments: tuple[str, ...]) -> None:
    done = subprocess.run(["promtool", *arguments], cwd=MONITORING, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_case_where_it_fires_and_one_where_it_does_not() -> None:
    rules = yaml.safe_load((MONITORING / "alerts.yml").read_text())["groups"][0]["rules"]
    cases = [case for test in yaml.safe_load((MONITORING / "alerts_test.yml").read_text())["tests"]
             for case in test["alert_rule_test"]]
    fires, stays_silent = ({case["alertname"] for case in cases if bool(case.get("exp_alerts")) is is_firing}
                           for is_firing in (True, False))
    alerts = {rule["alert"] for rule in rules}
    assert fires == alerts
    assert alerts - stays_silent == set()


@pytest.mark.parametrize("name", DASHBOARDS)
def test_prometheus_understands_each_query_of_a_dashboard(name: str, tmp_path: Path) -> None:
    queries = [target["expr"] for panel in json.loads((MONITORING / name).read_text())["panels"]
               for target in panel.get("targets", ())]
    assert len(queries) > 20
    assert _parses(queries, tmp_path).returncode == 0, _parses(queries, tmp_path).stderr
    assert _parses([*queries, f"{queries[-1]} by (process"], tmp_path).returncode != 0


def _parses(queries: Sequence[str], directory: Path) -> subprocess.CompletedProcess[str]:
    rules = [{"record": f"query_{number}", "expr": query} for number, query in enumerate(queries)]
    file = directory / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    return subprocess.run(["promtool", "check", "rules", file], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", DASHBOARDS)
def test_every_panel_of_a_dashboard_has_a_place_and_a_query(name: str) -> None:
    panels = [panel for panel in json.loads((MONITORING / name).read_text())["panels"]
              if panel["type"] != "row"]
    assert len(panels) > 10
    assert all(panel["targets"] and panel["gridPos"]["w"] > 0 for panel in panels)
    assert len({panel["id"] for panel in panels}) == len(panels)
