"""An installation that is upgraded one process at a time, from the version before, while programs append and read."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from speedwell import fs
from tests import upgrade_load
from tests.local_cluster import SCRIPTS, Daemon, LocalCluster
from tests.version_before import VersionBefore
from tests.waiting import wait_until

NEW_CLIENT = f"{fs.__name__}.client"
ROUNDS = 2
pytestmark = pytest.mark.timeout(180)


class Load:
    """A program of one version that appends and reads."""

    def __init__(self, name: str, module: str, cluster: LocalCluster, path: Path | None) -> None:
        self.name = name
        self._output = cluster.directory / f"{name}.output"
        self._errors = cluster.directory / f"{name}.errors"
        own = {"SPEEDWELL_IDENTITY": str(cluster.identity("mount"))}
        if path is not None:
            own["PYTHONPATH"] = str(path)
        with self._output.open("wb") as output, self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, upgrade_load.__file__, module, cluster.nameserver.address, name],
                stdin=subprocess.PIPE, stdout=output, stderr=errors, env=os.environ | own)

    @property
    def offsets(self) -> list[int]:
        """Of its records in /shared, as far as all of them was acknowledged and read back."""
        return [int(line) for line in self._output.read_text().splitlines()]

    def require_progress(self) -> None:
        """Another few records, each of them acknowledged and read back."""
        before = len(self.offsets)
        wait_until(lambda: self._process.poll() is not None or len(self.offsets) >= before + ROUNDS, 30,
                   f"{self.name} stands still")
        assert self._process.poll() is None, self._errors.read_text()

    def end(self) -> None:
        self._process.communicate(timeout=30)
        assert self._process.returncode == 0, self._errors.read_text()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()


@contextmanager
def loads(cluster: LocalCluster, before: VersionBefore) -> Iterator[list[Load]]:
    running = [Load("old-client", f"{before.package}.client", cluster, before.tree),
               Load("new-client", NEW_CLIENT, cluster, None)]
    try:
        yield running
    finally:
        for load in running:
            load.kill()


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> VersionBefore:
    return VersionBefore(tmp_path_factory.mktemp("version-before"))


def test_no_byte_and_no_request_is_lost_while_each_process_changes_its_version(before: VersionBefore,
                                                                              tmp_path: Path) -> None:
    with LocalCluster(tmp_path, dataservers=3, secure=True, scripts=before.scripts) as cluster:
        client = cluster.client()
        with loads(cluster, before) as running:

            def lacking() -> list[str]:
                paths = ["/shared", *(f"/{load.name}{which}" for load in running for which in ("", "-changed"))]
                return [path for path in paths if len(client.lookup(path, fresh=True).replicas) < 3]

            def settle() -> None:
                for load in running:
                    load.require_progress()
                wait_until(lambda: not lacking(), 30, lambda: f"{lacking()} have fewer than three replicas")

            def restart(daemon: Daemon, scripts: Path) -> None:
                daemon.stop()
                daemon.run_from(scripts)
                daemon.start()
                settle()

            settle()
            first, *others = cluster.dataservers
            restart(first, SCRIPTS)                 # new beside an old nameserver: somebody took the wrong order
            restart(cluster.nameserver, SCRIPTS)
            restart(others[0], SCRIPTS)
            restart(cluster.nameserver, before.scripts)     # and back
            restart(cluster.nameserver, SCRIPTS)
            restart(others[1], SCRIPTS)
            for load in running:
                load.end()
        for load in running:
            size = len(load.offsets) * upgrade_load.RECORD_BYTES
            assert upgrade_load.read(client, f"/{load.name}", 0, size + 1) == b"".join(
                upgrade_load.record(load.name, number) for number in range(len(load.offsets)))
            for number, offset in enumerate(load.offsets):
                assert upgrade_load.read(client, "/shared", offset, upgrade_load.RECORD_BYTES) == upgrade_load.record(
                    load.name, number)
            last = upgrade_load.record(load.name, len(load.offsets) - 1)
            assert upgrade_load.read(client, f"/{load.name}-changed", 0, upgrade_load.OTHER_BYTES + 1) == (
                upgrade_load.changed(last))
        assert client.lookup("/shared", fresh=True).size == sum(
            len(load.offsets) for load in running) * upgrade_load.RECORD_BYTES
        file_id = client.lookup("/shared").file_id
        contents = {cluster.stored_bytes(daemon.name, file_id) for daemon in cluster.dataservers}
        assert len(contents) == 1, "the replicas differ"
