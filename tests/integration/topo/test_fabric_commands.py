"""The fabric by itself: `speedwell fabric` and Mininet's own `mn`."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from speedwell.topo.emulation.reservation import Reservation
from tests.integration.topo.machine import nothing_stays_behind
from tests.machine_state import in_chroot
from tests.waiting import wait_until

pytestmark = pytest.mark.root

PROJECT = Path(__file__).parents[3]
SPEEDWELL = Path(sys.executable).with_name("speedwell")
CUSTOM = PROJECT / "topo" / "mininet_custom.py"
RECORD = Path("/run/speedwell/emulation.json")
SMALL = ["spine-leaf", "--leaves", "2", "--spines", "1", "--hosts", "1"]


def fabric(arguments: list[str], lines: str, directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([SPEEDWELL, "fabric", *arguments, "--directory", directory], input=lines,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=90, check=False)


def mn(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["mn", "--custom", str(CUSTOM), *arguments], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=90, check=False,
                          cwd="/")


def test_prompt_runs_commands_on_hosts_and_switches(tmp_path: Path) -> None:
    lines = ("leaf0 ip -brief link show eth1\nr1h0 ip -brief address show eth0\nlinks\nnet\ndump\niperf r0h0 leaf0\n"
             "link nothing leaf0 down\n")
    with nothing_stays_behind():
        done = fabric([*SMALL, "--no-controller"], lines, tmp_path)
    assert done.returncode == 0, done.stdout
    assert "eth1@" in done.stdout and "10.0.1.1/8" in done.stdout
    assert "leaf0-eth2<->spine0-eth1 (OK OK)" in done.stdout            # links
    assert "leaf1 leaf1-eth1:r1h0-eth0 leaf1-eth2:spine0-eth2" in done.stdout   # net
    assert "leaf0: dpid=0000000000010001 management=10.255.128.2" in done.stdout    # dump
    assert "None" not in done.stdout
    assert "no host is named 'leaf0'" in done.stdout


def test_hosts_reach_each_other_through_the_started_controller(tmp_path: Path) -> None:
    with nothing_stays_behind():
        # the prompt puts addresses for words that are names; the last two lines leave that to the hosts
        curl = f"r0h0 curl -sS --cacert {tmp_path}/identity/authority.pem"
        certificate = f"--cert {tmp_path}/identity/operator/identity.pem"
        lines = (f"r0h0 ping -c 1 -W 2 r1h0\niperf r0h0 r1h0\n{curl} {certificate} https://controller:8080/v1/hosts\n"
                 f"{curl} https://controller:8080/v1/links\nleaf0 ovs-vsctl get-controller br0\n"
                 'leaf0 sh -c "getent ahostsv4 r1h0-mgmt"\n')
        done = fabric([*SMALL, "--ratio", "1"], lines, tmp_path)
    assert done.returncode == 0, done.stdout
    assert "0% packet loss" in done.stdout, "the prompt came before the controller knew the network"
    throughput = re.search(r"r0h0 to r1h0: (\S+) Mbit/s by TCP in 5 s", done.stdout)
    assert throughput and 1 < float(throughput[1]) <= 80, done.stdout
    assert '"ip":"10.0.1.1","name":"r1h0"' in done.stdout
    assert '"status":401' in done.stdout and "ssl:10.255.0.1:6653" in done.stdout
    assert not (tmp_path / "identity").exists()
    assert re.search(r"10\.255\.\S+ +STREAM r1h0-mgmt$", done.stdout, re.MULTILINE), done.stdout


def test_a_fabric_without_certificates_says_so(tmp_path: Path) -> None:
    lines = "r0h0 curl -sS http://controller:8080/v1/hosts\nleaf0 ovs-vsctl get-controller br0\n"
    done = fabric([*SMALL, "--insecure"], lines, tmp_path)
    assert done.returncode == 0, done.stdout
    assert "insecure: no certificates here" in done.stdout and "tcp:10.255.0.1:6653" in done.stdout
    assert '"ip":"10.0.1.1","name":"r1h0"' in done.stdout


def test_command_that_is_terminated_takes_the_fabric_down(tmp_path: Path) -> None:
    with nothing_stays_behind():
        process = subprocess.Popen([SPEEDWELL, "fabric", *SMALL, "--controller", "10.255.0.1:6699", "--insecure",
                                    "--directory", tmp_path],
                                   stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        assert any("waiting for 3 switches" in line for line in process.stderr)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM


def test_mn_builds_our_fabric_and_pings_all_hosts() -> None:
    with nothing_stays_behind():
        done = mn("--topo", "three-tier,2,1,2,1,1,fail_mode=standalone", "--controller", "none", "--test", "pingall")
    assert "0% dropped (12/12 received)" in done.stdout


def test_mn_says_that_switches_without_a_controller_forward_nothing() -> None:
    with nothing_stays_behind():
        done = mn("--topo", "spine-leaf,1,1,1")
    assert "forward nothing but what `dpctl add-flow` tells them" in done.stdout
    assert "--controller speedwell" in done.stdout


@pytest.mark.parametrize(("topo", "message"), [
    ("file,missing.json", "mn: 'missing.json' is neither a file nor a fabric"),
    ("three-tier,pods=0", "mn: pods: must be a whole number"),
    ("spine-leaf,2,1,1", "mn: an emulation runs already (held by a test, process"),
])
def test_an_mn_that_is_refused_leaves_the_hosts_of_others_alone(topo: str, message: str) -> None:
    """Mininet cleans up after an exception, and takes every process of this name for a host that was left."""
    with contextlib.ExitStack() as held:
        reservation = Reservation("held by a test")
        held.callback(reservation.release)
        host = held.enter_context(subprocess.Popen(["bash", "-c", "exec -a mininet:other sleep 600"]))
        held.callback(host.kill)
        refused = mn("--topo", topo, "--controller", "none", "--test", "none")
        assert refused.returncode == 1 and message in refused.stdout, refused.stdout
        assert "Cleaning up" not in refused.stdout
        assert host.poll() is None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_mn_that_was_terminated_leaves_nothing_once_speedwell_down_has_run(number: signal.Signals,
                                                                          tmp_path: Path) -> None:
    log = tmp_path / "mn.log"
    with nothing_stays_behind():
        with log.open("wb") as output:
            process = subprocess.Popen(["mn", "--custom", str(CUSTOM), "--topo", "spine-leaf,1,1,1", "--controller",
                                        "speedwell"], stdin=subprocess.PIPE, stdout=output, stderr=output, cwd="/")
        wait_until(lambda: "mininet>" in log.read_text(), 60, log.read_text)
        assert "does not know" not in log.read_text(), "a host that is alone is known too"
        os.kill(json.loads(RECORD.read_text())["process"], number)
        process.communicate(timeout=60)
        done = subprocess.run([SPEEDWELL, "down"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=60, check=False)
        assert done.returncode == 0, done.stdout
    assert ("removed what mn had left" in done.stdout) == (number == signal.SIGKILL), done.stdout


@pytest.mark.skipif(in_chroot(), reason="mnexec needs / to be a mount for Mininet's own hosts")
def test_mn_uses_our_switches_in_its_own_topologies() -> None:
    done = mn("--topo", "linear,2", "--switch", "speedwell,fail_mode=standalone", "--controller", "none",
              "--test", "pingall")
    assert "0% dropped (2/2 received)" in done.stdout


def test_mn_starts_our_controller_for_a_fabric_with_loops() -> None:
    with nothing_stays_behind():
        done = mn("--topo", "spine-leaf,2,2,1", "--controller", "speedwell", "--test", "pingall")
    assert "Waiting until the controller knows" in done.stdout.partition("*** Ping")[0], done.stdout
    assert "Certificates are in /run/speedwell/mn/identity" in done.stdout
    assert "0% dropped (2/2 received)" in done.stdout, done.stdout
