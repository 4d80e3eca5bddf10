"""The files that an HDFS on an emulated fabric is configured by, and what is said where Java is missing."""

import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from speedwell.evaluation.commands.experiment import experiment
from speedwell.evaluation.hdfs import configuration, libraries
from speedwell.topo.fabric import three_tier
from speedwell.topo.fabric.addresses import MANAGEMENT_NETWORK

FABRIC = three_tier(pods=2, racks_per_pod=2, hosts_per_rack=2, host_bps=80e6)


def test_the_topology_script_prints_pod_and_rack_of_every_address_in_the_order_asked(tmp_path):
    script = tmp_path / "topology.sh"
    configuration.write_topology_script(script, FABRIC)
    asked = [address for host in reversed(FABRIC.hosts) for address in (host.ip, host.management_ip, host.name)]
    answers = subprocess.run([script, *asked], capture_output=True, text=True, check=True).stdout.splitlines()
    assert answers == [f"/{host.pod}/{host.rack}" for host in reversed(FABRIC.hosts) for _ in range(3)]


@pytest.mark.parametrize("address", ["10.0.0.11", "10x0.0.1", "*", "", "10.0.0.1 10.0.0.2", "$(id)"])
def test_an_address_that_is_no_host_is_in_the_unknown_rack(tmp_path, address):
    script = tmp_path / "topology.sh"
    configuration.write_topology_script(script, FABRIC)
    answers = subprocess.run([script, address], capture_output=True, text=True, check=True).stdout
    assert answers == f"{configuration.UNKNOWN_RACK}\n"


def test_racks_of_a_fabric_all_have_the_depth_that_hadoop_demands(tmp_path):
    script = tmp_path / "topology.sh"
    configuration.write_topology_script(script, FABRIC)
    asked = [*(host.management_ip for host in FABRIC.hosts), "192.0.2.1"]
    racks = subprocess.run([script, *asked], capture_output=True, text=True, check=True).stdout.split()
    assert {rack.count("/") for rack in racks} == {2}


def test_a_site_file_gives_back_what_was_written_whatever_its_characters(tmp_path):
    values = {"plain": "1", "path": "/a & b/<c>", "quoted": "\"'"}
    configuration.write_site(tmp_path / "site.xml", values)
    properties = ElementTree.parse(tmp_path / "site.xml").getroot().findall("property")
    assert {each.findtext("name"): each.findtext("value") for each in properties} == values


def test_clients_connect_by_fabric_address_and_rpc_stays_on_the_management_network():
    host = FABRIC.hosts[3]
    values = configuration.common(Path("/d")) | configuration.host(host, Path("/d"), "http://10.255.0.1:8080")
    assert values["dfs.datanode.hostname"] == host.ip
    assert values["dfs.client.use.datanode.hostname"] == "true"
    for name in ("dfs.datanode.ipc.address", "dfs.datanode.http.address"):
        assert values[name].startswith(f"{host.management_ip}:")
    assert MANAGEMENT_NETWORK.network_address.packed[:2] == bytes(map(int, values["fs.defaultFS"][7:].split(".")[:2]))


def test_hosts_have_data_directories_of_their_own():
    directories = {configuration.host(host, Path("/d"), "")["dfs.datanode.data.dir"] for host in FABRIC.hosts}
    assert len(directories) == len(FABRIC.hosts)


def test_the_hosts_file_names_every_address_once(tmp_path):
    configuration.write_hosts(tmp_path / "hosts", FABRIC)
    addresses = [line.split()[0] for line in (tmp_path / "hosts").read_text().splitlines()]
    assert len(addresses) == len(set(addresses))
    assert {address for host in FABRIC.hosts for address in (host.ip, host.management_ip)} < set(addresses)


def test_without_java_or_maven_the_experiment_says_what_to_install_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    output = tmp_path / "results"
    done = CliRunner().invoke(experiment, ["mayflower-fig8", "--emulate", "--output", str(output)])
    assert done.exit_code == 0, done.output
    assert done.output.startswith("mayflower-fig8 is skipped: a real HDFS needs Java and Maven")
    assert "apt-get install default-jdk-headless maven" in done.output
    assert done.output.count("\n") == 1
    assert not output.exists()


def test_a_jre_without_a_compiler_is_not_enough_and_named(tmp_path, monkeypatch):
    for program in ("java", "mvn"):
        (tmp_path / program).write_text("#!/bin/sh\n")
        (tmp_path / program).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(libraries.JavaMissing, match="javac is not installed"):
        libraries.require_java()


def test_a_fetch_that_fails_says_what_maven_said_and_leaves_no_half_cache(tmp_path, monkeypatch):
    programs = tmp_path / "bin"
    programs.mkdir()
    for program in ("java", "javac", "mvn"):
        (programs / program).write_text("#!/bin/sh\necho cannot reach the repository >&2\nexit 1\n")
        (programs / program).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    with pytest.raises(libraries.LibrariesUnavailable, match="cannot reach the repository"):
        libraries.prepare(tmp_path / "cache")
    assert [path for path in (tmp_path / "cache").iterdir() if path.is_dir()] == []
