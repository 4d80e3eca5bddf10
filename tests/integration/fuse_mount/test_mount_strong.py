"""A mount with --strong."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.fuse_mount.mounting import Mounted
from tests.local_cluster import LocalCluster

pytestmark = pytest.mark.root


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[tuple[LocalCluster, Mounted]]:
    with LocalCluster(tmp_path / "cluster", dataservers=3) as cluster:
        mounted = Mounted(tmp_path / "mnt", cluster.nameserver.address, "--strong")
        yield cluster, mounted
        mounted.clean_up()


def test_an_open_file_is_read_with_all_that_others_appended(mount: tuple[LocalCluster, Mounted]) -> None:
    cluster, mounted = mount
    client = cluster.client()
    client.create("/f")
    client.append("/f", b"first")
    with (mounted.path / "f").open("rb", buffering=0) as file:
        assert file.read(100) == b"first"
        for number in range(10):
            client.append("/f", b"record%d" % number)
            assert file.read(100) == b"record%d" % number
