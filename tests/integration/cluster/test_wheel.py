"""A wheel built from the checkout, in an environment that has nothing else but PyFilesystem2 (package `fs`)."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.local_cluster import LocalCluster

ROOT = Path(__file__).parents[3]
PROGRAM = """
import fs
import fsspec
assert fs.open_fs("mem://").listdir("/") == []
with fsspec.open("speedwell:///d/f", "wb") as file:
    file.write(b"from a wheel")
"""


@pytest.mark.timeout(600)
def test_a_wheel_with_only_the_client_lists_writes_and_reads_beside_pyfilesystem2(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unneeded = shutil.ignore_patterns(".*", "__pycache__", "build", "results", "tests", "*.egg-info", "*_pb2*")
    source = shutil.copytree(ROOT, tmp_path / "source", ignore=unneeded)
    run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(tmp_path), str(source)])
    wheel = next(tmp_path.glob("*.whl"))
    run(["/usr/bin/python3", "-m", "venv", str(tmp_path / "venv")])
    programs = tmp_path / "venv" / "bin"
    run([str(programs / "pip"), "install", "-q", f"{wheel}[client]", "fs==2.4.16"])
    installed = run([str(programs / "pip"), "list", "--format", "freeze"]).lower()
    assert "fsspec==" in installed and not re.search("ryu|numba|matplotlib|eventlet", installed), installed
    with LocalCluster(tmp_path / "cluster", dataservers=1) as cluster:
        cluster.client().mkdir("/d")
        monkeypatch.setenv("SPEEDWELL_NAMESERVER", cluster.nameserver.address)
        run([str(programs / "python"), "-c", PROGRAM])
        assert run([str(programs / "speedwell"), "ls", "/d"]) == "f\n"
        assert run([str(programs / "speedwell"), "cat", "/d/f"]) == "from a wheel"


def run(command: list[str]) -> str:
    done = subprocess.run(command, cwd="/", capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout
