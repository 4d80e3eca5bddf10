"""An installation whose processes log JSON: every line, one request through all, and logs that are rotated."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from speedwell.fs import logs
from speedwell.fs.logs import FORMAT_VARIABLE
from tests.integration.cluster.executable import Speedwell, kill
from tests.integration.cluster.json_logs import json_lines
from tests.waiting import wait_until

DEADLINE_SECONDS = 60.0


@pytest.fixture(scope="module", name="speedwell")
def _speedwell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Speedwell]:
    speedwell = Speedwell(tmp_path_factory.mktemp("state"))
    speedwell.environment |= {FORMAT_VARIABLE: "json", "SPEEDWELL_LOG_LEVEL": "debug"}
    yield speedwell
    speedwell.run("down")


@pytest.fixture(scope="module", name="installation")
def _installation(speedwell: Speedwell, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("installation")
    speedwell.ok("up", "--local", directory, "--dataservers", 3, "--mount", tmp_path_factory.mktemp("mount"))
    return directory


def test_every_line_is_json_and_one_request_is_in_the_logs_of_all_that_serve_it(
        speedwell: Speedwell, installation: Path) -> None:
    speedwell.ok("put", "-", "/file", stdin=os.urandom(1 << 20))
    kill(installation, "d1")    # what fails is logged, too, and what starts again

    def served_by_all() -> bool:
        served: dict[str, set[str]] = defaultdict(set)
        for log in (installation / "logs").glob("*.log"):
            for entry in json_lines(log):
                served[entry.get("request", "")].add(log.stem)
        return any({"nameserver", "d0", "d1", "d2"} <= names for request, names in served.items() if request)

    wait_until(served_by_all, DEADLINE_SECONDS, "no request is in all logs", 0.5)
    assert {log.stem for log in (installation / "logs").glob("*.log")} >= {"nameserver", "d0", "d1", "d2"}


def test_a_log_that_is_too_large_is_rotated_and_goes_on_in_json(speedwell: Speedwell, installation: Path) -> None:
    log = installation / "logs" / "nameserver.log"
    with log.open("ab") as file:
        file.truncate(logs.MAX_BYTES + 1)       # as if it had said so much
    kept = log.with_name("nameserver.log.1")
    wait_until(lambda: kept.exists() and log.stat().st_size < logs.MAX_BYTES, DEADLINE_SECONDS, "it is not rotated")
    assert kept.read_bytes().startswith((b"ready ", b"{"))
    speedwell.ok("mkdir", "/made-afterwards")
    wait_until(lambda: any("Create" in entry["message"] or "MakeDirectory" in entry["message"]
                           for entry in json_lines(log)), DEADLINE_SECONDS, log.read_text)
