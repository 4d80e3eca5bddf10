"""The units of `speedwell init --systemd`, run by a real systemd."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.booted_systemd import SYSTEMD, BootedSystemd
from tests.integration.cluster.executable import SCRIPTS
from tests.waiting import wait_until

pytestmark = [pytest.mark.root, pytest.mark.timeout(600)]

ROLES = "certificates controller nameserver dataserver mount"
DEADLINE_SECONDS = 60


@pytest.fixture(name="machine", scope="module")
def _machine() -> Iterator[BootedSystemd]:
    if not SYSTEMD.exists():
        pytest.skip("systemd is not installed")
    if SCRIPTS.is_relative_to("/tmp") or SCRIPTS.is_relative_to("/var/tmp"):
        pytest.skip("units have a /tmp of their own: this checkout is in it")
    with ExitStack() as ending:
        machine = BootedSystemd(ending)
        machine.run("ip address add 10.0.0.1/24 dev lo")
        speedwell(machine, "init /srv/speedwell nameserver dataserver controller --name a --address 10.0.0.1 "
                           "--replication 1 --mount /srv/files --systemd")
        machine.run(f"systemctl daemon-reload; systemctl enable --now {units(ROLES)}")
        yield machine
        machine.run(f"systemctl stop {units(ROLES)}")
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


def test_servers_have_no_capability_and_write_in_their_own_directories_alone(machine: BootedSystemd) -> None:
    for pid in shown(machine, "MainPID", "controller nameserver dataserver certificates"):
        assert "CapEff:\t0000000000000000\n" in machine.run(f"cat /proc/{pid}/status")
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
    watched = "controller nameserver dataserver certificates"
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
