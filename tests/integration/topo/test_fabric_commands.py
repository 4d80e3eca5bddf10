"""The fabric by itself: `speedwell fabric` and Mininet's own `mn`."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.topo.machine import nothing_stays_behind

pytestmark = pytest.mark.root

PROJECT = Path(__file__).parents[3]
SPEEDWELL = Path(sys.executable).with_name("speedwell")
CUSTOM = PROJECT / "topo" / "mininet_custom.py"
SMALL = ["spine-leaf", "--leaves", "2", "--spines", "1", "--hosts", "1"]


def fabric(arguments: list[str], lines: str, directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([SPEEDWELL, "fabric", *arguments, "--directory", directory], input=lines,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=90, check=False)


def mn(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["mn", "--custom", str(CUSTOM), *arguments], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=90, check=False,
                          cwd="/")


def test_prompt_runs_commands_on_hosts_and_switches(tmp_path: Path) -> None:
    lines = "leaf0 ip -brief link show eth1\nr1h0 ip -brief address show eth0\n"
    with nothing_stays_behind():
        done = fabric([*SMALL, "--no-controller"], lines, tmp_path)
    assert done.returncode == 0, done.stdout
    assert "eth1@" in done.stdout and "10.0.1.1/8" in done.stdout


def test_hosts_reach_each_other_through_the_started_controller(tmp_path: Path) -> None:
    with nothing_stays_behind():
        done = fabric(SMALL, "r0h0 ping -c 3 -W 2 r1h0\n", tmp_path)
    assert done.returncode == 0, done.stdout
    assert "bytes from 10.0.1.1" in done.stdout


def test_command_that_is_terminated_takes_the_fabric_down(tmp_path: Path) -> None:
    with nothing_stays_behind():
        process = subprocess.Popen([SPEEDWELL, "fabric", *SMALL, "--controller", "10.255.0.1:6699", "--directory",
                                    tmp_path], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        assert any("waiting for 3 switches" in line for line in process.stderr)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)
    assert process.returncode == 128 + signal.SIGTERM


def test_mn_builds_our_fabric_and_pings_all_hosts() -> None:
    with nothing_stays_behind():
        done = mn("--topo", "three-tier,2,1,2,1,1,fail_mode=standalone", "--controller", "none", "--test", "pingall")
    assert "0% dropped (12/12 received)" in done.stdout


def in_chroot() -> bool:
    mountpoints = (line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines())
    return "/" not in mountpoints


@pytest.mark.skipif(in_chroot(), reason="mnexec needs / to be a mount for Mininet's own hosts")
def test_mn_uses_our_switches_in_its_own_topologies() -> None:
    done = mn("--topo", "linear,2", "--switch", "speedwell,fail_mode=standalone", "--controller", "none",
              "--test", "pingall")
    assert "0% dropped (2/2 received)" in done.stdout


def test_mn_starts_our_controller_for_a_fabric_with_loops() -> None:
    with nothing_stays_behind():
        done = mn("--topo", "spine-leaf,2,2,1", "--controller", "speedwell", "--test", "pingall")
    assert "0% dropped (2/2 received)" in done.stdout
