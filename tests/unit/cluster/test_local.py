"""Settings of a local installation: what is refused before anything is started."""

import os
import socket
from itertools import pairwise
from pathlib import Path

import pytest

from speedwell.cluster import local, local_metrics
from speedwell.cluster.errors import AlreadyRunning, InvalidSetting, InvalidState, NotRunning
from speedwell.cluster.local import LocalSettings
from speedwell.cluster.local_commands import dataserver_command, durability_options, listen_address
from speedwell.cluster.processes import Processes, ProcessRecord, start_ticks

RECORDED = {"kind": "local", "mount": None, "dataservers": 3, "replication": 2, "chunk_size_bytes": 1 << 20,
            "nameservers": 1, "etcd_ports": [], "addresses": {"nameserver": "127.0.0.1:4000"}, "namespace": True,
            "fsync": None, "min_replicas": None, "directories_per_server": 1, "identity": False,
            "encrypt_data": False}


def installation(directory: Path, **changes: object) -> Processes:
    processes = Processes(directory)
    processes.settings = {**RECORDED, **changes}
    processes.save()
    return processes


@pytest.mark.parametrize(("settings", "message"), [
    ({"dataservers": 65}, "--dataservers: 65 is not between 1 and 64"),
    ({"replication": 4}, r"--replication: 4 is not between 1 and the number of dataservers \(3\)"),
    ({"dataservers": 2, "replication": 3}, "--replication: 3 is not between"),
    ({"nameservers": 8}, "--nameservers: 8 is not between 1 and 7"),
    ({"metadata_servers": 8}, "--metadata-servers: 8 is not between 2 and 7"),
    ({"metadata_servers": 1}, "--metadata-servers: .* name 2 or more"),
    ({"metadata_servers": 2, "nameservers": 2}, "--metadata-servers: it does not go with --nameservers"),
    ({"chunk_size_bytes": 100}, "--chunk-size: 100 B is not between 64.0 KiB and 1.0 TiB"),
    ({"chunk_size_bytes": 1 << 50}, "--chunk-size"),
])
def test_settings_out_of_range_are_refused_by_name(settings, message, tmp_path):
    with pytest.raises(InvalidSetting, match=message):
        local.up(LocalSettings(tmp_path / "c", **settings))
    assert Processes(tmp_path / "c").records == []


def test_fewer_dataservers_than_the_stored_files_are_on_are_refused(tmp_path):
    installation(tmp_path)
    with pytest.raises(InvalidSetting, match="was made with 3; the files on the others would lose replicas"):
        local.up(LocalSettings(tmp_path, dataservers=2))


def test_another_number_of_nameservers_is_refused(tmp_path):
    installation(tmp_path)
    with pytest.raises(InvalidSetting, match="was made with 1; that cannot be changed later"):
        local.up(LocalSettings(tmp_path, nameservers=3))


@pytest.mark.parametrize(("recorded", "settings", "message"), [
    ({"nameservers": 2, "shared": True}, {"nameservers": 2}, "--metadata-servers: .* was made with it"),
    ({"nameservers": 2}, {"metadata_servers": 2}, "--metadata-servers: .* was made without it"),
    ({"nameservers": 2, "shared": True}, {"metadata_servers": 3}, "--metadata-servers: .* was made with 2"),
])
def test_another_kind_or_number_of_metadata_servers_is_refused(tmp_path, recorded, settings, message):
    installation(tmp_path, **recorded)
    with pytest.raises(InvalidSetting, match=message):
        local.up(LocalSettings(tmp_path, **settings))


def test_settings_not_given_are_those_of_the_last_time(tmp_path):
    processes = installation(tmp_path)
    chosen = local._choose(LocalSettings(tmp_path), tmp_path, processes)
    assert chosen == {**RECORDED, "metrics": {}}


def test_a_process_whose_port_for_prometheus_was_taken_gets_another_unless_it_runs(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        found = local_metrics.addresses({"d0": address, "d1": address}, ["d0", "d1", "d2"], ["d1"], "127.0.0.1")
    assert found["d1"] == address
    assert len(set(found.values())) == 3


def test_an_installation_gets_identities_but_while_one_runs_that_has_none(tmp_path):
    processes = installation(tmp_path, identity=False)
    del processes.settings["identity"]
    assert local._choose(LocalSettings(tmp_path), tmp_path, processes)["identity"]
    assert not local._choose(LocalSettings(tmp_path, identity=False), tmp_path, processes)["identity"]
    ticks = start_ticks(os.getpid())
    assert ticks is not None
    processes.records = [ProcessRecord("d0", os.getpid(), ticks, 0, ["x"], "x.log")]
    assert not local._choose(LocalSettings(tmp_path), tmp_path, processes)["identity"]


def test_fsync_and_min_replicas_are_remembered_and_given_to_the_nameserver(tmp_path):
    processes = installation(tmp_path, fsync="always", min_replicas=3)
    chosen = local._choose(LocalSettings(tmp_path, min_replicas=1), tmp_path, processes)
    assert durability_options(chosen) == ["--fsync", "always", "--min-replicas", "1"]
    assert durability_options(RECORDED) == []


def test_each_dataserver_gets_its_directories_which_may_become_more_but_not_fewer(tmp_path):
    processes = installation(tmp_path, directories_per_server=2)
    command = dataserver_command(processes, "d1", "127.0.0.1:1").argv
    given = [value for option, value in pairwise(command) if option == "--directory"]
    assert given == [str(tmp_path / "dataservers" / name) for name in ("d1", "d1-disk2")]
    assert local._choose(LocalSettings(tmp_path), tmp_path, processes)["directories_per_server"] == 2
    more = local._choose(LocalSettings(tmp_path, directories_per_server=3), tmp_path, processes)
    assert more["directories_per_server"] == 3
    with pytest.raises(InvalidSetting, match="made with 2; the replicas in the others would be lost"):
        local._choose(LocalSettings(tmp_path, directories_per_server=1), tmp_path, processes)


def test_two_dataservers_mean_two_replicas_unless_said_otherwise(tmp_path):
    chosen = local._choose(LocalSettings(tmp_path, dataservers=2), tmp_path, Processes(tmp_path))
    assert (chosen["dataservers"], chosen["replication"]) == (2, 2)


def test_other_settings_for_a_running_installation_are_refused(tmp_path):
    processes = installation(tmp_path)
    ticks = start_ticks(os.getpid())
    assert ticks is not None
    processes.records = [ProcessRecord("nameserver", os.getpid(), ticks, 0, ["x"], "x.log")]
    processes.save()
    with pytest.raises(AlreadyRunning, match="runs with --replication 2; stop it with `speedwell down"):
        local.up(LocalSettings(tmp_path, replication=3))
    with pytest.raises(AlreadyRunning, match=r"runs with --chunk-size 1\.0 MiB"):
        local.up(LocalSettings(tmp_path, chunk_size_bytes=1 << 21))


def test_a_mount_inside_the_data_or_around_it_is_refused(tmp_path):
    for directory, mount in (("c", "c/mnt"), ("m/c", "m"), ("c", "c")):
        with pytest.raises(InvalidSetting, match="must not lie inside each other"):
            local.up(LocalSettings(tmp_path / directory, mount=tmp_path / mount))


def test_an_installation_of_another_kind_is_left_alone(tmp_path):
    installation(tmp_path, kind="fabric")
    with pytest.raises(InvalidState, match="another kind"):
        local.up(LocalSettings(tmp_path))


def test_a_file_in_place_of_the_directory_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InvalidSetting, match="is not a directory"):
        local.up(LocalSettings(tmp_path / "file"))


def test_down_of_a_directory_without_an_installation_is_refused(tmp_path):
    with pytest.raises(NotRunning, match="holds no local Speedwell installation"):
        local.down(tmp_path)
    with pytest.raises(NotRunning):
        local.down(tmp_path / "not there")
    assert list(tmp_path.iterdir()) == []


def test_down_of_a_stopped_installation_stops_nothing(tmp_path):
    installation(tmp_path)
    assert local.down(tmp_path) == []


def test_the_port_of_last_time_is_taken_again_only_while_it_is_free():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert listen_address(address) == "127.0.0.1:0"
    assert listen_address(address) == address
    assert listen_address(None) == "127.0.0.1:0"
