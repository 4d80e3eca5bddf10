"""A user who has the client alone, from a wheel, reads in a program and in a notebook."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.local_cluster import LocalCluster

ROOT = Path(__file__).parents[3]
PROGRAM = """
import fsspec
with fsspec.open("speedwell:///d/f", "rb") as file:
    file.seek(4)
    assert file.read() == b"a notebook"
"""
CELLS = (
    "import fsspec",
    "speedwell = fsspec.filesystem('speedwell', nameserver='{nameserver}', identity='{identity}')",
    "speedwell.ls('/d', detail=False)",
    "with speedwell.open('/d/f', 'rt') as file:\n    words = file.read().split()\nwords",
)


@pytest.fixture(scope="module", name="programs")
def _programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of an environment that has the wheel's client."""
    place = tmp_path_factory.mktemp("wheel")
    unneeded = shutil.ignore_patterns(".*", "__pycache__", "build", "results", "tests", "*.egg-info", "*_pb2*")
    source = shutil.copytree(ROOT, place / "source", ignore=unneeded)
    run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(place), str(source)])
    wheel = next(place.glob("*.whl"))
    run(["/usr/bin/python3", "-m", "venv", str(place / "venv")])
    programs = place / "venv" / "bin"
    run([str(programs / "pip"), "install", "-q", f"{wheel}[client]", "nbclient==0.11.0", "ipykernel==7.4.0"])
    return programs


@pytest.mark.timeout(600)
def test_a_program_and_a_notebook_read_with_an_identity(
        programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with LocalCluster(tmp_path / "cluster", dataservers=1, secure=True) as cluster:
        cluster.client().mkdir("/d")
        cluster.client().create("/d/f")
        with cluster.client().open_append("/d/f") as appender:
            appender.write(b"for a notebook")
        monkeypatch.setenv("SPEEDWELL_NAMESERVER", cluster.nameserver.address)
        monkeypatch.setenv("SPEEDWELL_IDENTITY", str(cluster.identity("reader")))
        run([str(programs / "python"), "-c", PROGRAM])
        monkeypatch.delenv("SPEEDWELL_IDENTITY")
        cells = [{"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [], "source": cell.format(
            nameserver=cluster.nameserver.address, identity=cluster.identity("reader"))} for cell in CELLS]
        notebook = tmp_path / "reads.ipynb"
        notebook.write_text(json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 4}))
        run([str(programs / "jupyter-execute"), "--inplace", str(notebook)])
    told = [output["data"]["text/plain"] for cell in json.loads(notebook.read_text())["cells"]
            for output in cell["outputs"]]
    assert ["".join(each) for each in told] == ["['/d/f']", "['for', 'a', 'notebook']"]


def run(command: list[str]) -> str:
    done = subprocess.run(command, cwd="/", capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout
