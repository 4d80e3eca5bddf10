"""etcd loses the namespace for good, and the nameservers give it back what they have of it."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from speedwell.fs import paths
from speedwell.fs.client import Client
from speedwell.fs.client.names.metadata import MetadataClient
from speedwell.fs.etcd_client import EtcdClient
from speedwell.fs.nameserver.backup.copy_holders import FORCE_FLAG
from speedwell.fs.nameserver.backup.provenance import SKIPPED_INODES
from tests.etcd import EtcdCluster, requires_etcd
from tests.integration.fs.test_namespace_owners import Changes, faults, owners
from tests.integration.fs.test_rebuild import fill, read_all, tree
from tests.local_cluster import OWNERS_VARIABLE, SCRIPTS, LocalCluster
from tests.owner_daemons import OwnerDaemons
from tests.several_nameservers import Installation
from tests.waiting import wait_until

pytestmark = requires_etcd
DIRECTORIES = 24
WORKERS, ROUNDS = 4, 3


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCluster]:
    monkeypatch.setenv(OWNERS_VARIABLE, "3")
    with LocalCluster(tmp_path / "cluster", dataservers=3, replication=2, chunk_size=1 << 16) as cluster:
        yield cluster


def owners_of(cluster: LocalCluster) -> OwnerDaemons:
    assert isinstance(cluster.nameserver, OwnerDaemons)
    return cluster.nameserver


def spread(client: Client) -> dict[str, bytes]:
    """Files in directories of all owners, with second names in others; what they hold."""
    contents = {}
    for number in range(DIRECTORIES):
        client.mkdir(f"/d{number}")
    for number in range(DIRECTORIES):
        path = f"/d{number}/file"
        client.create(path)
        contents[path] = contents[f"/d{(number + 7) % DIRECTORIES}/second"] = b"%d" % number * 1000
        client.append(path, contents[path])
        client.metadata.posix.link(path, f"/d{(number + 7) % DIRECTORIES}/second")
    return contents


def fsck(cluster: LocalCluster) -> subprocess.CompletedProcess[str]:
    return subprocess.run([SCRIPTS / "speedwell", "fsck", "--nameserver", cluster.nameserver.address],
                          capture_output=True, text=True, timeout=120, check=False)


def test_the_furthest_mirror_gives_etcd_its_namespace_back_once_an_operator_says_so(cluster: LocalCluster) -> None:
    members = owners_of(cluster)
    client = cluster.client(metadata_cache_seconds=0)
    contents = fill(client) | spread(client)
    behind, lost, furthest = members.members
    behind.kill()
    wait_until(lambda: set(members.owners(lost)) == {each.address for each in members.members[1:]}, 20,
               "the blocks of the one that was killed are not taken over")
    client.rename("/d3/file", "/d4/moved")
    contents["/d4/moved"] = contents.pop("/d3/file")
    client.create("/d5/new")
    client.append("/d5/new", b"while one was away")
    contents["/d5/new"] = b"while one was away"
    before, highest = tree(client), client.lookup("/d5/new").inode
    with closing(EtcdClient(members.etcd.endpoints)) as etcd:
        members.owners(furthest, etcd.range(b"\0", b"").header.revision)
    members.kill()
    members.etcd.lose_everything()
    shutil.rmtree(members.directory_of(lost.name) / "mirror")

    for member in (behind, furthest):
        member.launch()
        member.wait_ready()
    wait_until(lambda: members.log.read_text().count(f"start all nameservers with {FORCE_FLAG}") >= 2, 20,
               "they do not say what to do")
    members.kill()
    members.launch(FORCE_FLAG)
    members.wait_ready()
    assert tree(client) == before
    read_all(client, contents)
    client.create("/d5/newer")
    assert client.lookup("/d5/newer").inode == highest + 1 + SKIPPED_INODES
    wait_until(lambda: fsck(cluster).returncode == 0, 30, "it is not clean")


def test_one_that_leads_gives_etcd_its_namespace_back_too_and_one_that_was_away_takes_it_over(tmp_path: Path) -> None:
    with EtcdCluster(tmp_path) as etcd:
        installation = Installation(tmp_path, etcd, 2)
        try:
            with Client(installation.address, metadata_cache_seconds=0) as client:
                client.mkdir("/d")
                leader = installation.leader()
                away = next(each for each in installation.nameservers if each is not leader)
                away.kill()
                for number in range(3000):      # more than one piece
                    client.metadata.posix.make_symbolic_link(f"/d/{number}", b"%d" % number)
                leader.kill()
                etcd.lose_everything()
                leader.launch(FORCE_FLAG)
                leader.wait_ready()
                for number in range(40):        # the new etcd is further then than the mirror that was away
                    client.mkdir(f"/after{number}")
                away.start()
                leader.kill()
                assert {entry.name for entry in client.metadata.list("/d")} == {b"%d" % each for each in range(3000)}
                assert client.lookup("/d/2999").target == b"2999"
                assert len(client.metadata.list("/")) == 41
        finally:
            installation.stop()


def test_a_change_across_owners_that_was_under_way_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    with EtcdCluster(tmp_path) as etcd:
        installation = Installation(tmp_path, etcd, 3, "--shared")
        try:
            wait_until(lambda: len(owners(installation)) == 3, 20, "not all own a part")
            with MetadataClient(installation.address, 0) as client:
                directories = [client.mkdir(f"/d{number}").inode for number in range(12)]
                for seed in range(ROUNDS):
                    workers = [Changes(installation.address, directories, seed * WORKERS + each) for each in
                               range(WORKERS)]
                    for worker in workers:
                        worker.start()
                    wait_until(lambda workers=workers: all(worker.done > 20 for worker in workers), 60,
                               "nothing is changed")
                    etcd.lose_everything()
                    for nameserver in installation.nameservers:
                        nameserver.kill()
                    for worker in workers:
                        worker.stopped.set()
                    for nameserver in installation.nameservers:
                        nameserver.launch(FORCE_FLAG)
                    for worker in workers:      # what was not answered is asked again
                        worker.join(60)
                    wait_until(lambda: len(owners(installation)) == 3, 20, "not all own a part again")
                    assert faults(etcd, installation) == []
                    there = {(directory, entry.name): entry.attributes.inode for directory in directories
                             for entry in client.list(paths.of_inode(directory))}
                    known = {place: number for worker in workers for place, number in worker.names.items()}
                    lost = [place for place in known if there.get(place) != known[place]]
                    print(sum(worker.done for worker in workers), "changes, of the last milliseconds are lost:", lost,
                          [worker.wrong for worker in workers])
                    for worker in workers:
                        worker._client.close()
                    assert len(lost) <= 2 * WORKERS
                    for directory, name in there:
                        path = paths.below(directory, name)
                        (client.rmdir if client.lookup(path).type == 2 else client.remove)(path)
        finally:
            installation.stop()
