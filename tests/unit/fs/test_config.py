"""Daemons' settings in files: the options of their command lines, by the same rules."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path

import click
import jsonschema
import pytest
from click.testing import CliRunner

from speedwell.cluster import parts
from speedwell.cluster.cli import speedwell
from speedwell.cluster.commands.check_config import ROLES
from speedwell.cluster.errors import ClusterError
from speedwell.controller.errors import InvalidSettings
from speedwell.fs import config
from speedwell.fs.errors import InvalidArgument, SpeedwellError
from speedwell.fs.identity import roles
from speedwell.fs.nameserver.main import command as nameserver

DAEMONS = [role for role in ROLES if role != "controller"]


def daemon(role: str) -> click.Command:
    found = importlib.import_module(f"speedwell.{ROLES[role][0]}").command
    assert isinstance(found, click.Command)
    return found


def write(tmp_path: Path, text: str, role: str = "nameserver") -> Path:
    path = tmp_path / f"{role}.toml"
    path.write_text(text)
    return path


def test_a_file_says_what_options_say(tmp_path: Path) -> None:
    said = config.check(nameserver, write(tmp_path, """
        directory = "/srv/names"
        listen = "10.0.0.1:7400"
        replication = 2
        chunk_size = "1MiB"
        lease = 2.5
        no_tokens = true
    """))
    assert said == nameserver.make_context("x", [
        "--directory", "/srv/names", "--listen", "10.0.0.1:7400", "--replication", "2", "--chunk-size", "1MiB",
        "--lease", "2.5", "--no-tokens"]).params


def test_options_come_before_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, 'directory = "/srv/names"\nreplication = 2\n')
    for arguments in (["--config", str(path), "--replication", "4"], ["--replication", "4", "--config", str(path)]):
        said = nameserver.make_context("x", arguments).params
        assert (said["replication"], said["directory"]) == (4, Path("/srv/names"))


def test_an_option_that_may_be_repeated_is_a_list(tmp_path: Path) -> None:
    path = write(tmp_path, 'id = "a"\nlisten = "h:1"\nnameserver = "h:2"\ndirectory = ["/d1", "/d2"]\n', "dataserver")
    assert config.check(daemon("dataserver"), path)["directories"] == (Path("/d1"), Path("/d2"))


@pytest.mark.parametrize(("text", "complaint"), [
    ("directry = 1", "there is no setting 'directry', but 'directory'"),
    ("new = true", "there is no setting 'new'"),
    ("rebuild_from_what_is_there = true", "there is no setting"),
    ('directory = "/d"\nreplication = "many"', "--replication"),
    ('directory = "/d"\nreplication = true', "replication: True is not a text or number"),
    ('directory = "/d"\nno_tokens = "yes"', "no_tokens: 'yes' is not true or false"),
    ('directory = "/d"\nno_tokens = 1', "no_tokens: 1 is not true or false"),
    ('directory = ["/d"]', "directory: ['/d'] is not a text or number"),
    ('directory = {a = 1}', "is not a text or number"),
    ('directory = "/d"\nchunk_size = -5', "--chunk-size"),
    ('directory = "/d"\nfsync = "sometimes"', "--fsync"),
    ('directory = "/d"\nlisten = "nowhere"', "listen: 'nowhere' is not HOST:PORT"),
    ('directory = "/d"\nlisten = ""', "listen: '' is not HOST:PORT"),
    ('directory = "/d"\ncontroller = "nowhere"', "controller: 'nowhere' is not http://HOST[:PORT]"),
    ('directory = "/d"\nrequest_rate = nan', "--request-rate"),
    ('directory = "/d\\u0000"', "directory: it has a null character"),
    ('directory = "/d"\nreplication = 99', "replication"),
    ("replication = 2", "it lacks directory"),
    ("directory", "it is no TOML"),
    ("", "it lacks directory"),
])
def test_what_is_wrong_is_named(text: str, complaint: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(speedwell, ["check-config", str(write(tmp_path, text))])
    assert done.exit_code != 0
    told = done.output + (done.exception.args[0] if isinstance(done.exception, SpeedwellError) else "")
    assert complaint in told


@pytest.mark.parametrize("wrong", ['id = ""', 'id = "a\\nb"', 'advertise = "a b"', 'other_host = ["h", "h:1"]'])
def test_a_dataserver_s_names_are_checked(wrong: str, tmp_path: Path) -> None:
    good = {"id": '"a"', "listen": '"h:1"', "nameserver": '"h:2"', "directory": '"/d"', "advertise": '"fd00::1"'}
    key, _, value = wrong.partition(" = ")
    path = write(tmp_path, "\n".join(f"{name} = {each}" for name, each in {**good, key: value}.items()))
    with pytest.raises(click.BadParameter, match="is no"):
        config.check(daemon("dataserver"), path)


def test_a_file_that_lacks_what_has_to_be_said_is_named(tmp_path: Path) -> None:
    file = tmp_path / "nameserver.toml"
    file.touch()
    with pytest.raises(InvalidArgument, match=rf"^{re.escape(str(file))}: it lacks directory$"):
        config.check(nameserver, file)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "no-text").write_bytes(b"\xff")
    for name in ("missing", "no-text"):
        with pytest.raises(InvalidArgument, match=f"cannot read the settings in {tmp_path / name}"):
            config.check(nameserver, tmp_path / name)


@pytest.mark.parametrize("role", DAEMONS)
def test_every_daemon_reads_a_file(role: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="there is no setting 'nonsense'"):
        daemon(role).make_context("x", ["--config", str(write(tmp_path, "nonsense = 1", role))])


@pytest.mark.parametrize("role", ROLES)
def test_the_schema_knows_each_setting(role: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(speedwell, ["check-config", "--schema", "--role", role])
    assert done.exit_code == 0, done.output
    schema = json.loads(done.output)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert not schema["additionalProperties"]
    if role in DAEMONS:
        assert schema["properties"].keys() == config.settings_of(daemon(role)).keys()


def test_the_schema_agrees_with_the_check() -> None:
    schema = config.schema(daemon("dataserver"))
    good = {"id": "a", "listen": "h:1", "nameserver": "h:2", "directory": ["/d"], "recovery_rate": "8MiB/s"}
    jsonschema.validate(good, schema)
    for wrong in ({**good, "scrub_rate": "fast"}, {**good, "no_tokens": 1}, {**good, "directory": "/d"},
                  {**good, "more": 1}, {"id": "a"}, {**good, "log_level": "loud"}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)


def test_the_controller_s_file_is_checked_too(tmp_path: Path) -> None:
    good = write(tmp_path, "rest_port = 8081\n", "controller")
    assert CliRunner().invoke(speedwell, ["check-config", str(good)]).exit_code == 0
    wrong = write(tmp_path, "rest_prot = 8081\n", "controller")
    assert isinstance(CliRunner().invoke(speedwell, ["check-config", str(wrong)]).exception, InvalidSettings)


def test_what_role_a_file_has_must_be_known(tmp_path: Path) -> None:
    path = write(tmp_path, "", "king")
    assert isinstance(CliRunner().invoke(speedwell, ["check-config", str(path)]).exception, ClusterError)
    assert CliRunner().invoke(speedwell, ["check-config", "--role", "mount"]).exit_code == 2
    assert CliRunner().invoke(speedwell, ["check-config", "--schema", str(path), "--role", "mount"]).exit_code == 2


@pytest.mark.parametrize("address", ["10.0.0.1", "fd00::1"])
def test_init_writes_files_that_the_daemons_take(address: str, tmp_path: Path) -> None:
    part = parts.Part(tmp_path / 'of "a"\\', "a", address, str(tmp_path / "mnt"), rate_bps=10**9)
    part.directory.mkdir()
    (part.directory / "identity").mkdir()
    found = {"nameserver": "10.0.0.1:7400", "controller": "https://10.0.0.1:8080"}
    chosen = [roles.NAMESERVER, roles.DATASERVER, roles.CONTROLLER, roles.MOUNT]
    without = {"etcd"}      # it has a file of its own kind
    if ":" in address:      # where these work, addresses are of IPv4
        without |= {"timeslices", roles.METADATA_STORE, roles.HOST_AGENT}
    else:
        chosen += [roles.SCHEDULER, roles.METADATA_STORE, roles.HOST_AGENT]
        found |= {"host": address, "scheduler": f"{address}:6657", "turns_key": "k" * 64, "agent_key": "a" * 64}
    parts._write(part, chosen, found)
    written = sorted(part.directory.glob("*.toml"))
    assert {path.stem for path in written} == {*parts.ORDER} - without
    for path in written:
        done = CliRunner().invoke(speedwell, ["check-config", str(path)])
        assert done.exit_code == 0, done.output
    assert config.check(daemon("dataserver"), part.directory / "dataserver.toml")["directories"] == (
        part.directory / "dataserver",)


@pytest.mark.parametrize(("arguments", "complaint"), [
    (["--address", "nowhere"], "--address: 'nowhere' is not an IP address"),
    (["--address", "0.0.0.0"], "--address: others cannot reach a machine at 0.0.0.0"),
    (["--address", "ff02::1"], "--address: others cannot reach a machine at ff02::1"),
    (["--address", "192.0.2.1", "--name", "a b"], "name: "),
    (["--address", "192.0.2.1"], "cannot listen on 192.0.2.1:7400"),
])
def test_an_init_that_is_refused_leaves_nothing(arguments: list[str], complaint: str, tmp_path: Path,
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPEEDWELL_STATE_DIRECTORY", str(tmp_path / "state"))
    done = CliRunner().invoke(speedwell, ["init", str(tmp_path / "new"), "--name", "a", *arguments])
    assert complaint in str(done.exception)
    assert list(tmp_path.iterdir()) == []


def test_init_takes_no_directory_with_other_things_in_it(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("kept")
    done = CliRunner().invoke(speedwell, ["init", str(tmp_path), "--address", "127.0.0.1"])
    assert "is not empty" in str(done.exception)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_the_controllers_of_the_installation_stand_alone(tmp_path: Path) -> None:
    def of(controller: str) -> Path:
        path = tmp_path / "nameserver.toml"
        path.write_text(f'listen = "10.0.0.1:7400"\ndirectory = "/srv"\ncontroller = "{controller}"\n')
        return path

    assert config.check(nameserver, of("installation"))["controller"] == "installation"
    for nonsense in ("Installation", "installation,https://10.0.0.1:8080"):
        with pytest.raises(InvalidArgument, match="is not http"):
            config.check(nameserver, of(nonsense))
