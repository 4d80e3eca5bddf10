"""Every script under scripts/ does its work, with the least work that it can be given."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BRIEF = {
    "bench-append": "--size-mib 4 --runs 1",
    "bench-controller": "--k 4 --runs 1 --baseline none",
    "bench-coflow": "--coflows 20 --flows 2 --decisions 5",
    "bench-decision": "--pods 2 --racks 2 --flows 20 --decisions 100 --runs 1",
    "bench-metadata": "--clients 1 --count 10 --runs 1 --identity",
    "bench-stream": "--size-mib 4 --runs 1 --identity",
    "fuzz": "--seconds 1 host-agents",
}
LONG = {
    "bench-failover": "--runs 1",
    "bench-host-agent": "--seconds 1 --rounds 1",
    "bench-meters": "--rate-mbps 5 --burst-seconds 0.25 --congestion-control cubic --seconds 2",
    "bench-mount": "--size-mb 4 --files 10 --small 10 --tree 20 --runs 1 --system disk",
    "bench-page": "--viewers 1 --seconds 1",
    "bench-parts": "--size-mib 4 --runs 1",
    "bench-placement": "--rounds 1 --seconds 1",
    "bench-queues": "--seconds 2",
    "bench-read-cache": "--size-mb 4 --reads 2",
    "bench-recovery": "--files 50",
    "bench-rest": "--simulate fat-tree-8 --in-flight 10 --seconds 1 --rate 20",
    "bench-sim": "--reads 200",
    "bench-takeover": "--rounds 1",
    "bench-turns": "--senders 2 --seconds 2 --system nothing",
    "compare-mincof-readings": "--runs 1",
}
ELSEWHERE = {
    "check": "it runs unit tests", "test": "it runs all tests", "setup": "before all tests",
    "release": "tests/unit/cluster/test_package.py",
    "demo": "tests/integration/cluster/test_demo.py", "install-suites": "scripts/test runs it first",
    "run-xfstests": "it takes hours", "site": "tests/unit/test_documentation.py",
    "debian-package": "tests/integration/cluster/test_debian_package.py",
    "bench_pairs.py": "bench-metadata", "page_contents.py": "tests/integration/controller/test_page_in_browser.py",
    "bench_peers.py": "bench-mount", "pass_through.py": "bench-mount", "bench_reads.py": "bench-rest",
    "openflow_switches.py": "bench-rest", "simgrid_flows.cpp": "bench-sim",
}

REFERENCES = {"bench-mount": ROOT.parent / "shared/reference/fsbench.py"}


def test_every_script_is_run() -> None:
    assert {path.name for path in (ROOT / "scripts").iterdir() if path.is_file()} == {*BRIEF, *LONG, *ELSEWHERE}


@pytest.mark.root
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", [*BRIEF, *(pytest.param(name, marks=pytest.mark.full) for name in LONG)])
def test_a_script_does_its_work(name: str) -> None:
    if name in REFERENCES and not REFERENCES[name].is_file():
        pytest.skip(f"{REFERENCES[name]} is not there")
    done = subprocess.run([ROOT / "scripts" / name, *(BRIEF | LONG)[name].split()], capture_output=True, text=True,
                          check=False)
    assert done.returncode == 0 and done.stdout and "Traceback" not in done.stderr, done.stdout + done.stderr


@pytest.mark.root
@pytest.mark.timeout(600)
@pytest.mark.parametrize("load", ["files", "parts"])
def test_turns_are_measured_on_what_the_filesystem_reads(load: str) -> None:
    done = subprocess.run([ROOT / "scripts" / "bench-turns", "--senders", "2", "--seconds", "2", "--load", load,
                           "--block-kib", "2048", "--system", "xco-plus", "--json"], capture_output=True, text=True,
                          check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["xco-plus"]["used"] > 0.3


def test_the_hook_refuses_a_commit_that_the_fast_checks_refuse(tmp_path: Path) -> None:
    def git(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=tmp_path / "clone",
                              capture_output=True, text=True, timeout=120, check=False)

    subprocess.run(["git", "clone", "-q", "--shared", ROOT, tmp_path / "clone"], check=True)
    [command] = re.findall(r"`git (config core\.hooksPath \S+)`", (ROOT / "CONTRIBUTING.md").read_text())
    assert git(*command.split()).returncode == 0
    (tmp_path / "clone" / ".venv").symlink_to(ROOT / ".venv")
    # as they are here, committed or not
    for name in ("scripts/check", "scripts/hooks/pre-commit"):
        (tmp_path / "clone" / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / "clone" / name)
    git("branch", "--force", "main", "HEAD")
    (tmp_path / "clone" / "cluster" / "balance.py").open("a").write("import os\n")
    refused = git("commit", "-qam", "Break a rule")
    assert refused.returncode != 0 and "F401" in refused.stdout + refused.stderr, refused
    assert git("log", "-1", "--format=%s").stdout.strip() != "Break a rule"
    assert git("commit", "-qam", "Break a rule", "--no-verify").returncode == 0
