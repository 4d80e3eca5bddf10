"""The commands of docs/three-machines.md by which new machines take the place of lost ones."""

from __future__ import annotations

import json
import re
import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.integration.cluster.machines import Machine, machines
from tests.integration.cluster.test_three_machines import PAGE
from tests.waiting import wait_until

pytestmark = pytest.mark.root

STEPS = re.compile(r"<!-- lost: (\w) -->\n```sh\n(.*?)```", re.DOTALL)
ROLES = "nameserver dataserver"


def lose(machine: Machine) -> None:
    """With its disk; a new one has the name and address."""
    machine.switch_off()
    for kept in ("srv", "lib"):
        shutil.rmtree(Path(machine.disk, kept))
    machine.switch_on()


def joins(machine: Machine, script: str, printed: str) -> None:
    machine.run(script, typed=printed.split()[-1] + "\n")


def test_lost_machines_are_replaced_the_first_one_too() -> None:
    steps = STEPS.findall(PAGE.read_text())
    assert "".join(place for place, _ in steps) == "acaba"
    (_, invite_c), (_, join_c), (_, backup), (_, restore), (_, join_a) = steps
    with ExitStack() as ending:
        a, b, c = machines("abc", ending).values()
        a.run(f"speedwell init /srv/speedwell {ROLES} --name a --address 10.0.0.1 --etcd b=10.0.0.2,c=10.0.0.3; "
              "speedwell up")
        for machine in b, c:
            joins(machine, join_c, a.run(f"speedwell identity invite {machine.name} {ROLES}"))
        whole(a)
        a.run(backup)
        copy = Path(a.disk, "srv/authority.json").read_text()
        a.run("speedwell put /bin/ls /")
        assert "etcd still runs on c" in a.attempt(invite_c).stderr
        c.switch_off()
        a.run(invite_c)
        c.switch_on()
        up = c.attempt("speedwell up")      # which it should not; etcd may hear of that before or after it serves
        shown = a.attempt("speedwell status")
        if up.returncode:
            assert "etcd stopped: another machine takes the place of this one; remove /srv/speedwell" in up.stderr
        else:
            assert "10.0.0.3:7400: the certificate of the nameserver nameserver-c was revoked" in shown.stderr
        assert re.search(r"^b +- +alive", shown.stdout, re.MULTILINE), shown.stdout
        lose(c)
        joins(c, join_c, a.run(invite_c))
        whole(a)

        Path(b.disk, "srv/authority.json").write_text(copy)
        assert "still answers at 10.0.0.1:7450" in b.attempt(restore).stderr
        lose(a)
        joins(a, join_a, b.run(restore))
        whole(b)
        joined = Path(c.disk, "srv/speedwell/identity/joined.json")
        wait_until(lambda: json.loads(joined.read_text())["authority"] == "10.0.0.2:7450", 90,
                   "c does not find the authority on b")
        wait_until(lambda: valid(b, "nameserver-c"), 60, "the authority does not know what it issued after the copy")
        b.run("speedwell get /ls - | cmp - /bin/ls")
        b.switch_off()      # so the new members of etcd are most of it
        wait_until(lambda: c.attempt("speedwell stat /ls").returncode == 0, 60, "a and c keep no names")


def valid(machine: Machine, name: str) -> bool:
    listed = json.loads(machine.run("speedwell identity list --json"))
    return any(each["name"] == name and each["state"] == "valid" for each in listed)


def whole(machine: Machine) -> None:
    """Waits until everything runs on all three machines."""
    wait_until(lambda: "all is well" in machine.attempt("speedwell status").stdout, 120,
               lambda: machine.attempt("speedwell status").stdout)


@pytest.mark.full
def test_of_five_machines_two_are_lost_at_once_and_replaced_one_after_the_other() -> None:
    (_, _), (_, join), *_ = STEPS.findall(PAGE.read_text())
    with ExitStack() as ending:
        a, *others = machines("abcde", ending).values()
        a.run("speedwell init /srv/speedwell nameserver --name a --address 10.0.0.1 "
              "--etcd b=10.0.0.2,c=10.0.0.3,d=10.0.0.4,e=10.0.0.5; speedwell up")
        for machine in others:
            joins(machine, join, a.run(f"speedwell identity invite {machine.name} nameserver"))
        whole(a)
        a.run("speedwell mkdir /kept")
        b, c, *lost = others
        for machine in lost:
            lose(machine)
        for _ in range(3):      # that the other one is lost, too, etcd sees after some seconds
            for machine in list(lost):
                invited = a.attempt(f"speedwell identity invite {machine.name} nameserver --replace")
                if invited.returncode == 0:
                    joins(machine, join, invited.stdout)
                    lost.remove(machine)
                else:
                    assert f"or replace it first; then invite {machine.name} again" in invited.stderr
        assert not lost
        whole(a)
        b.switch_off()
        c.switch_off()
        wait_until(lambda: a.attempt("speedwell stat /kept").returncode == 0, 60, "a, d and e keep no names")
