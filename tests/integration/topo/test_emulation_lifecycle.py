"""Starting and stopping: nothing stays behind, whatever happens, and one emulation at a time."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from speedwell.topo.emulation import (
    AddressConflict,
    Emulation,
    EmulationError,
    EmulationRunning,
    InvalidSettings,
    MissingRequirement,
    management,
)
from speedwell.topo.emulation.reservation import RUN_DIRECTORY
from speedwell.topo.fabric import Fabric, spine_leaf
from tests.integration.topo.machine import nothing_stays_behind, processes, running
from tests.waiting import wait_until

pytestmark = pytest.mark.root

PROJECT = Path(__file__).parents[3]
OWNER = """
import signal, sys
from pathlib import Path
from speedwell.topo.emulation import Emulation
from speedwell.topo.fabric import spine_leaf
directory = Path(sys.argv[1])
with Emulation(spine_leaf(leaves=2, spines=1, hosts_per_leaf=1), directory=directory, controller=None) as emulation:
    emulation.popen("r0h0", ["setsid", "sleep", "1000"], log=directory / "sleep.log")
    print("started", flush=True)
    signal.pause()
"""


@pytest.fixture
def fabric() -> Fabric:
    return spine_leaf(leaves=2, spines=1, hosts_per_leaf=1)


@pytest.fixture
def emulation(fabric: Fabric, tmp_path: Path) -> Emulation:
    return Emulation(fabric, directory=tmp_path, controller=None)


def test_stop_leaves_nothing_behind_not_even_what_services_started(emulation: Emulation, tmp_path: Path) -> None:
    with nothing_stays_behind():
        emulation.start()
        emulation.popen("r0h0", ["sh", "-c", "setsid iperf3 --server & iperf3 --server --port 5555"],
                        log=tmp_path / "iperf3.log")
        emulation.network["r1h0"].cmd("iperf3 --server &")
        wait_until(lambda: running("iperf3") >= 3, 15, "the services did not start")
        emulation.stop()
        assert running("ovs-vswitchd") == 0


def test_emulation_can_be_started_again_after_stop(emulation: Emulation) -> None:
    with nothing_stays_behind():
        for _ in range(2):
            with emulation:
                assert emulation.run("r0h0", ["true"]).returncode == 0
        with pytest.raises(EmulationError, match="not started"):
            emulation.run("r0h0", ["true"])


def test_failure_of_one_switch_takes_the_whole_start_back(emulation: Emulation, tmp_path: Path) -> None:
    (tmp_path / "switches").mkdir()
    (tmp_path / "switches" / "leaf1").write_text("in the way")
    with nothing_stays_behind(), pytest.raises(EmulationError, match="leaf1: cannot use the directory"):
        emulation.start()


def test_interrupt_during_the_start_takes_everything_back(emulation: Emulation) -> None:
    def interrupt_at_the_switches(step: str) -> None:
        if step.startswith("starting"):
            os.kill(os.getpid(), signal.SIGINT)

    with nothing_stays_behind(), pytest.raises(KeyboardInterrupt):
        emulation.start(interrupt_at_the_switches)


def test_second_emulation_is_refused_and_the_first_goes_on(emulation: Emulation, fabric: Fabric,
                                                           tmp_path: Path) -> None:
    with emulation:
        second = Emulation(fabric, directory=tmp_path / "second", controller=None)
        with pytest.raises(EmulationRunning, match=f"an emulation runs already .*process {os.getpid()}"):
            second.start()
        assert running("ovs-vswitchd") == 3
        assert emulation.run("r0h0", ["true"]).returncode == 0
        assert not (tmp_path / "second").exists()


def test_next_start_removes_what_a_killed_owner_left(emulation: Emulation, tmp_path: Path) -> None:
    with nothing_stays_behind():
        owner = subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path / "killed")], stdout=subprocess.PIPE,
                                 text=True, cwd=PROJECT)
        assert owner.stdout is not None
        with owner.stdout:
            assert owner.stdout.readline() == "started\n"
        owner.kill()
        owner.wait()
        left = set(processes())
        assert running("ovs-vswitchd") == 3
        with emulation:
            assert not left & set(processes())
            assert running("ovs-vswitchd") == 3


def test_interrupted_owner_leaves_nothing(tmp_path: Path) -> None:
    with nothing_stays_behind():
        owner = subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path)], stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE, text=True, cwd=PROJECT)
        assert owner.stdout is not None
        assert owner.stdout.readline() == "started\n"
        owner.send_signal(signal.SIGINT)
        owner.communicate(timeout=60)


def test_address_in_use_is_refused_naming_the_interface(emulation: Emulation) -> None:
    subprocess.run(["ip", "link", "add", "busy0", "type", "bridge"], check=True)
    try:
        subprocess.run(["ip", "address", "add", "10.255.7.1/24", "dev", "busy0"], check=True)
        with nothing_stays_behind(), pytest.raises(AddressConflict, match=r"10\.255\.7\.1/24 of busy0"):
            emulation.start()
    finally:
        subprocess.run(["ip", "link", "del", "busy0"], check=True)


def test_wider_network_of_the_machine_is_no_conflict(emulation: Emulation) -> None:
    subprocess.run(["ip", "link", "add", "wide0", "type", "bridge"], check=True)
    try:
        subprocess.run(["ip", "address", "add", "10.1.2.3/8", "dev", "wide0"], check=True)
        subprocess.run(["ip", "link", "set", "wide0", "up"], check=True)
        with emulation:
            assert emulation.run("r0h0", ["ping", "-c", "1", "-W", "1", "10.255.0.1"]).returncode == 0
    finally:
        subprocess.run(["ip", "link", "del", "wide0"], check=True)


def way_to(address: str) -> str:
    return subprocess.run(["ip", "-o", "route", "get", address], check=True, capture_output=True, text=True).stdout


def test_the_machines_resolver_is_reached_as_before(emulation: Emulation, tmp_path: Path,
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    resolver, listed = "10.255.255.53", tmp_path / "resolv.conf"
    listed.write_text(f"search example.org\nnameserver 192.0.2.1\nnameserver {resolver}\n")
    monkeypatch.setattr(management, "_RESOLVERS", (listed, tmp_path / "none"))
    before, routes = way_to(resolver), subprocess.run(["ip", "route"], check=True, capture_output=True).stdout
    with emulation:
        assert way_to(resolver) == before
        assert "dev swmgmt0" in way_to("10.255.255.54")
    assert subprocess.run(["ip", "route"], check=True, capture_output=True).stdout == routes


def test_a_resolver_with_the_address_of_a_node_is_refused(emulation: Emulation, tmp_path: Path,
                                                         monkeypatch: pytest.MonkeyPatch) -> None:
    listed = tmp_path / "resolv.conf"
    listed.write_text("nameserver 10.255.1.2\n")
    monkeypatch.setattr(management, "_RESOLVERS", (listed,))
    with nothing_stays_behind(), pytest.raises(AddressConflict, match=r"the DNS resolver 10\.255\.1\.2 of this"):
        emulation.start()


def test_foreign_interface_of_our_name_is_left_alone(emulation: Emulation) -> None:
    subprocess.run(["ip", "link", "add", "swmgmt0", "type", "bridge"], check=True)
    try:
        with nothing_stays_behind(), pytest.raises(AddressConflict, match="swmgmt0 exists"):
            emulation.start()
    finally:
        subprocess.run(["ip", "link", "del", "swmgmt0"], check=True)


def test_damaged_record_is_reported_not_guessed(emulation: Emulation) -> None:
    RUN_DIRECTORY.mkdir(exist_ok=True)
    record = RUN_DIRECTORY / "emulation.json"
    record.write_text("{")
    try:
        with pytest.raises(EmulationError, match="damaged"):
            emulation.start()
    finally:
        record.unlink()


def test_algorithm_the_kernel_lacks_is_refused(fabric: Fabric, tmp_path: Path) -> None:
    with nothing_stays_behind(), pytest.raises(MissingRequirement, match="no 'imaginary', only"):
        Emulation(fabric, directory=tmp_path, congestion_control="imaginary").start()


def test_settings_out_of_range_are_refused_before_anything_is_made(fabric: Fabric, tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match="mtu"):
        Emulation(fabric, directory=tmp_path, mtu=70_000)


def test_switches_find_a_controller_that_starts_after_them(fabric: Fabric, tmp_path: Path) -> None:
    with Emulation(fabric, directory=tmp_path, controller=("10.255.0.1", 6699)) as emulation:
        with pytest.raises(EmulationError, match="no connection from spine0, leaf0, leaf1"):
            emulation.wait_connected(0.3)
        assert "tcp:10.255.0.1:6699" in emulation.ovs_vsctl("leaf0", "get-controller", "br0")
