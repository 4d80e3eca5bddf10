"""Traces at scale, and their replay against a system that answers as it is told."""

import math
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import pytest

from speedwell.cluster.errors import ClusterError, InvalidSetting
from speedwell.evaluation.experiment import Choices
from speedwell.evaluation.papers.mayflower import EXPERIMENTS, MAYFLOWER, RACK_LOCAL
from speedwell.evaluation.papers.reads import HOST_BPS, Method, Task
from speedwell.evaluation.replay import experiment
from speedwell.evaluation.replay.agents import ReaderAgents, ReadingFailed
from speedwell.evaluation.replay.agreement import agreement_of, wire_factor
from speedwell.evaluation.replay.experiment import emulated_tasks, parameters, run_emulated, saturated, warm_up
from speedwell.evaluation.replay.replay import replay
from speedwell.evaluation.replay.scale import Scale, StoredFile, file_of, files_of
from speedwell.evaluation.replay.speedwell import content
from speedwell.evaluation.replay.system import Progress, ReadReport
from speedwell.evaluation.results.results_file import ResultsFile
from speedwell.sim.errors import Overloaded
from speedwell.sim.workload import Read, Workload, generate

TASK = Task("", 0.0, MAYFLOWER, 0.07, RACK_LOCAL, 8.0, 50, 1)
SMALL = Scale(host_bps=16e6, speedup=64.0, pods=2, racks_per_pod=2, hosts_per_rack=2)


class Instant:
    """Reads end `seconds` after they were asked for; every `fails`th one fails."""

    def __init__(self, seconds: float = 0.0, fails: int = 0) -> None:
        self.seconds, self.fails = seconds, fails
        self.prepared: set[StoredFile] = set()
        self.asked: list[tuple[str, StoredFile, Method]] = []
        self.abandoned = self.settled = 0
        self._timers: list[threading.Timer] = []

    def details(self) -> dict[str, Any]:
        return {"system": "instant"}

    def prepare(self, files: Sequence[StoredFile], progress: Progress) -> None:
        self.prepared.update(files)

    def read(self, host: str, file: StoredFile, method: Method) -> Future[ReadReport]:
        assert file in self.prepared or not self.prepared
        self.asked.append((host, file, method))
        report: Future[ReadReport] = Future()
        started = time.monotonic()

        def end() -> None:
            if self.fails and len(self.asked) >= self.fails:
                report.set_exception(ReadingFailed("the disk is gone"))
            else:
                report.set_result(ReadReport(started, time.monotonic(), file.size_bytes, file.replicas[:1], True))

        timer = threading.Timer(self.seconds, end)
        timer.daemon = True
        timer.start()
        self._timers.append(timer)
        return report

    def settle(self) -> None:
        self.settled += 1

    def abandon(self) -> None:
        self.abandoned += 1
        for timer in self._timers:
            timer.cancel()

    def close(self) -> None:
        pass


def one_after_the_other(number: int, gap_seconds: float = 0.01) -> list[Read]:
    return [Read(gap_seconds * index, "p0r0h0", ("p0r0h1", "p1r0h0"), 8e5) for index in range(number)]


# ---------------------------------------------------------------------- scale


def test_a_scaled_read_takes_as_long_and_loads_as_much_as_the_papers() -> None:
    scale = Scale(host_bps=20e6)
    workload = scale.workload(TASK)
    assert workload.read_bits / scale.host_bps == pytest.approx(Workload().read_bits / HOST_BPS, rel=1e-5)
    assert workload.reads_per_server_second == TASK.rate
    capacity = {link.capacity_bps for link in scale.fabric(8.0).links}
    assert max(capacity) == 20e6 and len(scale.fabric(8.0).hosts) == 64


def test_speedup_makes_files_smaller_and_arrivals_and_polls_denser() -> None:
    slow, fast = Scale(), Scale(speedup=4.0)
    assert fast.read_bytes == pytest.approx(slow.read_bytes / 4, rel=1e-5)
    assert fast.poll_interval_seconds == 0.25
    for before, after in zip(slow.trace(TASK), fast.trace(TASK), strict=True):
        assert after.arrival == pytest.approx(before.arrival / 4)
        assert (after.client, after.replicas) == (before.client, before.replicas)


def test_the_trace_is_the_simulators() -> None:
    scale, paper = Scale(), Scale(host_bps=HOST_BPS).fabric(8.0)
    simulated = islice(generate(Workload(), paper, Random("reads 1")), TASK.reads)
    assert [(read.arrival, read.client, read.replicas) for read in scale.trace(TASK)] \
        == [(read.arrival, read.client, read.replicas) for read in simulated]


@pytest.mark.parametrize(("values", "field"), [
    ({"host_bps": 0.0}, "host_bps"), ({"speedup": float("nan")}, "speedup"), ({"host_bps": 1e3}, "host_bps")])
def test_a_scale_that_measures_nothing_is_refused(values: dict[str, float], field: str) -> None:
    with pytest.raises(InvalidSetting, match=field):
        Scale(**values)


def test_each_file_is_named_after_its_holders_and_made_once() -> None:
    trace = Scale().trace(TASK)
    files = files_of(trace)
    assert len(files) == len({read.replicas for read in trace}) < len(trace)
    assert file_of(trace[0]).replicas == trace[0].replicas
    assert all(file.size_bytes == Scale().read_bytes for file in files)


def test_the_content_of_a_file_tells_it_from_others() -> None:
    a, b = StoredFile("/trace/1/a", ("a",), 100), StoredFile("/trace/1/b", ("b",), 100)
    assert len(content(a, 0, 100)) == 100
    assert content(a, 0, 100) != content(b, 0, 100)


def test_links_carry_headers_beside_the_files_bytes() -> None:
    assert wire_factor(9000) == pytest.approx(9014 / 8948)
    assert wire_factor(1500) > wire_factor(9000) > 1


# --------------------------------------------------------------------- replay


def test_reads_begin_at_their_times_whatever_runs() -> None:
    system = Instant(seconds=2.0)
    outcomes = replay(one_after_the_other(10), system, MAYFLOWER, hosts=8)
    assert [outcome.read.arrival for outcome in outcomes] == pytest.approx([0.01 * index for index in range(10)])
    assert all(0 <= outcome.late_seconds < 9 for outcome in outcomes), "one after another the last is 18 s late"
    assert all(outcome.seconds >= 2.0 for outcome in outcomes)
    assert outcomes[0].report.sources == ("p0r0h1",) and system.abandoned == 0


def test_a_read_that_fails_ends_the_replay_with_its_reason() -> None:
    system = Instant(fails=3)
    with pytest.raises(ClusterError, match="the disk is gone"):
        replay(one_after_the_other(10), system, MAYFLOWER, hosts=8)
    assert system.abandoned == 1


def test_reads_that_pile_up_are_called_overload_and_given_up() -> None:
    system = Instant(seconds=60)
    with pytest.raises(Overloaded, match="9 reads are running"):
        replay(one_after_the_other(100), system, MAYFLOWER, hosts=1)
    assert system.abandoned == 1


# ----------------------------------------------------------------- experiment


def test_all_methods_meet_a_seeds_reads_before_the_next_seed_begins() -> None:
    tasks = emulated_tasks(EXPERIMENTS["mayflower-fig4"], Choices(seed=5), runs=2, reads=60)
    assert [task.seed for task in tasks] == sorted(task.seed for task in tasks)
    assert {task.seed for task in tasks} == {5, 6} and {task.reads for task in tasks} == {60}
    first, second = ([task.method.name for task in tasks if task.seed == seed] for seed in (5, 6))
    assert second == first[1:] + first[:1], "the first run of a cluster is not always of the same method"


def test_one_cluster_serves_all_runs_of_a_fabric_and_what_is_done_is_not_repeated(tmp_path: Path) -> None:
    tasks = emulated_tasks(EXPERIMENTS["mayflower-fig7"], Choices(quick=True), runs=1, reads=10)
    built: list[float] = []

    class Building(Instant):
        def __enter__(self) -> "Building":
            return self

        def __exit__(self, *_: object) -> None:
            pass

    def system(scale: Scale, oversubscription: float) -> Building:
        built.append(oversubscription)
        return Building()

    results_file = tmp_path / "results.jsonl"
    first = ResultsFile(results_file, resume=False)
    results = run_emulated(tasks, SMALL, first, lambda done: None, lambda now: None, system)
    assert built == [8.0, 16.0]
    assert [result["task"] for result in results] == [parameters(task, SMALL) for task in tasks]
    assert all(len(result["seconds"]) == 10 and result["machine"]["not_steered"] == 0 for result in results)

    half = "".join(line + "\n" for line in results_file.read_text().splitlines()[:3])
    results_file.write_text(half + '{"task": {"poi')
    again = run_emulated(tasks, SMALL, ResultsFile(results_file, resume=True), lambda done: None, lambda now: None,
                         system)
    assert built == [8.0, 16.0, 16.0]
    assert [result["task"] for result in again] == [result["task"] for result in results]
    assert results_file.read_text().startswith(half)


def test_runs_that_measured_the_processors_are_named() -> None:
    idle, busy = ({"machine": {"switch_cpu_share": share}} for share in (0.3, 0.7))
    assert saturated([idle, busy]) == [busy]


# --------------------------------------------------------------------- agents

ANSWERING = """
import json, sys
hosts = json.loads(sys.stdin.readline())["hosts"]
for line in sys.stdin:
    request = json.loads(line)
    if request["path"] == "/crash":
        sys.exit("out of memory")
    answer = {"id": request["id"], "started": 1.0, "finished": 2.0, "bytes": request["size_bytes"],
              "sources": [request["host"]], "steered": True}
    print(json.dumps({"id": request["id"], "error": "no such file"} if request["path"] == "/none" else answer),
          flush=True)
"""


@pytest.fixture
def agents(tmp_path: Path):
    agents = ReaderAgents([sys.executable, "-c", ANSWERING], {"hosts": {"a": {}}}, tmp_path / "readers.log")
    yield agents
    agents.close()


def test_a_host_is_asked_and_answers(agents: ReaderAgents) -> None:
    assert agents.read("a", "/f", 10).result(15) == ReadReport(1.0, 2.0, 10, ("a",), True)
    with pytest.raises(ReadingFailed, match="no such file"):
        agents.read("a", "/none", 10).result(15)


def test_reads_fail_with_the_log_when_the_reading_program_ends(agents: ReaderAgents) -> None:
    with pytest.raises(ReadingFailed, match="out of memory"):
        agents.read("a", "/crash", 10).result(15)
    with pytest.raises(ReadingFailed, match="out of memory"):
        agents.read("a", "/f", 10).result(15)


def test_an_agreement_has_an_interval_from_batches_of_the_same_reads() -> None:
    emulated = [2.0, 4.0] * 30
    simulated = [seconds * 0.9 for seconds in emulated]
    exact = agreement_of("Mayflower", emulated, [simulated, simulated])
    assert (exact.reads, exact.emulated) == (60, 3.0)
    assert exact.ratio == pytest.approx((0.9, 0.9, 0.9)), "the ratio is the same in every batch"
    simulated[:20] = [seconds * 2 for seconds in simulated[:20]]
    uneven = agreement_of("Mayflower", emulated, [simulated, simulated])
    assert uneven.difference == pytest.approx(0.2)
    assert uneven.ratio.low < 0.9 and uneven.ratio.high > 1.8


def test_few_reads_have_no_interval() -> None:
    assert math.isnan(agreement_of("Mayflower", [1.0] * 30, [[1.0] * 30]).ratio.low)


# ---------------------------------------------------------------------- first reads


def test_every_host_reads_a_small_file_from_others_before_it_counts() -> None:
    system, hosts = Instant(), [host.name for host in SMALL.fabric(8.0).hosts]
    warm_up(system, hosts, MAYFLOWER, lambda message: None)
    assert [host for host, _, _ in system.asked] == hosts
    for host, file, method in system.asked:
        assert method == MAYFLOWER
        assert len(set(file.replicas) - {host}) == 3


def test_a_first_read_that_fails_or_does_not_end_fails_the_experiment(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ReadingFailed, match="the disk is gone"):
        warm_up(Instant(fails=1), ["a", "b"], MAYFLOWER, lambda message: None)
    monkeypatch.setattr(experiment, "WARM_UP_SECONDS", 0.05)
    slow = Instant(seconds=30.0)
    with pytest.raises(ClusterError, match="2 of 2 first reads have not ended"):
        warm_up(slow, ["a", "b"], MAYFLOWER, lambda message: None)
    assert slow.abandoned == 1
