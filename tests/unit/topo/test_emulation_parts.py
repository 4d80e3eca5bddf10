"""The parts of the emulation that need neither root nor Open vSwitch."""

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from speedwell.topo.emulation import (
    EmulationError,
    EmulationRunning,
    InvalidSettings,
    MissingRequirement,
    Settings,
    TooLarge,
    capacity,
    processes,
    requirements,
    shaping,
)
from speedwell.topo.emulation.reservation import Reservation
from speedwell.topo.fabric import fat_tree, spine_leaf
from tests.waiting import wait_until

CONTROLLER = ("10.255.0.1", 6653)


@pytest.mark.parametrize(("make", "word"), [
    (lambda: Settings(mtu=100), "mtu"),
    (lambda: Settings(mtu=65500), "mtu"),
    (lambda: Settings(queue_packets=0), "queue_packets"),
    (lambda: Settings(host_queue_packets=0), "host_queue_packets"),
    (lambda: Settings(fail_mode="open"), "fail_mode"),  # type: ignore[arg-type]
    (lambda: Settings(congestion_control="cubic; reboot"), "congestion_control"),
    (lambda: Settings(controller=("10.255.0.1", 0)), "controller: the port"),
    (lambda: Settings(controller=("somewhere", 6653)), "controller: 'somewhere'"),
    (lambda: Settings(controller=("127.0.0.1", 6653)), "controller: switches cannot reach 127.0.0.1"),
])
def test_settings_out_of_range_are_refused_by_name(make: Callable[[], Settings], word: str) -> None:
    with pytest.raises(InvalidSettings, match=word):
        make()


def test_links_carry_labels_beyond_the_hosts_mtu() -> None:
    assert Settings(mtu=1500).fabric_mtu >= 1500 + 3 * 4


@pytest.mark.parametrize("capacity_bps", [1_000_000, 80_000_000, 10_000_000_000])
def test_burst_holds_full_frames_but_only_a_moment_of_a_fast_link(capacity_bps: int) -> None:
    settings = Settings(mtu=9000)
    burst_bytes = shaping.burst_bytes(capacity_bps, settings)
    assert burst_bytes >= settings.fabric_mtu + 14
    assert burst_bytes * 8 <= max(capacity_bps / 500, 3 * 8 * settings.fabric_mtu)


@pytest.fixture
def marked_process() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "1000"], env=processes.environment("here"))


def test_marked_processes_die_and_others_live(marked_process: subprocess.Popen[bytes]) -> None:
    other = subprocess.Popen(["sleep", "1000"], env=processes.environment("elsewhere"))
    try:
        processes.kill_marked("here")
        assert marked_process.wait(15) == -9
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_process_reports_its_cpu_time() -> None:
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        wait_until(lambda: processes.cpu_seconds(busy.pid) > 0.05, 10, "no CPU time is reported")
    finally:
        busy.kill()
        busy.wait()
    assert processes.cpu_seconds(busy.pid) == 0


def test_failed_command_is_reported_with_what_it_said() -> None:
    with pytest.raises(EmulationError, match=r"listing failed: ls: .*/nowhere"):
        processes.run(["ls", "/nowhere"], what="listing")
    with pytest.raises(EmulationError, match=r"sleeping did not end within 0\.1 s"):
        processes.run(["sleep", "10"], what="sleeping", timeout_seconds=0.1)


def test_machine_is_reserved_once_and_free_after_release(tmp_path: Path) -> None:
    first = Reservation("first", tmp_path)
    with pytest.raises(EmulationRunning, match=f"first, process {os.getpid()}"):
        Reservation("second", tmp_path)
    first.release()
    Reservation("second", tmp_path).release()
    assert not (tmp_path / "emulation.json").exists()


def test_reservation_after_a_killed_owner_kills_its_processes(tmp_path: Path) -> None:
    code = ("import os; from pathlib import Path; from speedwell.topo.emulation.reservation import Reservation; "
            f"print(Reservation('doomed', Path({str(tmp_path)!r})).marker, flush=True); os.kill(os.getpid(), 9)")
    marker = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False,
                            cwd=Path(__file__).parents[3]).stdout.strip()
    assert (tmp_path / "emulation.json").exists()
    left = subprocess.Popen(["sleep", "1000"], env=processes.environment(marker))
    Reservation("next", tmp_path).release()
    assert left.wait(15) == -9


def test_clean_up_that_fails_is_finished_by_the_next_owner(tmp_path: Path) -> None:
    first = Reservation("first", tmp_path)
    left = subprocess.Popen(["sleep", "1000"], env=processes.environment(first.marker))
    with pytest.raises(KeyboardInterrupt), ExitStack() as cleanup:
        cleanup.push(first.release)
        raise KeyboardInterrupt
    Reservation("next", tmp_path).release()
    assert left.wait(15) == -9


def test_missing_program_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setitem(requirements._PROGRAMS_OF_PACKAGE, "openvswitch-switch", ("ovs-absent",))
    with pytest.raises(MissingRequirement, match="ovs-absent is missing: apt-get install openvswitch-switch"):
        requirements.check()


def test_root_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(MissingRequirement, match="needs root"):
        requirements.check()


@pytest.mark.parametrize(("name", "parameters"), [("three-tier", {"pods": 0}), ("fat-tree", {"k": 3}),
                                                  ("spine-leaf", {"leaves": -1})])
def test_topologies_for_mn_refuse_impossible_fabrics_before_they_make_anything(name: str, parameters: dict) -> None:
    from speedwell.topo.emulation.mn import topos

    with pytest.raises(SystemExit, match=r"^mn: (pods|k|leaves): "):
        topos[name](**parameters)


def test_fabric_beyond_this_machine_is_refused_with_the_limit() -> None:
    with pytest.raises(TooLarge, match=r"1024 hosts and 320 switches; a machine emulates at most 1023 in all"):
        capacity.check(fat_tree(k=16), available_bytes=1 << 40)
    with pytest.raises(TooLarge, match=r"needs 3\.\d GiB of memory, of which this machine has 1\.0 GiB"):
        capacity.check(fat_tree(k=8), host_service_bytes=13 << 20, available_bytes=1 << 30)
    capacity.check(fat_tree(k=8), available_bytes=4 << 30)


def test_the_machine_itself_is_not_counted_among_the_hosts_of_a_fabric_that_is_too_large() -> None:
    with pytest.raises(TooLarge, match=r"1024 hosts and 320 switches; a machine emulates at most 1022 in all, and"):
        capacity.check_number(fat_tree(k=16), machine=True)
    full = spine_leaf(leaves=10, spines=13, hosts_per_leaf=100)
    capacity.check_number(full)
    with pytest.raises(TooLarge, match="1000 hosts and 23 switches; a machine emulates at most 1022"):
        capacity.check_number(full, machine=True)
