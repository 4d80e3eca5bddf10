"""One cluster and two mounts of it, shared by the tests that do not break them."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.fuse_mount.mounting import Mounted
from tests.local_cluster import LocalCluster

CHUNK_BYTES = 1 << 20  # small, so that ordinary test files span several


def ordinary_cluster(directory: Path) -> LocalCluster:
    return LocalCluster(directory, dataservers=3, replication=2, chunk_size=CHUNK_BYTES)


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with ordinary_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture(scope="package")
def two_mounts(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Mounted, Mounted]]:
    directory = tmp_path_factory.mktemp("mounts")
    mounts: list[Mounted] = []
    try:
        for name in ("here", "there"):
            mounts.append(Mounted(directory / name, cluster.nameserver.address))
        yield mounts[0], mounts[1]
        assert [mount.stop() for mount in mounts] == [0, 0]
    finally:
        for mount in mounts:
            mount.clean_up()


directory_numbers = itertools.count()


@pytest.fixture
def here(two_mounts: tuple[Mounted, Mounted]) -> Path:
    """A fresh directory on the first mount."""
    directory = two_mounts[0].path / f"test{next(directory_numbers)}"
    directory.mkdir()
    return directory


@pytest.fixture
def there(here: Path, two_mounts: tuple[Mounted, Mounted]) -> Path:
    """The directory `here`, seen through the second mount."""
    return two_mounts[1].path / here.name
