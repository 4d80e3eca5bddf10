"""What programs see of a mount is the same where several nameservers own the namespace.

These are the quick modules of the mount's own tests; `scripts/test tests/integration/fuse_mount --metadata-servers 3`
runs all of them so.
"""

# ruff: noqa: F403
from pathlib import Path

import pytest

from speedwell.fs import slots
from tests.etcd import requires_etcd
from tests.integration.fuse_mount.test_mount_changing import *
from tests.integration.fuse_mount.test_mount_consistency import *
from tests.integration.fuse_mount.test_mount_posix import *
from tests.integration.fuse_mount.test_mount_quotas import *
from tests.integration.fuse_mount.test_mount_renaming import (  # noqa: F401
    test_a_file_may_have_a_name_like_those_that_libfuse_hides_files_under,
    test_a_program_that_dies_while_it_has_replaced_files_open_leaves_nothing,
    test_a_rename_that_is_refused_leaves_the_open_file_where_it_was,
    test_an_open_file_that_another_mount_has_replaced_is_replaced_once_more,
    test_renaming_one_name_of_an_open_file_over_another_changes_nothing,
    test_who_has_the_replaced_file_open_on_another_mount_keeps_it,
)
from tests.integration.fuse_mount.test_mount_trash import *
from tests.local_cluster import LocalCluster
from tests.owner_daemons import OwnerDaemons

pytestmark = [pytest.mark.root, requires_etcd]


def test_directories_of_these_tests_are_spread_over_all_owners(here: Path, cluster: LocalCluster) -> None:
    assert isinstance(cluster.nameserver, OwnerDaemons)
    owner_of = cluster.nameserver.owners()
    for number in range(40):
        (here / str(number)).mkdir()
    assert {owner_of[slots.block_of(path.stat().st_ino)] for path in here.iterdir()} == set(
        cluster.nameserver.address.split(","))
