"""One file of the user's has policies of every kind, and whatever takes policies offers them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

OWN = """
from speedwell.controller.policy.registry import Kind, Policy
for kind in Kind:
    globals()[kind.value] = Policy(kind, f"own{kind.value}", "one for a test", "a test", make=lambda *arguments: None)
"""


@pytest.mark.parametrize(("experiment", "kind"), [
    ("papers.xco", "TIMESLICES"), ("papers.sinbad", "PLACEMENT"), ("papers.mincof", "COFLOW"),
    ("commands.custom_reads", "REPLICA"), ("papers.mayflower", "PATH")])
def test_a_worker_of_a_sweep_offers_the_policies_of_the_users_file(experiment: str, kind: str,
                                                                   tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    code = (f"import speedwell.evaluation.{experiment}\n"
            "from speedwell.controller.policy.registry import POLICIES, Kind\n"
            f"print(POLICIES.get(Kind.{kind}, 'own{kind.lower()}').name)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False,
                          env={**os.environ, "SPEEDWELL_POLICY_PATH": str(tmp_path / "own.py")})
    assert done.stdout == f"own{kind.lower()}\n", done.stderr


@pytest.mark.parametrize(("command", "kinds"), [
    (["speedwell.cluster.cli", "up"], {"replica", "path", "coflow", "placement", "timeslices"}),
    (["speedwell.cluster.cli", "simulate"], {"replica", "path"}),
    (["speedwell.cluster.cli", "experiment"], {"replica", "path", "coflow", "placement", "timeslices"}),
    (["speedwell.controller.main"], {"replica", "path", "coflow", "placement"}),
    (["speedwell.controller.timeslices.main"], {"timeslices"})])
def test_the_help_of_whatever_takes_policies_has_those_of_the_users_file(
        command: list[str], kinds: set[str], tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    done = subprocess.run([sys.executable, "-m", *command, "--policy-path", "own.py", "--help"], capture_output=True,
                          text=True, timeout=60, check=False, cwd=tmp_path)
    assert set(re.findall(r"\bown(\w+)", done.stdout.replace("own.py", ""))) == kinds, done.stderr
