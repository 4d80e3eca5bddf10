"""A wheel built from the checkout, in environments that have nothing else but PyFilesystem2 (package `fs`)."""

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


RYU = "ryu==4.34"
OLD_SETUPTOOLS = "setuptools<67"
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(name="wheel", scope="module")
def _wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("wheel")
    unneeded = shutil.ignore_patterns(".*", "__pycache__", "build", "tests", "*.egg-info", "*_pb2*", "*.csv", "*.png")
    source = shutil.copytree(ROOT, place / "source", ignore=unneeded)
    run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(place), str(source)])
    return next(place.glob("*.whl"))


def installed(place: Path, *what: str) -> Path:
    """The folder of programs of a new environment, with the pip that Debian puts into it."""
    run(["/usr/bin/python3", "-m", "venv", str(place)])
    run([str(place / "bin" / "pip"), "install", "-q", "--no-compile", *what])
    return place / "bin"


def test_a_wheel_with_only_the_client_lists_writes_and_reads_beside_pyfilesystem2(
        wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = installed(tmp_path / "venv", f"{wheel}[client]", "fs==2.4.16")
    listed = run([str(programs / "pip"), "list", "--format", "freeze"]).lower()
    assert "fsspec==" in listed and not re.search("ryu|numba|matplotlib|eventlet", listed), listed
    with LocalCluster(tmp_path / "cluster", dataservers=1) as cluster:
        cluster.client().mkdir("/d")
        monkeypatch.setenv("SPEEDWELL_NAMESERVER", cluster.nameserver.address)
        run([str(programs / "python"), "-c", PROGRAM])
        assert run([str(programs / "speedwell"), "ls", "/d"]) == "f\n"
        assert run([str(programs / "speedwell"), "cat", "/d/f"]) == "from a wheel"


def test_the_newest_libraries_that_the_ranges_allow_carry_a_controller_and_a_simulation(
        wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPEEDWELL_STATE_DIRECTORY", str(tmp_path / "state"))
    programs = installed(tmp_path / "venv", f"{wheel}[controller,simulator]")
    identity = subprocess.run([programs / "speedwell", "identity", "issue", "c", "controller", "--directory",
                               tmp_path / "identity"], capture_output=True, text=True, check=True)
    assert identity.stderr == "", "a library warns"
    start = [programs / "speedwell-controller", "--identity", identity.stdout.strip(), "--rest-port", "0",
             "--openflow-port", "0"]
    with subprocess.Popen(start, stdout=subprocess.PIPE, text=True) as controller:
        assert controller.stdout is not None
        try:
            assert controller.stdout.readline().startswith("ready openflow=")
        finally:
            controller.terminate()
    assert controller.returncode == 0
    run([str(programs / "speedwell"), "simulate", "--fabric", "spine-leaf,leaves=2,spines=2,hosts=2", "--method",
         "mayflower+mayflower", "--runs", "1", "--reads", "10", "--output", str(tmp_path / "results")])
    assert "mayflower" in (tmp_path / "results" / "table.csv").read_text()


def test_a_current_pip_builds_ryu_with_the_constraint_that_the_page_names(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "install.md").read_text()
    build = [sys.executable, "-m", "pip", "wheel", "--no-cache-dir", "--no-deps", "-w", str(tmp_path), RYU]
    refused = subprocess.run(build, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300,
                             check=False)
    assert refused.returncode != 0, "nothing has to be done by hand any more: tell docs/install.md"
    [why] = [line.strip() for line in refused.stdout.splitlines() if "AttributeError" in line]
    assert why in page and f"echo '{OLD_SETUPTOOLS}'" in page
    assert OLD_SETUPTOOLS in (ROOT / "build-constraints.txt").read_text().splitlines()
    run([*build, "-q", "--build-constraint", str(ROOT / "build-constraints.txt")])
    assert [path.name for path in tmp_path.glob("*.whl")] == ["ryu-4.34-py3-none-any.whl"]


def run(command: list[str]) -> str:
    done = subprocess.run(command, cwd="/", capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout
