"""The certificate authority and the machines that have joined it change their versions in any order."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.local_cluster import SCRIPTS
from tests.version_before import VersionBefore
from tests.waiting import wait_until
from tests.wall_clock import WallClock, requires_compiler

pytestmark = pytest.mark.timeout(180)

DAYS_UNTIL_DUE, DAYS_OF_VALIDITY = 21, 30
MAKE = """from PACKAGE.identity.authority import Authority
Authority.make(Path(sys.argv[1])).ensure([("authority", "authority")])
"""
INVITE = """from PACKAGE.identity.invitations import invite
print(invite(Path(sys.argv[1]), sys.argv[2], sys.argv[3], ["dataserver"], settings={"nameserver": "10.0.0.1:7400"}))
"""
JOIN = """from PACKAGE.identity import invitations, joining
print(joining.join(Path(sys.argv[1]), invitations.parsed(sys.argv[2]))["nameserver"])
"""
KEEP = """import time
from PACKAGE.identity import joining
joining.hear(Path(sys.argv[1]))
print(*joining.renew_due(Path(sys.argv[1]), time.time()))
"""
REVOKE = """from PACKAGE.identity.authority import Authority
Authority(Path(sys.argv[1])).revoke(sys.argv[2])
"""


class Site:
    """An authority, and machines that join it; on one wall clock."""

    def __init__(self, directory: Path, before: VersionBefore) -> None:
        self.clock = WallClock(directory / "clock")
        self._directory, self._before = directory, before
        self._authority, self._address = directory / "authority", ""
        self.machines: dict[str, bool] = {}
        """Whether each is of the new version."""
        self.run(MAKE, self._authority, new=False)

    def run(self, code: str, *arguments: object, new: bool) -> str:
        """What it prints in a process of a version."""
        text = "import sys\nfrom pathlib import Path\n" + code.replace(
            "PACKAGE", "speedwell.fs" if new else self._before.package)
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        done = subprocess.run([*self.clock.prefix, sys.executable, "-P", "-c", text, *map(str, arguments)], cwd="/",
                              env=kept if new else {**kept, "PYTHONPATH": str(self._before.tree)}, timeout=60,
                              capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    @contextmanager
    def authority(self, *, new: bool) -> Iterator[None]:
        """It runs in a version, at its former address."""
        program = (SCRIPTS if new else self._before.scripts) / "speedwell-certificates"
        with subprocess.Popen([*self.clock.prefix, str(program), "--directory", self._authority, "--listen",
                               self._address or "127.0.0.1:0"], stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                word, _, self._address = process.stdout.readline().strip().partition(" ")
                assert word == "ready"
                yield
            finally:
                process.terminate()

    def join(self, machine: str, *, new: bool, authority_is_new: bool) -> None:
        token = self.run(INVITE, self._authority, self._address, machine, new=authority_is_new)
        assert self.run(JOIN, self._directory / machine, token, new=new) == "10.0.0.1:7400"
        self.machines[machine] = new

    def keep(self) -> dict[str, str]:
        """All hear what was revoked; what each has renewed."""
        return {machine: self.run(KEEP, self._directory / machine, new=new) for machine, new in self.machines.items()}

    def refusal(self) -> str:
        """What is said to the first whom the authority refuses, as soon as it looks again at who was revoked."""
        try:
            self.keep()
        except AssertionError as error:
            return str(error)
        return ""

    def revoke(self, machine: str, *, new: bool) -> None:
        self.run(REVOKE, self._authority, machine, new=new)


@requires_compiler
def test_an_authority_that_was_off_until_its_certificate_had_expired_is_believed_at_once(tmp_path: Path) -> None:
    site = Site(tmp_path, VersionBefore(tmp_path / "before"))
    site.clock.jump((DAYS_OF_VALIDITY + 1) * 86400)
    with site.authority(new=True):
        site.join("machine-0", new=True, authority_is_new=True)


@requires_compiler
def test_machines_join_and_renew_whichever_end_is_of_the_version_before(tmp_path: Path) -> None:
    site = Site(tmp_path, VersionBefore(tmp_path / "before"))
    for is_new in (False, True):
        with site.authority(new=is_new):
            for machine_is_new in (False, True):
                site.join(f"machine-{len(site.machines)}", new=machine_is_new, authority_is_new=is_new)
            assert site.keep() == dict.fromkeys(site.machines, ""), "nothing is due"
    site.clock.jump(DAYS_UNTIL_DUE * 86400)
    with site.authority(new=True):
        assert site.keep() == {machine: machine for machine in site.machines}
    for machine in site.machines:       # and they change their versions, too
        site.machines[machine] = not site.machines[machine]
    site.clock.jump(DAYS_UNTIL_DUE * 86400)
    with site.authority(new=False):     # and back
        assert site.keep() == {machine: machine for machine in site.machines}
        site.revoke("machine-0", new=False)
        wait_until(lambda: "revoked" in site.refusal(), 10, "the authority still serves who was revoked")
