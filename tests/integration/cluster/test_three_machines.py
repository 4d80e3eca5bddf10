"""docs/three-machines.md, run on machines that are namespaces."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.integration.cluster.machines import BRIDGE, Machine, machines
from tests.waiting import wait_until

pytestmark = pytest.mark.root

PAGE = Path(__file__).parents[3] / "docs" / "three-machines.md"
STEPS = re.compile(r"<!-- on: (\w) -->\n```sh\n(.*?)```", re.DOTALL)


@pytest.fixture
def site() -> Iterator[dict[str, Machine]]:
    with ExitStack() as ending:
        yield machines("abc", ending)
    assert not {path.name for path in Path("/sys/class/net").iterdir()} & {BRIDGE, "to-a", "to-b", "to-c"}


def pid(machine: Machine, process: str) -> int:
    # as there: a stopped installation has exit code 1
    status = json.loads(machine.attempt("speedwell status --json").stdout)
    return next(int(each["pid"]) for each in status["processes"] if each["name"] == process)


def test_the_page_s_commands_do_what_it_says(site: dict[str, Machine]) -> None:
    printed = ""
    ran = []
    for name, script in STEPS.findall(PAGE.read_text()):
        machine = site[name]
        if "kill -9" in script:
            assert site["a"].run("speedwell stat /bash").count(":7500") == 3
            machine.run(f"kill -9 {pid(machine, 'supervisor')}")     # else it starts the server again
            script = script.replace("PID", str(pid(machine, "dataserver")))
        if "TOKEN" in script:
            script = script.replace("TOKEN", printed.split()[-1])
        printed = machine.run(script)
        ran.append(name)
        if "kill -9" in script:
            assert machine.attempt("speedwell status").returncode == 1
    assert ran == list("abacaaba"), ran
    wait_until(lambda: site["c"].attempt("ls /mnt/speedwell").returncode != 0, 30, "the revoked mount is served")
    assert "revoked" in printed
    for machine in site.values():
        assert machine.attempt("cat /srv/speedwell/identity/authority.key").returncode == (machine.name != "a")
    assert "was used already" not in printed
    # what was stopped goes on where it was
    site["a"].run("speedwell up")
    site["c"].attempt("speedwell down --force")
    site["b"].run("speedwell get /bash - | cmp - /bin/bash")
