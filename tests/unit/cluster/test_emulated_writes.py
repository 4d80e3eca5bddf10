"""Sinbad's writes on an emulated fabric: what is asked for, and what is refused before anything is built."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from evaluation.commands.experiment import experiment
from evaluation.papers.sinbad import RACK_AWARE, SINBAD
from evaluation.replay.writes import HOSTS_PER_RACK, METHODS, WriteTrace, events_of, fabric_of
from fs.limits import LEAST_ADVISED_BYTES

TASK = WriteTrace(SINBAD, 7, 40, 20e6)


def test_every_method_meets_the_same_writes_reads_and_background() -> None:
    assert events_of(TASK) == events_of(WriteTrace(RACK_AWARE, 7, 40, 20e6))
    assert events_of(TASK) != events_of(WriteTrace(SINBAD, 8, 40, 20e6))
    assert {method.policy for method in METHODS} == {"rack-aware", "hdfs", "sinbad", "sinbad-plus"}


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
    reads = [event for event in events_of(TASK) if event.file is not None]
    assert reads and all(event.host not in event.file.replicas for event in reads if event.file is not None)


@pytest.mark.parametrize(("arguments", "reason"), [
    (["--reads", "20"], "of no use to writes"), (["--slowdown", "2"], "of no use to writes"),
    (["--trace", __file__], "--trace does not go with --emulate"), (["--policy", "hdfs"], "--policy does not go")])
def test_options_that_would_do_nothing_are_refused(tmp_path: Path, arguments: list[str], reason: str) -> None:
    command = ["sinbad-write", "--emulate", *arguments, "--output", str(tmp_path / "out")]
    done = CliRunner().invoke(experiment, command)
    assert done.exit_code == 2 and reason in " ".join(done.output.split())
    assert not (tmp_path / "out").exists()
