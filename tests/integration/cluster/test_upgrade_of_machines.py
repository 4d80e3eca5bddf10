"""Three machines with two controllers change their version one process at a time, in the order of docs/upgrades.md
and in the reverse one back, while programs of both versions work."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.etcd import requires_etcd
from tests.installed_version import Installed
from tests.integration.cluster.machines import Machine, machines
from tests.upgrade_programs import NEW_CLIENT, Load
from tests.version_before import VersionBefore
from tests.waiting import wait_until

pytestmark = [pytest.mark.root, pytest.mark.full, pytest.mark.timeout(1500), requires_etcd]

ORDER = ("certificates", "etcd", "controller", "nameserver", "dataserver")
WITH_TWO_CONTROLLERS = "041e3be59036be51409e8d38d1f1daf18d05aa69"
"""The first version that has them on machines."""
SECONDS = 90.0
NAMESERVERS = "10.0.0.1:7400,10.0.0.2:7400,10.0.0.3:7400"
OPERATOR = Path("/srv/speedwell/identity/operator")
HEALTH = """curl -sS --max-time 1 --cacert /srv/speedwell/identity/authority.pem \\
  --cert /srv/speedwell/identity/operator/identity.pem https://10.0.0.{}:8080/v1/health"""
LEADS, STANDS_BY = '"status":"empty"', '"status":"standby"'
COMPILE = """from PACKAGE.controller.policy.reads.selection import compile_selection
compile_selection()
"""
"""Or the first start of a controller takes a minute."""
CHECK = """import json, sys
from speedwell.fs.client import Client
from tests.upgrade_programs import require_contents
with Client(sys.argv[1], identity=sys.argv[2]) as client:
    require_contents(client, json.loads(sys.argv[3]))
"""


class Upgraded:
    """One of the machines, and the programs that are installed there, those of the version before at first."""

    def __init__(self, machine: Machine, place: Path, before: VersionBefore) -> None:
        self.machine = machine
        self.installed = Installed(place, before)
        self._python = f"PYTHONPATH={before.tree} {place}/bin/python -P"
        self._main = f"{'speedwell.' if before.package != 'fs' else ''}cluster.cli"

    def speedwell_before(self, words: str, typed: str = "") -> str:
        return self.machine.run(f'{self._python} -c "import sys; from {self._main} import main; main(sys.argv[1:])" '
                                + words, typed)

    def pid(self, role: str) -> str:
        # the newest, as nobody takes in what has ended there; the brackets keep it from finding the shell that looks
        which = "-nx etcd" if role == "etcd" else f"-of -- '[-]-config /srv/speedwell/{role}.toml'"
        return self.machine.attempt(f"pgrep {which}").stdout.strip()

    def restart(self, role: str) -> None:
        """End a process, and wait until its supervisor has started another in its place."""
        before = self.pid(role)
        self.machine.run(f"kill {before}")
        wait_until(lambda: self.pid(role) not in ("", before), SECONDS,
                   lambda: f"{role} of {self.machine.name} is not started again: "
                   + self.machine.attempt(f"tail -n 20 /srv/speedwell/logs/{role}.log").stdout)


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """Which machines see, too: their /tmp is their own."""
    directory = Path(tempfile.mkdtemp(prefix="upgrade-", dir="/var/tmp"))
    yield directory
    shutil.rmtree(directory)


def test_two_controllers_and_all_else_on_three_machines_change_their_version_and_go_back(place: Path,
                                                                                         tmp_path: Path) -> None:
    before = VersionBefore(place / "before", WITH_TWO_CONTROLLERS)
    with ExitStack() as ending:
        made = machines("abc", ending)
        all_three = [Upgraded(machine, place / name, before) for name, machine in made.items()]
        a, b, c = all_three
        a.installed.call(COMPILE)
        a.speedwell_before("init /srv/speedwell nameserver dataserver controller --name a --address 10.0.0.1 "
                           "--etcd b=10.0.0.2,c=10.0.0.3")
        a.speedwell_before("up")
        for each, words in ((b, "b nameserver dataserver controller"), (c, "c nameserver dataserver")):
            token = a.speedwell_before(f"identity invite {words}").split()[-1]
            each.speedwell_before("join /srv/speedwell --token-file -", f"{token}\n")
            each.speedwell_before("up")

        def healthy() -> bool:
            said = [a.machine.attempt(HEALTH.format(number)).stdout for number in (1, 2)]
            return sum(LEADS in each for each in said) == 1 == sum(STANDS_BY in each for each in said)

        wrong = ""

        def whole() -> bool:
            nonlocal wrong
            done = a.machine.attempt("speedwell fsck")
            wrong = done.stdout
            return done.returncode == 0

        wait_until(healthy, SECONDS, "no controller leads")
        wait_until(whole, SECONDS, lambda: wrong)
        interpreter = ("nsenter", "--target", str(a.machine.pid), "--net", "--pid", "--mount", "--root", "--uts",
                       sys.executable)
        loads = [Load(name, module, NAMESERVERS, tmp_path, OPERATOR, path, interpreter)
                 for name, module, path in (("old-client", f"{before.package}.client", before.tree),
                                            ("new-client", NEW_CLIENT, None))]
        for load in loads:
            ending.callback(load.kill)

        def change(roles: tuple[str, ...], *, new: bool) -> None:
            for role in roles:
                for each in all_three:
                    each.installed.install(new=new)
                    if each.pid(role):
                        each.restart(role)
                        wait_until(healthy, SECONDS, f"after {role} of {each.machine.name} no controller leads")
                        for load in loads:
                            load.require_progress(SECONDS)
                        if role == "dataserver":
                            wait_until(whole, SECONDS, lambda: wrong)

        change(ORDER, new=True)
        for each in all_three:
            for role in set(ORDER) - {"etcd"}:
                if pid := each.pid(role):
                    assert str(before.tree) not in each.machine.run(f"tr '\\0' ' ' < /proc/{pid}/environ"), role
        change(ORDER[::-1], new=False)
        for load in loads:
            load.end()
        offsets = {load.name: load.offsets for load in loads}
        a.machine.run(f"cd {Path(__file__).parents[3]}; {sys.executable} - {NAMESERVERS} {OPERATOR} "
                      f"'{json.dumps(offsets)}'", CHECK)
