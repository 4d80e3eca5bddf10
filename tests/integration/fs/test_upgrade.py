"""An installation that is upgraded one process at a time, from the version before, while programs append and read."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.local_cluster import SCRIPTS, Daemon, LocalCluster
from tests.upgrade_programs import NEW_CLIENT, Load, require_contents
from tests.version_before import VersionBefore
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(180)


@contextmanager
def loads(cluster: LocalCluster, before: VersionBefore) -> Iterator[list[Load]]:
    running = [Load(name, module, cluster.nameserver.address, cluster.directory, cluster.identity("mount"), path)
               for name, module, path in (("old-client", f"{before.package}.client", before.tree),
                                          ("new-client", NEW_CLIENT, None))]
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
        require_contents(client, {load.name: load.offsets for load in running})
        file_id = client.lookup("/shared").file_id
        contents = {cluster.stored_bytes(daemon.name, file_id) for daemon in cluster.dataservers}
        assert len(contents) == 1, "the replicas differ"
