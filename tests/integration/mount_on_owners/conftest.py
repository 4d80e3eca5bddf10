"""The cluster and the mounts of `fuse_mount`, with a namespace that three nameservers own."""

from collections.abc import Iterator

import pytest

from tests.integration.fuse_mount.conftest import here, ordinary_cluster, there, two_mounts  # noqa: F401
from tests.local_cluster import OWNERS_VARIABLE, LocalCluster


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv(OWNERS_VARIABLE, "3")
        with ordinary_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
            yield cluster
