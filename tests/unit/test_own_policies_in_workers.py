"""Workers of a sweep are processes of their own: what unpickles a task of an experiment has the user's policies."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

OWN = """
from controller.policy.registry import Kind, Policy
for kind in Kind:
    globals()[kind.value] = Policy(kind, "own", "one for a test", "a test", make=lambda *arguments: None)
"""


@pytest.mark.parametrize(("experiment", "kind"), [
    ("papers.xco", "TIMESLICES"), ("papers.sinbad", "PLACEMENT"), ("papers.mincof", "COFLOW"),
    ("commands.custom_reads", "REPLICA"), ("papers.mayflower", "PATH")])
def test_a_worker_offers_the_policies_of_the_users_file(experiment: str, kind: str, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    code = (f"import evaluation.{experiment}\n"
            f"from controller.policy.registry import POLICIES, Kind\nprint(POLICIES.get(Kind.{kind}, 'own').name)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False,
                          env={**os.environ, "SPEEDWELL_POLICY_PATH": str(tmp_path / "own.py")})
    assert done.stdout == "own\n", done.stderr
