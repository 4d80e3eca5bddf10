"""Sweeps of simulations as users run them: on all cores or on a Dask cluster, interrupted and resumed."""

import csv
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.waiting import wait_until

SCRIPTS = Path(sys.executable).parent
SWEEP = ("simulate", "--method", "nearest+ecmp", "--method", "sinbad-r+mayflower", "--runs", "8", "--reads", "100",
         "--rate", "0.05", "--rate", "0.07")
RUNS = 32


def speedwell(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(SCRIPTS / "speedwell"), *map(str, arguments)], capture_output=True, text=True,
                          timeout=120, check=False)


def lines(directory: Path) -> list[str]:
    file = directory / "results.jsonl"
    return file.read_text().splitlines() if file.exists() else []


def processes_of(group: int) -> list[int]:
    """Processes of a process group that still run: in a container nobody may wait for those that ended."""
    found = subprocess.run(["pgrep", "-g", str(group), "--runstates", "R,S,D,T"],
                           capture_output=True, text=True, check=False)
    return [int(pid) for pid in found.stdout.split()]


def processor_seconds(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_sweep_that_ctrl_c_interrupts_keeps_what_has_finished_and_resumes(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert speedwell(*SWEEP, "--output", whole).returncode == 0
    assert len(lines(whole)) == RUNS

    process = subprocess.Popen([str(SCRIPTS / "speedwell"), *SWEEP, "--output", str(cut)], start_new_session=True,
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: len(lines(cut)) >= 3, 60, "no run has finished")
        os.killpg(process.pid, signal.SIGINT)       # as a terminal does: to all processes at once
        _, said = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    kept = lines(cut)

    assert process.returncode == 130
    assert 3 <= len(kept) < RUNS
    assert f"{len(kept)} of {RUNS} runs are kept" in said and "Traceback" not in said
    # Python's own helper of its process pools ends a little after them
    wait_until(lambda: not processes_of(process.pid), 20, "processes are left")
    refused = speedwell(*SWEEP, "--output", cut)
    assert (refused.returncode, "--resume" in refused.stderr) == (1, True)

    resumed = speedwell(*SWEEP, "--output", cut, "--resume")

    assert resumed.returncode == 0, resumed.stderr
    assert lines(cut)[: len(kept)] == kept
    assert sorted(lines(cut)) == sorted(lines(whole))
    assert (cut / "table.csv").read_text() == (whole / "table.csv").read_text()


def test_a_sweep_that_is_interrupted_twice_ends_at_once_and_leaves_no_process(tmp_path: Path) -> None:
    process = subprocess.Popen([str(SCRIPTS / "speedwell"), "simulate", "--runs", "4", "--reads", "20000",
                                "--output", str(tmp_path)], start_new_session=True,
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        # Two workers beside the command and Python's helper of its pools, and they are at work by now
        wait_until(lambda: sum(map(processor_seconds, processes_of(process.pid))) > 8, 60, "no run has begun")
        os.killpg(process.pid, signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):     # runs of half a minute may end after the first
            process.wait(timeout=2)
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 130
    assert "Traceback" not in said
    wait_until(lambda: not processes_of(process.pid), 20, "processes are left")


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[str]:
    """The address of a Dask scheduler with a worker process."""
    file = tmp_path / "scheduler.json"
    commands = (("scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard"),
                ("worker", "--nthreads", "1", "--no-dashboard", "--local-directory", str(tmp_path)))
    with ExitStack() as cleanup, (tmp_path / "dask.log").open("w") as log:
        for command, *options in commands:
            process = subprocess.Popen([str(SCRIPTS / "dask"), command, "--scheduler-file", str(file), *options],
                                       stdout=log, stderr=log, cwd=tmp_path)
            cleanup.callback(process.wait, 30)
            cleanup.callback(process.terminate)
            wait_until(lambda: file.exists() and file.read_text(), 60, "the scheduler did not start")
        yield json.loads(file.read_text())["address"]


def test_a_sweep_on_a_dask_cluster_gives_what_this_machine_gives(scheduler: str, tmp_path: Path) -> None:
    sweep = ("simulate", "--runs", "2", "--reads", "60")
    here = speedwell(*sweep, "--output", tmp_path / "here")
    assert here.returncode == 0, here.stderr
    # its workers may still be on their way
    there = wait_until(
        lambda: (run if "has no workers" not in run.stderr else None)
        if (run := speedwell(*sweep, "--output", tmp_path / "there", "--resume", "--scheduler", scheduler)) else None,
        60, "no workers came")

    assert there.returncode == 0, there.stderr
    assert sorted(lines(tmp_path / "there")) == sorted(lines(tmp_path / "here"))
    assert len(lines(tmp_path / "there")) == 4
    rows = list(csv.DictReader((tmp_path / "there/table.csv").open()))
    assert [row["method"] for row in rows] == ["mayflower+mayflower", "nearest+ecmp"]


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:9", "nonsense://x"])
def test_an_address_where_no_scheduler_answers_is_said(address: str, tmp_path: Path) -> None:
    result = speedwell("simulate", "--reads", "20", "--output", tmp_path, "--scheduler", address)

    assert result.returncode == 1
    assert result.stderr.strip().startswith(f"speedwell: scheduler: no Dask scheduler answers at {address}")
    assert "Traceback" not in result.stderr
