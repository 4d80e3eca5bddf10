"""`speedwell up` on a fabric of which something was killed."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from speedwell.cluster import supervisor
from speedwell.cluster.commands.up import up
from speedwell.cluster.fabric import FabricCluster
from speedwell.cluster.fabric_settings import FabricSettings
from speedwell.cluster.processes import start_ticks
from speedwell.topo.emulation import TooLarge
from speedwell.topo.fabric import fat_tree, spine_leaf


@pytest.mark.parametrize("what", ["hosts", "switches", "machine"])
def test_a_fabric_of_which_a_node_is_gone_is_started_again_with_its_files(
        what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen(["sleep", "600"]) as process:
        alive, gone = {"pid": process.pid}, {"pid": 1 << 23}
        nodes: dict[str, Any] = {"hosts": {"h": alive}, "switches": {"s": alive}, "machine": alive}
        settings = FabricSettings(fabric=spine_leaf(leaves=1, spines=1, hosts_per_leaf=1))
        state = {"fabric": "f", "directory": str(tmp_path), "settings": settings.model_dump(mode="json"),
                 "supervisor": {"pid": process.pid, "start_ticks": start_ticks(process.pid)}}
        started: list[FabricSettings] = []
        monkeypatch.setattr(supervisor, "STATE_FILE", tmp_path / "fabric.json")
        monkeypatch.setattr(supervisor.os, "geteuid", lambda: 0)
        monkeypatch.setattr(supervisor, "up", lambda chosen, progress: started.append(chosen))
        (tmp_path / "fabric.json").write_text(json.dumps({**state, **nodes}))
        assert not supervisor.up_again()[1] and process.poll() is None
        nodes[what] = gone if what == "machine" else {"x": gone}
        (tmp_path / "fabric.json").write_text(json.dumps({**state, **nodes}))
        said: list[str] = []
        assert supervisor.up_again(said.append)[1] and started == [settings]
        assert process.wait(10) == -9 and "of the fabric is gone" in said[0]


def test_a_fabric_of_an_earlier_version_is_started_again_without_identities(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = FabricSettings(fabric=spine_leaf(leaves=1, spines=1, hosts_per_leaf=1), nameservers=3)
    started: list[FabricSettings] = []
    monkeypatch.setattr(supervisor, "STATE_FILE", tmp_path / "fabric.json")
    monkeypatch.setattr(supervisor, "up", lambda chosen, progress: started.append(chosen))
    for identity in ({}, {"identity": True}):
        saved = settings.model_dump(mode="json", exclude={"identity"}) | identity
        (tmp_path / "fabric.json").write_text(json.dumps({
            "settings": saved, "supervisor": {"pid": 1 << 23, "start_ticks": 1}}))
        supervisor.up_again()
    assert [each.identity for each in started] == [False, True]


@pytest.mark.parametrize("error, told", [
    (OSError(28, "No space left on device", "/somewhere"), "/somewhere: No space left on device"),
    (TimeoutError("nothing came"), "the machine: nothing came")])
def test_what_the_machine_refuses_ends_the_supervisor_with_a_word_in_its_log(
        error: OSError, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    settings = FabricSettings(directory=tmp_path, fabric=spine_leaf(leaves=1, spines=1, hosts_per_leaf=1))

    def announced(_: object) -> object:
        raise error

    monkeypatch.setattr(supervisor, "_announced", announced)
    supervisor._supervise(FabricCluster(settings))
    assert json.loads(capsys.readouterr().out) == {"error": told}
    assert caplog.messages == [told]


def test_a_fabric_that_is_too_large_is_refused_before_anything_of_the_last_one_is_cleared(
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor.os, "geteuid", lambda: 0)
    monkeypatch.setattr(supervisor, "_refuse_second", lambda: pytest.fail("another one counts first"))
    monkeypatch.setattr(supervisor, "_clear_leftovers", lambda progress: pytest.fail("it is cleared"))
    with pytest.raises(TooLarge, match="4394 hosts"):
        supervisor.up(FabricSettings(fabric=fat_tree(k=26), machine=True))


@pytest.mark.parametrize(("options", "systems", "placement"), [
    (["--plain"], [], "sinbad"),
    (["--plain", "--coflows", "varys"], ["coflows by varys"], "sinbad"),
    ([], ["coflows by coflow-plus", "turns by xco-plus", "metadata on 3 stores"], "sinbad-plus"),
    (["--all"], ["coflows by coflow-plus", "turns by xco-plus", "metadata on 3 stores"], "sinbad-plus"),
    (["--host-agents", "xco", "--metadata-stores", "1"],
     ["coflows by coflow-plus", "turns by xco", "metadata on 1 store"], "sinbad-plus")])
def test_all_are_on_but_for_plain_and_each_option_of_a_system_goes_before_it(
        options: list[str], systems: list[str], placement: str, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[FabricSettings] = []

    def start(settings: FabricSettings, progress: object) -> dict[str, Any]:
        started.append(settings)
        return {}

    monkeypatch.setattr(supervisor, "up", start)
    result = CliRunner().invoke(up, ["--fabric", "spine-leaf,leaves=3,spines=1,hosts=2", "--json", *options])
    assert result.exit_code == 0, result.output
    assert (started[0].systems, started[0].placement_policy) == (systems, placement)
    refused = CliRunner().invoke(up, ["--local", "/proc/nowhere", *options])
    assert not options or "goes with --fabric" in refused.output
