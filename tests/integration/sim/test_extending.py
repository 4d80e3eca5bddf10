"""What docs/extending.md shows is what works: its files are made and its commands run."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path
from random import Random
from runpy import run_path

import pytest
from click.testing import CliRunner, Result

from speedwell.cluster.commands.up import up
from speedwell.controller.main import command as controller
from speedwell.controller.policy.network.graph import Network
from speedwell.controller.policy.placements.request import Candidate, PlacementRequest, place_batch
from speedwell.controller.policy.placements.sinbad import MeasuredBy
from speedwell.evaluation.commands.experiment import experiment
from speedwell.topo.fabric import Fabric
from speedwell.topo.fabric_spec import PARAMETERS

ROOT = Path(__file__).parents[3]
GUIDE = (ROOT / "docs" / "extending.md").read_text()
FILES = dict(re.findall(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```", GUIDE, re.DOTALL))
COMMANDS = "".join(re.findall(r"<!-- run -->\n```\n(.*?)```", GUIDE, re.DOTALL)).splitlines()
SIMULATIONS = [command for command in COMMANDS if re.match("speedwell (simulate|experiment) ", command)]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def run(command: list[str], directory: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: what is offered is the whole process's."""
    return subprocess.run([sys.executable, "-m", *command], cwd=directory, capture_output=True, text=True,
                          timeout=600, check=False, env={**os.environ, **variables})


@pytest.mark.parametrize("command", [
    pytest.param(command, marks=pytest.mark.full if "sinbad" in command else ()) for command in SIMULATIONS])
def test_the_simulations_of_the_guide_compare_the_policy_of_its_file(command: str, directory: Path) -> None:
    words = shlex.split(command)
    own = words[next(place for place, word in enumerate(words) if word in ("--method", "--policy")) + 1]
    done = run(["speedwell.cluster.cli", *words[1:]], directory)
    assert done.returncode == 0, done.stderr
    assert own.startswith(("widest", "fewest", "in-turn")) and own in done.stdout


def test_a_policy_that_fails_is_told_with_its_file_and_line(directory: Path) -> None:
    text = (directory / "widest.py").read_text()
    broken = re.sub(r"^( +)return .*", r"\1return [][0]", text, flags=re.MULTILINE)
    (directory / "widest.py").write_text(broken)
    done = run(["speedwell.cluster.cli", "simulate", "--policy-path", "widest.py", "--method", "widest+ecmp",
                "--files", "50", "--reads", "20", "--runs", "1"], directory)
    assert done.returncode == 1 and re.fullmatch(
        r"speedwell: .*widest\.py, line \d+: IndexError: list index out of range\n", done.stderr), done.stderr


def test_the_placement_policy_of_the_guide_takes_every_machine_in_its_turn(directory: Path) -> None:
    module = run_path(str(directory / "in_turn.py"))
    network, hosts = Network(), [f"h{number}" for number in range(6)]
    network.add_switch("s")
    for host in hosts:
        network.add_host(host)
        network.add_link(host, "s", 1e9)
        network.add_link("s", host, 1e9)
    policy = module["in_turn"].make(network, Random(1), MeasuredBy.SWITCHES)
    candidates = tuple(Candidate(host, rack=f"r{number // 2}") for number, host in enumerate(hosts))
    request = PlacementRequest("h0", 8e9, candidates)
    placed = [place_batch(policy, [(number, request)], now=0.0)[number] for number in range(4)]
    taken = Counter(each.host for placement in placed for each in placement.destinations)
    assert taken == dict.fromkeys(hosts, 2)
    assert all(len({int(each.host[1]) // 2 for each in placement.destinations}) >= 2 for placement in placed)
    assert {placement.duration_seconds for placement in placed} == {8.0}


def test_every_command_that_takes_a_policy_refuses_one_that_there_is_not(directory: Path) -> None:
    """So those of the guide that build a fabric name what their files offer."""
    for command in (command for command in COMMANDS if command.startswith("speedwell up")):
        words = shlex.split(command)[1:]
        refused = run(["speedwell.cluster.cli", *words[:-1], "no-such"], directory)
        assert refused.returncode and "'no-such' is not one of " in refused.stderr
        assert words[-1] in refused.stderr.replace(",", " ").split()


def test_a_policy_of_a_file_is_in_every_help(directory: Path) -> None:
    for command, arguments, variables in (
            (["speedwell.cluster.cli", "up"], ["--policy-path", "widest.py"], {}),
            (["speedwell.controller.main"], ["--policy-path", "widest.py"], {}),
            (["speedwell.cluster.cli", "simulate"], [], {"SPEEDWELL_POLICY_PATH": str(directory / "widest.py")})):
        done = run([*command, *arguments, "--help"], directory, **variables)
        assert re.search(r"\bwidest\b", done.stdout), (command, done.stderr)


def run_beside_a_package(command: list[str], directory: Path, group: str, entry: str,
                         ) -> subprocess.CompletedProcess[str]:
    package = directory / "own-1.dist-info"
    package.mkdir(exist_ok=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: own\nVersion: 1\n")
    (package / "entry_points.txt").write_text(f"[{group}]\n{entry}\n")
    return run(["speedwell.cluster.cli", *command], directory, PYTHONPATH=f"{directory}:{ROOT}")


def test_an_installed_package_offers_its_policies_by_an_entry_point(directory: Path) -> None:
    done = run_beside_a_package(["up", "--help"], directory, "speedwell.policies", "widest = widest")
    assert re.search(r"\bwidest\b", done.stdout), done.stderr


def test_the_experiment_of_the_guide_is_listed_and_run_like_those_of_the_papers(directory: Path) -> None:
    [(group, entry)] = re.findall(r'entry-points\."(speedwell\.experiments)"\]\n(.*)\n', GUIDE)
    own = directory, group, entry.replace('"', "")
    listed = run_beside_a_package(["experiment", "--list"], *own)
    assert "by-locality" in listed.stdout and "mayflower-fig4" in listed.stdout, listed.stderr
    done = run_beside_a_package(["experiment", "by-locality", "--quick", "--policy", "random+ecmp"], *own)
    assert done.returncode == 0, done.stderr
    lines = (directory / "results/by-locality/results.jsonl").read_text().splitlines()
    runs = Counter((task["point"], task["method"]["name"]) for task in (json.loads(line)["task"] for line in lines))
    methods = "nearest+ecmp", "mayflower+mayflower", "random+ecmp"
    assert runs == {(point, method): 2 for point in ("20%", "80%") for method in methods}
    reported = run_beside_a_package(["report", "results/by-locality", "--output", "report.html"], *own)
    assert reported.returncode == 0, reported.stderr


@pytest.mark.parametrize(("value", "reason"), [
    ("nothing_like_that", "ModuleNotFoundError: No module named 'nothing_like_that'"),
    ("widest", "that is no speedwell.evaluation.experiment.Experiment")])
def test_an_entry_point_that_leads_to_no_experiment_is_refused(value: str, reason: str, directory: Path) -> None:
    own = directory, "speedwell.experiments", f"by-locality = {value}"
    for command in ("--list", "by-locality", "all"):
        done = run_beside_a_package(["experiment", command], *own)
        assert done.returncode in (1, 2) and "Traceback" not in done.stderr
        assert f"entry point by-locality = {value}: {reason}" in done.stderr, done.stderr


@pytest.mark.parametrize(("text", "reason"), [
    ("import nothing_like_that", "No module named 'nothing_like_that'"),
    ("x = 1", "there is no speedwell.controller.policy.registry.Policy in it"),
    ("from speedwell.controller.policy.registry import Kind, Policy\np = Policy(Kind.PATH, 'ecmp', '', '', None)",
     "there is a path policy 'ecmp' already"),
    (None, "there is no Python file"),
])
def test_a_file_that_cannot_be_offered_is_refused_in_one_line(text: str | None, reason: str, tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    if text is not None:
        file.write_text(text)
    done = run(["speedwell.controller.main", "--policy-path", "own.py"], tmp_path)
    assert done.returncode == 2 and reason in done.stderr and "own.py" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


def help_of(command: object) -> Result:
    return CliRunner().invoke(command, ["--help"])  # type: ignore[arg-type]


def test_the_commands_of_the_guide_have_the_options_that_it_names() -> None:
    for command in (up, experiment, controller):
        assert "--policy-path" in help_of(command).output


def test_the_guide_names_every_parameter_of_each_family() -> None:
    for family, names in PARAMETERS.items():
        row = next(line for line in GUIDE.splitlines() if line.startswith(f"| `{family}` |"))
        assert re.findall(r"`(\w+)`", row) == [*names], family


def test_the_schema_in_the_documentation_is_that_of_the_code() -> None:
    assert json.loads((ROOT / "docs" / "reference" / "fabric.schema.json").read_text()) == Fabric.json_schema()
