"""What the package is built of."""

import re
import shutil
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
import yaml

from speedwell.cluster.commands.version import installed, running
from speedwell.fs import command_line
from speedwell.fs.command_line import explain
from speedwell.fs.proto import speedwell_pb2, speedwell_pb2_grpc

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
FIRST_RELEASE = "0.1.0"
"""As long as CHANGELOG.md has none."""


def test_a_build_holds_the_modules_of_all_protocols(tmp_path: Path) -> None:
    build = [sys.executable, "setup.py", "-q", "build_py", "--build-lib", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=120)
    protocols = sorted(path.stem for path in (ROOT / "fs" / "proto").glob("*.proto"))
    assert len(protocols) > 1
    for name in protocols:
        for ending in (".proto", "_pb2.py", "_pb2.pyi", "_pb2_grpc.py"):
            assert (tmp_path / "speedwell" / "fs" / "proto" / f"{name}{ending}").stat().st_mtime > 0
    program = "import speedwell.fs.client; print(speedwell.fs.client.__file__)"
    told = subprocess.run([sys.executable, "-P", "-c", program], cwd="/", env={"PYTHONPATH": str(tmp_path)},
                          capture_output=True, text=True, check=True, timeout=120)
    assert told.stdout.startswith(str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["speedwell"], "names that other packages may have"


@pytest.mark.parametrize("target", [*PROJECT["scripts"].values(), *PROJECT["entry-points"]["fsspec.specs"].values()])
def test_every_entry_point_leads_somewhere(target: str) -> None:
    module, _, name = target.partition(":")
    assert callable(getattr(import_module(module), name))


def test_the_ranges_of_grpc_and_protobuf_begin_where_generated_code_takes_them() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    [generator] = set(re.findall(r'"grpcio-tools==([\d.]+)"', text))
    assert text.count(f"grpcio-tools=={generator}") == 2
    assert generator == speedwell_pb2_grpc.GRPC_GENERATED_VERSION
    [least] = re.findall(r'"grpcio>=([\d.]+)"', text)
    assert f"{least}.0" == generator
    [(lowest, highest)] = re.findall(r'"protobuf>=([\d.]+),<(\d+)"', text)
    made_for = re.findall(r"# Protobuf Python Version: ([\d.]+)", Path(speedwell_pb2.__file__).read_text())[0]
    assert made_for.startswith(lowest) and int(highest) == int(made_for.partition(".")[0]) + 1


@pytest.mark.parametrize(("module", "extra"), [
    ("plyvel", "server"), ("numba", "simulator"), ("networkx", "fabric"), ("ryu", "controller"),
    ("prometheus_client", "server"), ("mfusepy", "client"), ("pyroute2", "server"), ("distributed", "dask")])
def test_a_library_that_is_missing_is_told_with_the_extra_that_brings_it(module: str, extra: str) -> None:
    error = ModuleNotFoundError(f"No module named '{module}'", name=module)
    assert explain(error) == (f"this needs {module}: run scripts/setup, or pip install -e '.[{extra}]', in a clone "
                              "of Speedwell")


def test_who_has_a_wheel_is_told_of_no_clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_line, "__file__", str(tmp_path / "speedwell" / "fs" / "command_line.py"))
    said = command_line.missing("plyvel", "server")
    assert said == "this needs plyvel: install the extra server, as with pip install 'FILE.whl[server]'"


@pytest.mark.parametrize(("daemon", "library", "extra"), [
    ("controller", "pydantic", "controller"), ("nameserver", "plyvel", "server"), ("dataserver", "plyvel", "server"),
    ("metadata_store", "plyvel", "server"), ("host_agent", "prometheus_client.core", "server"),
    ("timeslices", "numpy", "controller")])
def test_a_daemon_that_lacks_a_library_names_the_extra_in_one_line(daemon: str, library: str, extra: str) -> None:
    program = f"""if True:
        import sys
        sys.modules["{library}"] = None
        from speedwell.cluster.executables import {daemon}
        {daemon}()"""
    command = [sys.executable, "-c", program, "--help"]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert told.returncode == 1
    assert re.fullmatch(rf"speedwell-[a-z-]+: this needs {library}: .*'\.\[{extra}\]'.*\n", told.stderr), told.stderr


@pytest.mark.parametrize(("role", "library", "extra"), [
    ("controller", "pydantic", "controller"), ("timeslices", "numpy", "controller"),
    ("nameserver", "plyvel", "server")])
def test_check_config_names_the_extra_of_the_daemon_whose_settings_it_cannot_read(
        role: str, library: str, extra: str) -> None:
    program = f"""if True:
        import sys
        sys.modules["{library}"] = None
        from speedwell.cluster.cli import run
        sys.exit(run(["check-config", "--role", "{role}", "--schema"]))"""
    told = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False,
                          timeout=120)
    assert told.returncode == 1
    assert re.fullmatch(rf"speedwell: this needs {library}: .*'\.\[{extra}\]'.*\n", told.stderr), told.stderr


def test_the_controllers_lease_in_etcd_needs_no_library_of_the_servers() -> None:
    program = "import sys; sys.modules['plyvel'] = None; import speedwell.controller.lease_keeper"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, timeout=120)


def test_man_pages_of_what_can_be_used_are_made_with_only_client_and_server(tmp_path: Path) -> None:
    program = """if True:
        import sys
        for name in ("ryu", "eventlet", "networkx", "numpy", "numba", "matplotlib", "pydantic", "pyroute2"):
            sys.modules[name] = None
        from speedwell.cluster.cli import run
        sys.exit(run(["man", sys.argv[1]]))"""
    told = subprocess.run([sys.executable, "-c", program, str(tmp_path)], cwd=ROOT, capture_output=True, text=True,
                          check=False, timeout=120)
    assert told.returncode == 0, told.stderr
    pages = {page.name for page in (tmp_path / "man1").iterdir()}
    assert {"speedwell-up.1", "speedwell-put.1", "speedwell-node-list.1"} <= pages
    assert "speedwell-fabric.1" not in pages


def test_a_module_that_nobody_brings_is_unexpected() -> None:
    assert "unexpected ModuleNotFoundError" in explain(ModuleNotFoundError("No module named 'x'", name="nobodys"))


def versions(root: Path) -> list[str]:
    """What each place says: the package's, the citation's, and the newest that the changelog knows or announces."""
    released = re.findall(r"^## (\d+\.\d+\.\d+) \([\d-]{10}\)$", (root / "CHANGELOG.md").read_text(), re.MULTILINE)
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
    cited = yaml.safe_load((root / "CITATION.cff").read_text())["version"]
    return [project, cited, *(released[:1] or [FIRST_RELEASE])]


def test_package_citation_and_changelog_name_one_version() -> None:
    assert len(set(versions(ROOT))) == 1, versions(ROOT)


def test_one_command_makes_a_release_that_agrees_everywhere_and_none_twice(tmp_path: Path) -> None:
    def run(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)

    (tmp_path / "scripts").mkdir()
    for name in ("pyproject.toml", "CITATION.cff", "CHANGELOG.md", "scripts/release"):
        shutil.copy(ROOT / name, tmp_path / name)
    changelog = tmp_path / "CHANGELOG.md"       # of which a release has just taken all that was unreleased, perhaps
    changelog.write_text(changelog.read_text().replace("## Unreleased\n",
                                                       "## Unreleased\n\n### Changed\n\n- All.\n", 1))
    for command in (["init", "--quiet"], ["config", "user.name", "a"], ["config", "user.email", "a@b"], ["add", "."],
                    ["commit", "--quiet", "--message", "a"]):
        assert run("git", *command).returncode == 0
    changes = changelog.read_text()
    hook = tmp_path / ".git/hooks/pre-commit"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\nexit 1\n")
    hook.chmod(0o755)
    for version, told in (("0.0.1", "name no earlier version"), ("7.8.9", "nothing is changed, as `git")):
        refused = run("scripts/release", version)
        assert refused.returncode == 1 and told in refused.stderr and "Traceback" not in refused.stderr
        assert run("git", "status", "--porcelain").stdout == run("git", "tag").stdout == ""
    hook.unlink()
    assert run("scripts/release", "7.8.9").returncode == 0
    assert set(versions(tmp_path)) == {"7.8.9"}
    assert run("git", "describe").stdout == "v7.8.9\n"
    assert run("git", "cat-file", "-t", "v7.8.9").stdout == "tag\n"
    assert running(tmp_path) == f"{installed()} (v7.8.9)"
    told = changelog.read_text()
    assert told.index("## Unreleased") < told.index("## 7.8.9") < told.index("### Changed")
    assert len(told.splitlines()) == len(changes.splitlines()) + 2
    for wrong in ("7.8.9", "7.8.8", "8", "7.8.09", "v9.0.0"):
        refused = run("scripts/release", wrong)
        assert refused.returncode == 1 and refused.stderr.startswith("release: "), refused
    assert run("git", "tag").stdout == "v7.8.9\n"
    assert run("git", "status", "--porcelain").stdout == ""


def test_the_citation_names_the_five_papers() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert len(citation["references"]) == 5
    assert all(paper["title"] and paper["authors"] and paper["year"] for paper in citation["references"])


def test_a_clone_tells_the_commit_that_runs_and_whether_files_differ_from_it(tmp_path: Path) -> None:
    assert running(tmp_path) == installed()
    (tmp_path / "file").touch()
    for command in (["init", "--quiet"], ["config", "user.name", "a"], ["config", "user.email", "a@b"], ["add", "."],
                    ["commit", "--quiet", "--message", "a"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True, timeout=60)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=tmp_path, check=True, capture_output=True,
                            text=True, timeout=60).stdout.strip()
    assert running(tmp_path) == f"{installed()} ({commit})"
    (tmp_path / "file").write_text("changed")
    assert running(tmp_path) == f"{installed()} ({commit}-dirty)"
