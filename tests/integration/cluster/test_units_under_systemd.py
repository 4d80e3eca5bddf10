"""The units of `speedwell init --systemd`, run by a real systemd, on a machine whose link leads to a real switch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.booted_systemd import SYSTEMD, BootedSystemd
from tests.integration.cluster.executable import SCRIPTS
from tests.waiting import wait_until

pytestmark = [pytest.mark.root, pytest.mark.timeout(600)]

ROLES = "certificates controller timeslices nameserver dataserver metadata-store mount host-agent"
CAPABLE = {"timeslices": 1 << 23, "metadata-store": 1 << 12, "host-agent": 1 << 12 | 1 << 13 | 1 << 19 | 1 << 23}
"""What some roles keep of root's capabilities: nice, network, raw sockets, ptrace (linux/capability.h)."""
WATCHED = [role for role in ROLES.split() if role != "mount"]
SWITCH = """cd /srv/speedwell/identity
mkdir -p /etc/speedwell; cp 00000000000000a1/*.pem /etc/speedwell
systemctl start openvswitch-switch
ovs-vsctl set-ssl /etc/speedwell/identity.pem /etc/speedwell/identity.pem /etc/speedwell/authority.pem
ovs-vsctl add-br br0 -- set bridge br0 datapath_type=netdev protocols=OpenFlow13 fail_mode=secure \\
  other-config:datapath-id=00000000000000a1 -- add-port br0 port1 -- set-controller br0 ssl:10.0.0.1:6653"""
DEADLINE_SECONDS = 60


@pytest.fixture(name="machine", scope="module")
def _machine() -> Iterator[BootedSystemd]:
    if not SYSTEMD.exists():
        pytest.skip("systemd is not installed")
    if SCRIPTS.is_relative_to("/tmp") or SCRIPTS.is_relative_to("/var/tmp"):
        pytest.skip("units have a /tmp of their own: this checkout is in it")
    with ExitStack() as ending:
        machine = BootedSystemd(ending)
        machine.run("ip link add eth0 type veth peer port1; ip address add 10.0.0.1/24 dev eth0; "
                    "ip link set eth0 up; ip link set port1 up; ethtool -K eth0 tx off")
        speedwell(machine, "init /srv/speedwell nameserver dataserver controller scheduler metadata-store host-agent "
                           "--name a --address 10.0.0.1 --replication 1 --mount /srv/files --rate 1000000000 "
                           "--systemd")
        speedwell(machine, "identity issue 00000000000000a1 switch")
        for role in ROLES.split():
            speedwell(machine, f"check-config /srv/speedwell/{role}.toml")
        machine.run(f"systemctl daemon-reload; systemctl enable --now {units(ROLES)}")
        machine.run(SWITCH)
        yield machine
        machine.run(f"systemctl stop {units(ROLES)}")
        assert "SPEEDWELL" not in machine.run("iptables -t mangle -S"), "of the host agent something is left"
        assert set(shown(machine, "Result", ROLES)) == {"success"}


def speedwell(machine: BootedSystemd, command: str) -> str:
    return machine.run(f"PATH={SCRIPTS}:$PATH; speedwell {command}")


def units(roles: str) -> str:
    return " ".join(f"speedwell-{role}" for role in roles.split())


def shown(machine: BootedSystemd, what: str, roles: str) -> list[str]:
    return machine.run(f"systemctl show --property {what} --value {units(roles)}").split()


def test_all_units_serve_once_they_count_as_started(machine: BootedSystemd) -> None:
    assert set(shown(machine, "ActiveState", ROLES)) == {"active"}
    assert set(shown(machine, "NRestarts", ROLES)) == {"0"}
    speedwell(machine, "put /bin/ls /; cmp /bin/ls /srv/files/ls")
    speedwell(machine, "put /bin/cat /; cmp /bin/cat /srv/files/cat")
    assert "all is well" in speedwell(machine, "status")


def test_what_works_with_the_switch_finds_it(machine: BootedSystemd) -> None:
    wait_until(lambda: machine.attempt(f"PATH={SCRIPTS}:$PATH; speedwell metadata route eth0 10.0.0.1; "
                                       "speedwell metadata put name record").returncode == 0, DEADLINE_SECONDS,
               lambda: machine.attempt("journalctl --no-pager --lines 60").stdout)
    assert speedwell(machine, "metadata get name") == "record"
    told = machine.run("curl -s http://127.0.0.1:6658/metrics")
    assert 'speedwell_timeslices_destinations{agent="10.0.0.1"} 0.0' in told
    assert "SPEEDWELL-GATE" in machine.run("iptables -t mangle -S")


def test_servers_have_few_capabilities_and_write_in_their_own_directories_alone(machine: BootedSystemd) -> None:
    for role in WATCHED:
        [pid] = shown(machine, "MainPID", role)
        assert f"CapEff:\t{CAPABLE.get(role, 0):016x}\n" in machine.run(f"cat /proc/{pid}/status"), role
        assert "Read-only" in machine.attempt(f"touch /proc/{pid}/root/etc/written").stderr
        machine.run(f"touch /proc/{pid}/root/srv/speedwell/written")


def test_what_is_killed_serves_again(machine: BootedSystemd) -> None:
    before = shown(machine, "MainPID", ROLES)
    machine.run(f"kill -KILL {' '.join(before)}")
    wait_until(lambda: set(shown(machine, "ActiveState", ROLES)) == {"active"}
               and not set(before) & set(shown(machine, "MainPID", ROLES)), DEADLINE_SECONDS,
               lambda: machine.attempt(f"systemctl status {units(ROLES)}").stdout)
    speedwell(machine, "get /ls - | cmp - /bin/ls; cmp /bin/ls /srv/files/ls")


def test_what_hangs_is_ended_by_the_watchdog_and_serves_again(machine: BootedSystemd) -> None:
    watched = " ".join(WATCHED)
    for unit in units(watched).split():
        machine.run(f"mkdir -p /run/systemd/system/{unit}.service.d; cd /run/systemd/system/{unit}.service.d; "
                    "printf '[Service]\\nWatchdogSec=3\\nTimeoutAbortSec=1\\n' > soon.conf")
    machine.run(f"systemctl daemon-reload; systemctl restart {units(watched)}")
    before = shown(machine, "MainPID", watched)
    machine.run(f"kill -STOP {' '.join(before)}")
    wait_until(lambda: set(shown(machine, "ActiveState", watched)) == {"active"}
               and not set(before) & set(shown(machine, "MainPID", watched)), DEADLINE_SECONDS,
               lambda: machine.attempt(f"systemctl status {units(watched)}").stdout)
    speedwell(machine, "get /ls - | cmp - /bin/ls")
