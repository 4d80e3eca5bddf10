"""Sinbad's writes on an emulated fabric: what is asked for, and what is refused before anything is built."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from speedwell.evaluation.commands.experiment import experiment
from speedwell.evaluation.papers.sinbad import EXPERIMENTS, RACK_AWARE, SINBAD
from speedwell.evaluation.papers.sinbad_fabric import (
    HOST_MBPS,
    HOSTS_PER_RACK,
    MEASURES,
    METHODS,
    RUNS,
    WRITES,
    WriteTrace,
    events_of,
    fabric_of,
    stored_files,
)
from speedwell.evaluation.replay.writes import beside
from speedwell.evaluation.results.output import finish
from speedwell.fs.limits import LEAST_ADVISED_BYTES

TASK = WriteTrace(SINBAD, 7, 40, 20e6)


def test_every_method_meets_the_same_writes_reads_and_background() -> None:
    assert events_of(TASK) == events_of(WriteTrace(RACK_AWARE, 7, 40, 20e6))
    assert events_of(TASK) != events_of(WriteTrace(SINBAD, 8, 40, 20e6))
    assert {method.policy for method in METHODS} == {"rack-aware", "sinbad", "sinbad-plus"}


def test_all_writes_are_large_enough_to_be_placed_by_the_load() -> None:
    writes = [event for event in events_of(TASK) if event.kind == "write"]
    assert len(writes) == 40
    assert all(LEAST_ADVISED_BYTES <= event.size_bytes <= 2 * LEAST_ADVISED_BYTES for event in writes)


def test_a_flood_goes_from_one_rack_to_another() -> None:
    rack_of = {host.name: host.rack for host in fabric_of(20e6).hosts}
    floods = [event for event in events_of(TASK) if event.kind == "flood"]
    assert floods and len(floods) % HOSTS_PER_RACK == 0
    assert all(rack_of[event.host] != rack_of[event.to] for event in floods)


def test_nobody_reads_what_is_on_the_own_host() -> None:
    reads = [(event.host, event.file) for event in events_of(TASK) if event.file is not None]
    assert reads and all(reader not in file.replicas for reader, file in reads)
    assert {file for _, file in reads} <= set(stored_files(fabric_of(20e6)))


def test_a_full_run_of_all_seeds_takes_minutes() -> None:
    seeds = [events_of(WriteTrace(SINBAD, seed, WRITES, HOST_MBPS * 1e6))[-1].at for seed in range(1, 1 + RUNS)]
    assert len(METHODS) * sum(seeds) < 8 * 60


def test_methods_are_compared_write_by_write_and_the_page_of_tables_says_how_busy_the_machine_was(
        tmp_path: Path) -> None:
    figure, made = EXPERIMENTS["sinbad-write"], []
    for seed in (1, 2, 3):
        for number, method in enumerate(METHODS):
            made.append({"task": WriteTrace(method, seed, 4, 20e6).parameters(), "placed": {"controller": 4},
                         "seconds": [4.0 * seed, 3.0 - number, 1.0, 1.0 + seed], "mean_seconds": 4.0 - number,
                         "p95_seconds": 4.0, "read_seconds": 1.0, "machine": {"busy_share": 0.25 + 0.1 * number}})
    finish(replace(figure, base=RACK_AWARE.name, measures=MEASURES), made, tmp_path, beside("sinbad-write", made))
    page = (tmp_path / "tables.md").read_text()
    assert "| blocks that improved | - | 0.25 [0.25, 0.25] | 0.25 [0.25, 0.25] |" in page
    assert "| the same | - | 0.75 [0.75, 0.75] | 0.75 [0.75, 0.75] |" in page
    assert "25% to 45% busy" in page and "controller 36" in page and "| read, mean s |" in page


@pytest.mark.parametrize(("arguments", "reason"), [
    (["--reads", "20"], "of no use to writes"), (["--slowdown", "2"], "of no use to writes"),
    (["--trace", __file__], "--trace does not go with --emulate"), (["--policy", "hdfs"], "--policy does not go")])
def test_options_that_would_do_nothing_are_refused(tmp_path: Path, arguments: list[str], reason: str) -> None:
    command = ["sinbad-write", "--emulate", *arguments, "--output", str(tmp_path / "out")]
    done = CliRunner().invoke(experiment, command)
    assert done.exit_code == 2 and reason in " ".join(done.output.split())
    assert not (tmp_path / "out").exists()
