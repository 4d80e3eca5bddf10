"""A real Prometheus with the configuration and the rules of the repository, only quicker."""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import requests
import yaml

from speedwell.cluster.nameservers import free_ports

MONITORING = Path(__file__).parents[3] / "monitoring"
RESULT = {"result": [], "alerts": []}


@contextlib.contextmanager
def prometheus(directory: Path, installation: Path, jobs: tuple[str, ...] = ("speedwell",)) -> Iterator[str]:
    """The URL of one that watches what these jobs do, of an installation in that directory."""
    config = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["scrape_configs"] = [job for job in config["scrape_configs"] if job["job_name"] in jobs]
    text = yaml.safe_dump(config).replace("/var/lib/speedwell/", f"{installation}/")
    (directory / "prometheus.yml").write_text(text.replace("/var/tmp/speedwell/fabric/", f"{installation}/"))
    (directory / "alerts.yml").write_text(re.sub(r"for: \w+", "for: 1s", (MONITORING / "alerts.yml").read_text()))
    [port] = free_ports("127.0.0.1", 1)
    with (directory / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            ["prometheus", f"--config.file={directory}/prometheus.yml", f"--storage.tsdb.path={directory}/data",
             f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(timeout=60)


def values(url: str, query: str, label: str = "dataserver") -> dict[str, float]:
    """What a query gives now, by one label."""
    return {series["metric"].get(label, ""): float(series["value"][1])
            for series in ask(url, "query", query=query)["result"]}


def firing(url: str) -> set[tuple[str, str]]:
    """The alerts, each with the process or dataserver it is about."""
    return {(alert["labels"]["alertname"], alert["labels"].get("dataserver") or alert["labels"].get("process", ""))
            for alert in ask(url, "alerts")["alerts"] if alert["state"] == "firing"}


def ask(url: str, what: str, **parameters: str) -> Any:
    """Of Prometheus' API; nothing while it starts."""
    try:
        answer = requests.get(f"{url}/api/v1/{what}", params=parameters, timeout=30)
    except requests.ConnectionError:
        return RESULT
    return answer.json()["data"] if answer.ok else RESULT


def require_as_prometheus_wants(page: bytes) -> None:
    """Names, units and help texts."""
    checked = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True, check=False)
    assert checked.returncode == 0, checked.stderr.decode()
