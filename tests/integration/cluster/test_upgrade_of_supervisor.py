"""An installation on one machine is upgraded with its supervisor, and goes back to the version before."""

import contextlib
import json
import os
import signal
from pathlib import Path

import pytest

from speedwell.cluster.processes import Processes
from tests.etcd import requires_etcd
from tests.installed_version import Installed
from tests.integration.cluster.executable import pids
from tests.version_before import VersionBefore

pytestmark = [pytest.mark.root, pytest.mark.full, pytest.mark.timeout(900)]

ROLES = ("nameserver", "dataserver", "mount")
"""As in docs/upgrades.md; of nameservers the leader last."""
SPEEDWELL = """import sys
from PACKAGE.cluster.cli import main
main(sys.argv[1:])
"""


@pytest.mark.parametrize("nameservers", [1, pytest.param(3, marks=requires_etcd)])
def test_an_installation_is_upgraded_with_its_supervisor_and_goes_back(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nameservers: int) -> None:
    monkeypatch.setenv("SPEEDWELL_STATE_DIRECTORY", str(tmp_path / "state"))
    programs = Installed(tmp_path / "programs", VersionBefore(tmp_path / "before"))
    directory, mountpoint = tmp_path / "cluster", tmp_path / "mount"
    contents: dict[str, bytes] = {}

    def speedwell(*words: object, new: bool) -> str:
        return programs.call(SPEEDWELL, *words, new=new)

    def use() -> None:
        """All that was written is there, in the mount and by the commands of both versions, and more is."""
        name = f"file-{len(contents)}"
        (mountpoint / name).write_bytes(contents.setdefault(name, os.urandom(300_000)))
        for each, content in contents.items():
            assert (mountpoint / each).read_bytes() == content
        for new in (False, True):
            assert set(contents) == set(speedwell("ls", "/", new=new).split())

    def change(*, new: bool) -> None:
        told = json.loads(speedwell("status", "--json", new=True))
        leads = [each["name"] for each in told["processes"] if told["roles"].get(each["address"]) == "leads"]
        order = sorted((name for name in pids(directory) if name.partition("-")[0] in ROLES),
                       key=lambda name: (ROLES.index(name.partition("-")[0]), name in leads, name))
        for name in order if new else reversed(order):
            programs.restart(directory, name, f"speedwell-{name.split('-')[0]}", new=new,
                             number=signal.SIGKILL if name == "mount" else signal.SIGTERM)
            use()

    speedwell("up", "--local", directory, "--mount", mountpoint, *(
        ["--nameservers", nameservers] if nameservers > 1 else []), new=False)
    try:
        assert sum(name.startswith("nameserver") for name in pids(directory)) == nameservers
        use()
        change(new=True)
        of_before = pids(directory)["supervisor"]
        speedwell("down", new=True)
        assert not Processes(directory).running()
        speedwell("up", "--local", directory, new=True)
        assert pids(directory)["supervisor"] != of_before
        use()
        speedwell("down", new=True)
        programs.install(new=False)
        speedwell("up", "--local", directory, new=False)
        use()
        change(new=True)
        change(new=False)
    finally:
        with contextlib.suppress(Exception):
            speedwell("down", "--local", directory, "--force", new=True)
    assert not Processes(directory).running()
