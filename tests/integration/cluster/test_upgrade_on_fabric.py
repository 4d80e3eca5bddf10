"""All processes of an installation on a fabric change their version, one at a time, while programs work: in the order
of docs/upgrades.md, and in the reverse one back."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import requests

from speedwell.cluster import host_agents, identities
from speedwell.cluster.controller_client import ask
from speedwell.cluster.errors import NotRunning
from speedwell.cluster.processes import Processes
from speedwell.cluster.supervisor import down
from speedwell.fs.client import Client
from speedwell.fs.identity import files
from speedwell.topo.emulation.processes import in_namespace
from tests.installed_version import SECONDS, Installed
from tests.machine_state import left_on_machine
from tests.upgrade_programs import NEW_CLIENT, Load
from tests.version_before import FIRST, REPOSITORY, VersionBefore
from tests.waiting import wait_until

pytestmark = [pytest.mark.root, pytest.mark.full, pytest.mark.timeout(1500)]

UP = """import json, sys
from pathlib import Path
from PACKAGE.topo.fabric import spine_leaf
from PACKAGE.cluster.fabric_settings import read_settings, with_all_systems
from PACKAGE.cluster.supervisor import up
folder = Path(sys.argv[1])
fabric = spine_leaf(leaves=2, spines=2, hosts_per_leaf=2, host_bps=20e6)
print(json.dumps(up(read_settings(fabric=fabric, directory=folder / "cluster", machine=True, replication=3,
    mounts={name: folder / name for name in ("r0h0", "r1h0")}, **with_all_systems(fabric)))))
"""
COMPILE = """from PACKAGE.controller.coflows.policies import compile_policy
from PACKAGE.controller.policy.placements.chain_kernels import compile_kernels
from PACKAGE.controller.policy.reads.selection import compile_selection
compile_selection(), compile_kernels(), compile_policy("coflow-plus")
"""
CHECK = """import json, sys
from speedwell.fs.client import Client
from speedwell.fs.identity import files
from tests.upgrade_programs import require_contents
with Client(sys.argv[1]) as client:
    require_contents(client, json.loads(sys.argv[2]))
"""
ORDER = ("controller", "timeslices", "nameserver", "dataserver", "metadata", "agent", "mount")
"""As in docs/upgrades.md, by the first word of a process' name; etcd and authority are not part of this one."""
PROGRAMS = {"metadata": "metadata-store", "agent": "host-agent"}
FILE_BYTES = 300_000


class MountLoad:
    """Writes files through one mount, and reads them through the other, each way in turns."""

    def __init__(self, mounts: Sequence[Path]) -> None:
        self._mounts = mounts
        self._free = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._error: Exception | None = None
        self.count = 0

    def __enter__(self) -> MountLoad:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        """No file is open meanwhile."""
        with self._free:
            yield

    def content(self, number: int) -> bytes:
        return f"{number} ".encode() * (FILE_BYTES // len(f"{number} "))

    def require_progress(self) -> None:
        before = self.count
        wait_until(lambda: self._error or self.count >= before + 2, SECONDS, "the programs on mounts stand still")
        if self._error:
            raise self._error

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                with self._free:
                    self._round(*(self._mounts if self.count % 2 else reversed(self._mounts)))
                    self.count += 1
                self._stopping.wait(0.2)
        except Exception as error:
            self._error = error

    def _round(self, one: Path, other: Path) -> None:
        content = self.content(self.count)
        with (one / f"{self.count}.new").open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        (one / f"{self.count}.new").rename(one / f"{self.count}")
        assert (other / f"{self.count}").read_bytes() == content


class Fabric:
    def __init__(self, folder: Path, before: VersionBefore) -> None:
        self.folder, self.directory, self.before = folder, folder / "cluster", before
        self.programs = Installed(folder / "programs", before)
        # or its controller is late where cores are busy
        for new in (False, True):
            self.programs.call(COMPILE, new=new)
        self.description = json.loads(self.programs.call(UP, folder))
        self.client = Client(self.description["nameserver"])
        self.agents = len(self.names("agent"))

    def names(self, role: str) -> list[str]:
        return [record.name for record in Processes(self.directory).running()
                if record.name.partition("-")[0] == role]

    def on(self, host: str, *command: str) -> list[str]:
        return in_namespace(self.description["hosts"][host]["pid"], command)

    def restart(self, role: str, *, new: bool, load: MountLoad) -> Iterator[str]:
        """Each process of a role in turns."""
        program = f"speedwell-{PROGRAMS.get(role, role)}"
        names = self.names(role)
        assert names, f"no {role} runs"
        # A signal that a mount does not hear of leaves a mount that its supervisor makes again.
        number = signal.SIGKILL if role == "mount" else signal.SIGTERM
        for name in names:
            with load.away() if role == "mount" else contextlib.nullcontext():
                self.programs.restart(self.directory, name, program, new=new, number=number)
            if role != "metadata" or name == names[-1] or self.before.name != FIRST:
                yield name      # metadata servers of the first version talk to their own kind alone

    def metadata(self, *words: str, new: bool) -> str:
        """On a host, with the command of a version."""
        program = (Path(sys.executable).parent if new else self.before.scripts) / "speedwell"
        return subprocess.run(self.on("r0h1", str(program), "metadata", *words), check=True, capture_output=True,
                              text=True, timeout=SECONDS).stdout

    def lacking(self, paths: Sequence[str]) -> list[str]:
        return [path for path in paths if len(self.client.lookup(path, fresh=True).replicas) < 3]

    def heard_agents(self) -> int:
        """By the scheduler's metrics: over TLS where an earlier supervisor has it answer beyond loopback."""
        scheduler = Processes(self.directory).find(host_agents.SCHEDULER)
        if scheduler is None or not scheduler.address:
            return 0
        own = self.directory / identities.FOLDER / "operator" / files.CERTIFICATE
        with contextlib.suppress(requests.RequestException), warnings.catch_warnings():
            warnings.simplefilter("ignore")     # its certificate names a role, no address
            told = requests.get(scheduler.address.split()[-1], timeout=5, cert=str(own), verify=False)
            return told.text.count("\nspeedwell_timeslices_destinations{")
        return 0

    def is_steered(self) -> bool:
        with contextlib.suppress(NotRunning):
            return ask(self.description["controller"], "/v1/health")["status"] == "ok"
        return False


@pytest.fixture
def fabric(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fabric]:
    monkeypatch.setenv("SPEEDWELL_STATE_DIRECTORY", str(tmp_path / "state"))
    left = left_on_machine()
    before = VersionBefore(tmp_path / "before")
    try:
        fabric = Fabric(tmp_path, before)
        yield fabric
        fabric.client.close()
    finally:
        with contextlib.suppress(NotRunning):
            down()      # this version's, of a supervisor of the version before
    assert left_on_machine() == left


def test_no_byte_and_no_request_is_lost_while_each_process_on_a_fabric_changes_its_version_and_back(
        fabric: Fabric) -> None:
    mounts = [Path(path) for path in fabric.description["mounts"].values()]
    own = fabric.directory / identities.FOLDER / "mount-r0h0"
    keys: list[str] = []
    with MountLoad(mounts) as on_mounts, contextlib.ExitStack() as stack:
        running = [Load(name, module, fabric.description["nameserver"], fabric.folder, own, path,
                        fabric.on(host, sys.executable))
                   for name, module, path, host in (
                       ("old-client", f"{fabric.before.package}.client", fabric.before.tree, "r0h1"),
                       ("new-client", NEW_CLIENT, None, "r1h1"))]
        for load in running:
            stack.callback(load.kill)

        def settle(new_metadata: bool) -> None:
            for load in running:
                load.require_progress(SECONDS)
            on_mounts.require_progress()
            wait_until(lambda: fabric.heard_agents() == fabric.agents, SECONDS, "the scheduler does not hear all")
            wait_until(fabric.is_steered, SECONDS, "the controller is not well")
            paths = ["/shared", *(f"/{load.name}{which}" for load in running for which in ("", "-changed")),
                     *(f"/{number}" for number in range(max(0, on_mounts.count - 30), on_mounts.count))]
            wait_until(lambda: not fabric.lacking(paths), SECONDS,
                       lambda: f"{fabric.lacking(paths)} have fewer than three replicas")
            for key in keys:
                assert fabric.metadata("get", key, new=new_metadata) == f"value of {key}"
            keys.append(f"key-{len(keys)}")
            fabric.metadata("put", keys[-1], f"value of {keys[-1]}", new=new_metadata)
            del keys[:-5]

        new_metadata = False
        settle(new_metadata)
        for new, order in ((True, ORDER), (False, ORDER[::-1])):
            for role in order:
                for name in fabric.restart(role, new=new, load=on_mounts):
                    if role == "metadata":
                        new_metadata = new
                    print("upgraded" if new else "back", name, flush=True)
                    settle(new_metadata)
        for load in running:
            load.end()
    assert on_mounts.count > 20
    for number in range(on_mounts.count):
        assert (mounts[number % 2] / f"{number}").read_bytes() == on_mounts.content(number)
    offsets = json.dumps({load.name: load.offsets for load in running})
    subprocess.run(fabric.on("r0h1", sys.executable, "-c", CHECK, fabric.description["nameserver"], offsets),
                   cwd=REPOSITORY, check=True, timeout=300)
