"""What runs on one of several machines: its settings, by which its parts and commands find each other."""

from __future__ import annotations

import json
import socket
import sys
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests
from click.testing import CliRunner
from cryptography.hazmat.primitives.asymmetric import ec

from speedwell.cluster import current, parts, switched
from speedwell.cluster.commands.check_config import check_config
from speedwell.cluster.commands.identity import invite
from speedwell.cluster.commands.up import up
from speedwell.cluster.errors import InvalidSetting, StartFailed
from speedwell.cluster.local_metrics import SUPERVISOR, TARGETS_FILE
from speedwell.cluster.processes import Command, Processes
from speedwell.controller.settings import load_settings
from speedwell.fs.addresses import parse_address
from speedwell.fs.identity import files, places, roles
from speedwell.fs.identity.authority import Authority, Holder
from speedwell.host_agent.channel import agent_key


@pytest.mark.parametrize("name", ['"', "\\", "\n", "\t\x7f", "ü€😀", "#'", "{}"])
def test_settings_say_what_they_shall_whatever_a_directory_is_called(name: str) -> None:
    values = {"path": Path("/") / name, "several": [Path(name), "b"], "yes": True, "number": 3, "nothing": None}
    assert tomllib.loads(parts._toml(values)) == {
        "path": f"/{name}", "several": [name, "b"], "yes": True, "number": 3}


@pytest.mark.parametrize("address", ["127.0.0.1", "fd00::1"])
def test_the_first_machine_is_found_at_its_address(
        address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(places.STATE_VARIABLE, str(tmp_path / "state"))
    found = parts.first(parts.Part(tmp_path / "a", "a", address), [roles.CONTROLLER], 3)
    assert parse_address(found.nameserver, "nameserver") == (address, 7400)
    assert found.nameserver == f"[{address}]:7400" if ":" in address else f"{address}:7400"
    url = urlsplit(str(found.controller))
    assert (url.scheme, url.hostname, url.port) == ("https", address, 8080)
    settings = tomllib.loads((tmp_path / "a/certificates.toml").read_text())
    assert parse_address(settings["listen"], "listen") == (address, 7450)


def test_an_up_that_fails_half_way_stops_what_it_has_started(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(places.STATE_VARIABLE, str(tmp_path / "state"))
    parts.first(parts.Part(tmp_path / "a", "a", "127.0.0.1"), [roles.CONTROLLER], 3)
    waits, fails = "import time; print('ready here', flush=True); time.sleep(600)", "raise SystemExit(1)"
    started = {parts.CERTIFICATES: waits, roles.CONTROLLER: fails}
    monkeypatch.setattr(parts, "command_again",
                        lambda processes, role: Command(role, [sys.executable, "-c", started[role]]))
    processes = Processes(tmp_path / "a")
    with pytest.raises(StartFailed, match="controller stopped"):
        parts.up(processes)
    assert (processes.directory / "logs/certificates.log").read_text() == "ready here\n"
    assert processes.running() == Processes(tmp_path / "a").records == []


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_the_supervisor_of_a_machine_answers_prometheus_from_an_up_with_metrics_on(
        address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(places.STATE_VARIABLE, str(tmp_path / "state"))
    parts.first(parts.Part(tmp_path / "a", "a", address), [], 3)
    idle = "import time; print('ready here', flush=True); time.sleep(600)"
    monkeypatch.setattr(parts, "command_again", lambda processes, role: Command(role, [sys.executable, "-c", idle]))
    processes = Processes(tmp_path / "a")
    try:
        parts.up(processes)
        assert not (tmp_path / "a" / TARGETS_FILE).exists()
        assert parts.up(processes, with_metrics=True) == [SUPERVISOR]
        [target] = json.loads((tmp_path / "a" / TARGETS_FILE).read_text())
        assert target["labels"] == {"process": SUPERVISOR}
        told = requests.get(f"http://{target['targets'][0]}/metrics", timeout=30).text
        assert f'speedwell_process_up{{name="{parts.CERTIFICATES}"}} 1.0' in told
        assert parts.up(processes, with_metrics=True) == []
        processes.stop()
        port = urlsplit(f"//{target['targets'][0]}").port
        with socket.create_server((address, port or 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET):
            assert SUPERVISOR in parts.up(processes)
        assert json.loads((tmp_path / "a" / TARGETS_FILE).read_text()) != [target], "somebody has that port"
    finally:
        processes.stop()


def test_controllers_on_two_machines_that_keep_the_names_share_their_etcd(tmp_path: Path) -> None:
    (tmp_path / "identity").mkdir()
    found = {"nameserver": "10.0.0.1:7400", "controller": "https://10.0.0.1:8080",
             "etcd": "a=10.0.0.1,b=10.0.0.2,c=10.0.0.3"}
    processes = parts._write(parts.Part(tmp_path, "a", "10.0.0.1"), [roles.NAMESERVER, roles.CONTROLLER], found)
    settings = load_settings(tmp_path / "controller.toml")
    assert settings.etcd == ("10.0.0.1:2379", "10.0.0.2:2379", "10.0.0.3:2379")
    assert settings.etcd_identity == tmp_path / "identity/nameserver-a"
    told = parts.invited(processes, "b", [roles.CONTROLLER, roles.NAMESERVER], "")[2]
    assert told["controller"] == "https://10.0.0.1:8080,https://10.0.0.2:8080"
    alone = parts.invited(processes, "d", [roles.CONTROLLER], "10.0.0.4")[2]
    assert alone["controller"] == "https://10.0.0.4:8080"


def test_who_is_invited_after_a_second_controller_knows_both_and_so_do_commands_of_the_first_machine(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(places.STATE_VARIABLE, str(tmp_path / "state"))
    parts.first(parts.Part(tmp_path / "a", "a", "10.0.0.1"), [roles.CONTROLLER], 2, "b=10.0.0.2,c=10.0.0.3")
    processes = Processes(tmp_path / "a")
    words = ["b", roles.CONTROLLER, roles.NAMESERVER, "--installation", str(tmp_path / "a")]
    invited = CliRunner().invoke(invite, words)
    assert invited.output.startswith("speedwell-join-"), invited.exception
    processes.load()
    both = "https://10.0.0.1:8080,https://10.0.0.2:8080"
    assert parts.invited(processes, "d", [roles.MOUNT], "")[2]["controller"] == both
    assert current.in_directory(tmp_path / "a").controller == both
    parts.note_invited(processes, {"controller": "https://10.0.0.4:8080", "scheduler": ""})
    assert processes.settings["controller"] == both, "one that shares no etcd is not of these"


def test_the_authority_goes_on_telling_of_controllers_that_its_machine_heard_of_elsewhere(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of a machine that took the lost one's place, or of an installation of a version that told nobody."""
    monkeypatch.setenv(places.STATE_VARIABLE, str(tmp_path / "state"))
    parts.first(parts.Part(tmp_path / "a", "a", "10.0.0.1"), [roles.CONTROLLER], 2)
    processes, told = Processes(tmp_path / "a"), tmp_path / "a" / "identity" / files.CONTROLLERS
    one, both = "https://10.0.0.1:8080", "https://10.0.0.1:8080,https://10.0.0.2:8080"
    told.write_text(both)
    parts.note_invited(processes, {"controller": both, "scheduler": "10.0.0.3:7600"})
    assert told.read_text() == both and processes.settings["controller"] == one
    told.unlink()
    parts.note_invited(processes, {"controller": one, "scheduler": "10.0.0.3:7600"})
    assert told.read_text() == one
    told.unlink()
    parts.remember(processes)
    assert told.read_text() == one


def test_a_machine_whose_controller_leads_nobody_else_goes_on_asking_that_one(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(places.STATE_VARIABLE, str(tmp_path / "state"))
    own, others = "https://10.0.0.4:8080", "https://10.0.0.1:8080,https://10.0.0.2:8080"
    directory = tmp_path / "d"
    Authority.make(directory / "identity").issue("reader-d", roles.READER)
    found = {"nameserver": "10.0.0.1:7400", "controller": own, "etcd": ""}
    (directory / "identity" / "authority.key").rename(tmp_path / "key")     # the authority is elsewhere
    processes = parts._write(parts.Part(directory, "d", "10.0.0.4"), [roles.CONTROLLER, roles.DATASERVER], found)
    assert tomllib.loads((directory / "dataserver.toml").read_text())["controller"] == own
    (directory / "identity" / files.CONTROLLERS).write_text(others)
    parts.remember(processes)
    assert parts.controllers(processes) == current.in_directory(directory).controller == own


def test_a_file_in_place_of_an_installation_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    refused = CliRunner().invoke(up, ["--local", str(tmp_path / "file")])
    assert str(refused.exception) == f"--local: {tmp_path}/file is not a directory"


@pytest.mark.parametrize("others", [
    "b=10.0.0.2", "b=10.0.0.2,c=10.0.0.2", "b=10.0.0.2,b=10.0.0.3", "a=10.0.0.2,c=10.0.0.3", "b=10.0.0.1,c=10.0.0.3",
    "b=10.0.0.2,c", "b=10.0.0.2,c=host", "=10.0.0.2,c=10.0.0.3", "b=10.0.0.2,c=10.0.0.3,", "b/=10.0.0.2,c=10.0.0.3"])
def test_machines_that_cannot_keep_the_names_together_are_refused_and_nothing_is_made(
        others: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match="--etcd: "):
        parts.first(parts.Part(tmp_path / "a", "a", "10.0.0.1"), [roles.DATASERVER], 3, others)
    assert not (tmp_path / "a").exists()


def test_who_keeps_the_names_gets_a_nameserver_and_a_member_of_etcd_by_its_token(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(places.STATE_VARIABLE, str(tmp_path / "state"))
    found = parts.first(parts.Part(tmp_path / "a", "a", "10.0.0.1"), [roles.DATASERVER], 2, "b=10.0.0.2,c=fd00::3")
    assert found.nameserver == "10.0.0.1:7400,10.0.0.2:7400,[fd00::3]:7400"
    processes = Processes(tmp_path / "a")
    chosen, address, told = parts.invited(processes, "c", [roles.NAMESERVER], "")
    assert (chosen, address) == ([roles.NAMESERVER, roles.ETCD], "fd00::3")
    (tmp_path / "c").mkdir()
    joined = parts._write(parts.Part(tmp_path / "c", "c", "10.9.9.9"), chosen, told)
    settings = tomllib.loads((tmp_path / "c/nameserver.toml").read_text())
    assert (settings["listen"], settings["replication"]) == ("[fd00::3]:7400", 2)
    assert settings["etcd"] == "10.0.0.1:2379,10.0.0.2:2379,[fd00::3]:2379"
    options = parts.command_again(joined, roles.ETCD).env
    assert options["ETCD_INITIAL_CLUSTER"] == parts.command_again(processes, roles.ETCD).env["ETCD_INITIAL_CLUSTER"]
    assert options["ETCD_LISTEN_PEER_URLS"] == "https://[fd00::3]:2380"
    assert options["ETCD_PEER_CLIENT_CERT_AUTH"] == options["ETCD_CLIENT_CERT_AUTH"] == "true"
    for machine, given in (("d", ""), ("c", "10.0.0.9")):
        with pytest.raises(InvalidSetting, match="the machines that keep the names are a="):
            parts.invited(processes, machine, [roles.NAMESERVER], given)
    assert parts.invited(processes, "d", [roles.MOUNT], "")[:2] == ([roles.MOUNT], "")
    chosen, _, told = parts.invited(processes, "c", [roles.DATASERVER], "", replaces=True)
    assert chosen == [roles.DATASERVER, roles.NAMESERVER, roles.ETCD] and told["replaces"] == "c"


def test_what_works_with_the_switches_comes_with_its_settings_keys_and_those_it_obeys(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(places.STATE_VARIABLE, str(tmp_path / "state"))
    parts.first(parts.Part(tmp_path / "a", "a", "127.0.0.1", rate_bps=10**9), [
        roles.CONTROLLER, roles.SCHEDULER, roles.METADATA_STORE, roles.HOST_AGENT], 3)
    processes = Processes(tmp_path / "a")
    assert parts.present(processes) == [
        parts.CERTIFICATES, roles.CONTROLLER, "timeslices", roles.METADATA_STORE, roles.HOST_AGENT]
    for role in parts.present(processes):
        checked = CliRunner().invoke(check_config, [str(tmp_path / "a" / parts.settings_file(role))])
        assert checked.output == f"{tmp_path}/a/{role}.toml is good for speedwell-{role}\n", checked.exception

    def invited(*chosen: str) -> dict[str, Any]:
        certified, address, told = parts.invited(processes, "b", chosen, "127.0.0.2")
        (tmp_path / "b" / "identity").mkdir(parents=True, exist_ok=True)
        parts._write(parts.Part(tmp_path / "b", "b", address), certified, told)
        return {"roles": certified, **tomllib.loads((tmp_path / "b/host-agent.toml").read_text())}

    monkeypatch.setattr(switched, "link_bps", lambda address: 10**10)
    joined = invited(roles.READER, roles.HOST_AGENT)
    assert joined["roles"] == [roles.READER]
    assert (joined["scheduler"], joined["rate"]) == ("127.0.0.1:6657", 10**10)
    master = (tmp_path / "a/agent-keys/all.key").read_bytes().strip()
    assert Path(joined["key_file"]).read_bytes().strip() == agent_key(master, "127.0.0.2")
    # a second scheduler stands by, and agents know both
    _, _, told = parts.invited(processes, "c", [roles.SCHEDULER], "127.0.0.3")
    parts.note_invited(processes, told)
    assert told["standby_for"] == "127.0.0.1:6657"
    assert invited(roles.READER, roles.HOST_AGENT)["scheduler"] == "127.0.0.1:6657,127.0.0.3:6657"
    for chosen, address, why in (([roles.HOST_AGENT], "127.0.0.2", "name one more role"),
                                 ([roles.SCHEDULER], "127.0.0.4", "one stands by"),
                                 ([roles.METADATA_STORE], "", "needs the machine's IPv4 address"),
                                 ([roles.SCHEDULER], "::2", "needs the machine's IPv4 address")):
        with pytest.raises(InvalidSetting, match=why):
            parts.invited(processes, "d", chosen, address)


@pytest.mark.parametrize(("chosen", "why"), [
    ([roles.SCHEDULER], "no machine has a controller yet"), ([roles.METADATA_STORE], "no machine has a controller"),
    ([roles.CONTROLLER, roles.HOST_AGENT], "no machine has the role scheduler yet")])
def test_what_obeys_nobody_is_refused_and_nothing_is_made(
        chosen: list[str], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(places.STATE_VARIABLE, str(tmp_path / "state"))
    with pytest.raises(InvalidSetting, match=why):
        parts.first(parts.Part(tmp_path / "a", "a", "127.0.0.1"), chosen, 3)
    assert not (tmp_path / "a").exists()


def test_an_invitation_that_is_refused_takes_nothing_from_the_machine_it_would_replace(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(places.STATE_VARIABLE, str(tmp_path / "state"))
    parts.first(parts.Part(tmp_path / "a", "a", "127.0.0.1"), [roles.DATASERVER], 3)
    authority = Authority(tmp_path / "a/identity")
    key = ec.generate_private_key(ec.SECP256R1()).public_key()
    authority.enrol({Holder("b", roles.DATASERVER): key, Holder("mount-b", roles.MOUNT): key})

    def invited(*arguments: str) -> str:
        found = CliRunner().invoke(invite, [*arguments, "--replace", "--installation", str(tmp_path / "a")])
        return found.output or str(found.exception)

    before = authority.certificates()
    assert invited("b", roles.DATASERVER, "--uids", "5").startswith("--uids: only")
    assert "'here' is not HOST:PORT" in invited("b", roles.DATASERVER, "--authority", "here")
    assert invited("b", roles.CONTROLLER).startswith("--address: the role controller")
    assert invited("a", roles.DATASERVER) == "--replace: the certificate of a is this machine's own"
    assert authority.certificates() == before
    assert invited("b", roles.DATASERVER).startswith("speedwell-join-")
    assert {each.name for each in authority.certificates() if each.revoked_at is not None} == {"b", "mount-b"}
