"""docs/three-machines.md, run on machines that are namespaces."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.integration.cluster.machines import BRIDGE, Machine, machines
from tests.waiting import wait_until

pytestmark = pytest.mark.root

PAGE = Path(__file__).parents[3] / "docs" / "three-machines.md"
STEPS = re.compile(r"<!-- on: ([\w ]+) -->\n```sh\n(.*?)```", re.DOTALL)


@pytest.fixture
def site() -> Iterator[dict[str, Machine]]:
    with ExitStack() as ending:
        yield machines("abcd", ending)
    assert not {path.name for path in Path("/sys/class/net").iterdir()} & {BRIDGE, "to-a", "to-b", "to-c", "to-d"}


def leader(machine: Machine) -> str:
    """The name of the machine whose nameserver leads."""
    found = re.search(r"leads .*10\.0\.0\.(\d):7400", machine.attempt("speedwell status").stdout)
    return "abc"[int(found[1]) - 1] if found else ""


def test_the_page_s_commands_do_what_it_says(site: dict[str, Machine]) -> None:
    printed = failed = ""
    ran = []
    for place, script in STEPS.findall(PAGE.read_text()):
        ran.append(place[0])
        if place == "d" and "up" not in script:
            wait_until(lambda: leader(site["a"]), 30, "nobody leads")
            failed = leader(site["a"])
            assert site["a"].run("speedwell stat /bash").count(":7500") == 3
            site[failed].switch_off()
        if len(place) > 1:
            site[failed].switch_on()
        token = "".join(printed.split()[-1:])
        printed = site[place if len(place) == 1 else failed].run(script, typed=f"{token}\n")
        if "init" in script:
            assert "started etcd" in printed and "while more than half of these machines run" in printed
    assert ran == list("abacadadta"), ran
    assert "revoked" in printed
    site["a"].run("speedwell get /ls - | cmp - /bin/ls")
    site["c"].run("speedwell get /ls - | cmp - /bin/ls")
    assert site["c"].attempt("speedwell rm /ls").returncode == 1    # as a reader
    wait_until(lambda: site["d"].attempt("ls /mnt/speedwell").returncode != 0, 30, "the revoked mount is served")
    for machine in site.values():
        assert machine.attempt("cat /srv/speedwell/identity/authority.key").returncode == (machine.name != "a")
    # what was stopped goes on where it was
    site["d"].attempt("speedwell down --force")
    for each in "abc":
        site[each].run("speedwell down")
    for each in "abc":
        site[each].run("speedwell up")
    site["a"].run("speedwell get /bash - | cmp - /bin/bash")
