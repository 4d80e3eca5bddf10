"""Commands on the machine that emulates a fabric, outside of all its hosts, work as on a host."""

import contextlib
import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from speedwell.cluster import mounts
from speedwell.cluster.controller_client import session
from speedwell.cluster.errors import NotRunning
from speedwell.cluster.fabric_settings import read_settings
from speedwell.cluster.processes import start_ticks
from speedwell.cluster.supervisor import down, up, up_again
from speedwell.topo.fabric import three_tier
from tests.integration.cluster.executable import Speedwell
from tests.machine_state import in_chroot, left_on_machine
from tests.waiting import wait_until

pytestmark = pytest.mark.root

SMALL = three_tier(pods=2, racks_per_pod=1, hosts_per_rack=2, aggregations_per_pod=1, cores=1, host_bps=80e6)
DATA = bytes(range(256)) * 8192


@pytest.fixture
def cluster(tmp_path):
    before = left_on_machine()
    try:
        yield up(read_settings(fabric=SMALL, directory=tmp_path / "cluster", machine=True, fsync="always",
                               min_replicas=1))
    finally:
        with contextlib.suppress(NotRunning):
            down()
        assert left_on_machine() == before


def test_files_are_put_read_checked_and_mounted_from_the_machine_itself(cluster, tmp_path):
    speedwell, place = Speedwell(tmp_path / "state"), tmp_path / "mnt"
    here = ("--nameserver", cluster["nameserver"], "--controller", cluster["controller"])
    speedwell.ok("put", "-", "/file", *here, stdin=DATA)
    assert speedwell.ok("cat", "/file", *here, binary=True) == DATA
    metrics = session(cluster["controller"]).get(f"{cluster['controller']}/metrics", timeout=30).text
    decisions = [line for line in metrics.splitlines() if line.startswith("speedwell_reads_total")]
    assert sum(float(line.rsplit(" ", 1)[1]) for line in decisions) >= 1
    assert speedwell.ok("fsck", *here).strip().endswith("clean")
    speedwell.ok("mount", place, *here)
    try:
        assert (place / "file").read_bytes() == DATA
        (place / "made here").write_bytes(b"on the mount")
        assert speedwell.ok("cat", "/made here", *here, binary=True) == b"on the mount"
    finally:
        speedwell.ok("umount", place)
    assert mounts.mounted_here(place) is None
    inside = speedwell.ok("enter", "p1r0h0", "speedwell", "cat", "/made here", *here, binary=True)
    assert inside == b"on the mount"


def test_names_resolve_on_every_node_and_in_what_the_controller_says(cluster, tmp_path):
    speedwell, before = Speedwell(tmp_path / "state"), Path("/etc/hosts").read_bytes()
    address = {host.name: host.ip for host in SMALL.hosts}
    curl = ("curl", "-sS", "--fail-with-body", "--cacert", f"{cluster['identity']}/authority.pem", "--cert",
            f"{cluster['identity']}/identity.pem")
    for node in ("p1r0h1", "core0", "machine"):
        assert speedwell.ok("enter", node, "getent", "ahostsv4", "p0r0h0").split()[0] == address["p0r0h0"], node
        health = speedwell.ok("enter", node, *curl, "https://controller:8080/v1/health")
        assert json.loads(health)["switches_connected"] == len(SMALL.switches)
    assert " 0% packet loss" in speedwell.ok("enter", "p1r0h1", "ping", "-c", "1", "-W", "5", "p0r0h0")
    assert " 0% packet loss" in speedwell.ok("enter", "p1r0h1", "ping", "-c", "1", "-W", "5", "edge-p0r0")
    assert Path("/etc/hosts").read_bytes() == before
    known = session(cluster["controller"]).get(f"{cluster['controller']}/v1/hosts", timeout=30).json()["hosts"]
    assert {host["name"]: host["ip"] for host in known if host["name"] != "machine"} == address


def test_what_a_shell_on_a_host_mounts_is_mounted_on_the_machine(cluster, tmp_path):
    speedwell, place = Speedwell(tmp_path / "state"), tmp_path / "mnt"
    here = f"--nameserver {cluster['nameserver']} --controller {cluster['controller']}"
    script = f"speedwell mount {place} {here} && echo mine > {place}/file && cat {place}/file"
    if in_chroot():
        refused = speedwell.run("enter", "p1r0h0", "sh", "-c", script)
        assert refused.returncode == 1 and "cannot mount where / is no mount point" in refused.stderr.decode()
        return
    assert speedwell.ok("enter", "p1r0h0", "sh", "-c", script).endswith("mine\n")
    try:
        assert (place / "file").read_bytes() == b"mine\n"
    finally:
        speedwell.ok("enter", "p0r0h0", "sh", "-c", f"cat {place}/file && speedwell umount {place} && ls -A {place}")
    assert mounts.mounted_here(place) is None and not list(place.iterdir())


def test_flows_are_told_by_owner(cluster, tmp_path):
    speedwell = Speedwell(tmp_path / "state")
    here = ("--nameserver", cluster["nameserver"], "--controller", cluster["controller"])
    bridge = f"unix:{cluster['directory']}/switches/edge-p0r0/br0.mgmt"
    subprocess.run(["ovs-ofctl", "-O", "OpenFlow13", "add-flow", bridge,
                    "cookie=0x1234,table=40,priority=7,ip,nw_dst=10.9.9.9,actions=drop"], check=True, timeout=30)
    counts = json.loads(speedwell.ok("flows", "--json", *here))
    by_switch = {switch["switch_name"]: switch for switch in counts["switches"]}
    assert by_switch.keys() == {switch.name for switch in SMALL.switches}
    assert all(switch["entries"]["base"] > 10 for switch in by_switch.values())
    assert by_switch["edge-p0r0"]["entries"]["strangers"] == 1 == counts["entries"]["strangers"]
    dumped = subprocess.run(["ovs-ofctl", "-O", "OpenFlow13", "dump-flows", bridge], check=True, timeout=30,
                            capture_output=True, text=True).stdout
    assert by_switch["edge-p0r0"]["total"] == dumped.count("cookie=")
    shown = speedwell.ok("flows", *here).splitlines()
    assert shown[0].split() == ["switch", "base", "reads", "coflows", "metadata", "former", "strangers", "in", "all"]
    assert {line.split()[0] for line in shown[1:]} == by_switch.keys() | {"in"}
    stranger = speedwell.ok("flows", "edge-p0r0", "--owner", "strangers", *here)
    assert "ipv4_dst=10.9.9.9" in stranger and "-> drop" in stranger and "1 entries on edge-p0r0" in stranger


def test_up_again_brings_back_a_fabric_whose_supervisor_was_killed_with_its_files_and_settings(cluster, tmp_path):
    speedwell = Speedwell(tmp_path / "state")
    here = ("--nameserver", cluster["nameserver"], "--controller", cluster["controller"])
    speedwell.ok("put", "-", "/file", *here, stdin=DATA)
    assert up_again() == ({**cluster}, False)
    os.kill(cluster["supervisor"]["pid"], signal.SIGKILL)
    wait_until(lambda: start_ticks(cluster["supervisor"]["pid"]) is None, 10, "supervisor survives SIGKILL")
    description, started = up_again()
    assert started and description["nameserver"] == cluster["nameserver"]
    assert speedwell.ok("cat", "/file", *here, binary=True) == DATA
    speedwell.environment["SPEEDWELL_IDENTITY"] = description["identity"]
    state = speedwell.ok("status", "--nameserver", cluster["nameserver"])
    assert "at least 1 for a change, fsync policy always" in state
