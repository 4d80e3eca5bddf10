"""Clusters that the tests of a module share."""

from collections.abc import Iterator

import pytest

from tests.etcd import EtcdCluster
from tests.local_cluster import LocalCluster


@pytest.fixture(scope="module")
def one_cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three dataservers, and /f with the module's DATA on all of them."""
    with LocalCluster(tmp_path_factory.mktemp("cluster"), dataservers=3) as cluster:
        cluster.client().create("/f")
        cluster.client().append("/f", request.module.DATA)
        yield cluster


@pytest.fixture
def cluster(one_cluster: LocalCluster) -> Iterator[LocalCluster]:
    """The module's cluster, with all that a test killed running again after it."""
    yield one_cluster
    one_cluster.revive()


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    with EtcdCluster(tmp_path_factory.mktemp("etcd")) as cluster:
        yield cluster
