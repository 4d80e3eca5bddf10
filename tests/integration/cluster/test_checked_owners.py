"""fsck, dump and load of a namespace that three nameservers own, with all that it can hold."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

import pytest

from speedwell.fs import slots
from speedwell.fs.client import Client
from speedwell.fs.proto import speedwell_pb2 as pb
from tests.etcd import requires_etcd
from tests.integration.fuse_mount.mounting import Mounted
from tests.local_cluster import OWNERS_VARIABLE, SCRIPTS, Daemon, LocalCluster
from tests.owner_daemons import OwnerDaemons
from tests.waiting import wait_until

pytestmark = [pytest.mark.root, requires_etcd]

DIRECTORIES = 16
KEEP_NS = 3600 * 10**9


@dataclass
class Filled:
    """A namespace with a file in each of many directories, which has a second name in another one. In each, two files
    are open without a name: one that its own mount removed, and one that another did. One file is in the trash."""

    cluster: LocalCluster
    owners: OwnerDaemons
    contents: dict[str, bytes]
    opened: list[tuple[FileIO, bytes]]

    def speedwell(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run([SCRIPTS / "speedwell", *arguments, "--nameserver", self.owners.address],
                              capture_output=True, text=True, timeout=120, check=False)

    def json(self, *arguments: str | Path) -> Any:
        return json.loads(self.speedwell(*arguments, "--json").stdout)

    def names(self) -> list[dict[str, Any]]:
        """All there is. Owners differ for a moment in which dataservers live, and so in the order of replicas."""
        return [entry | {"replicas": {replica["dataserver_id"] for replica in entry.get("replicas", ())}}
                for entry in self.json("ls", "-R", "/")]

    def require_all(self) -> None:
        with self.cluster.client(metadata_cache_seconds=0) as client:
            for path, data in self.contents.items():
                with client.open_read(path) as reader:
                    assert reader.read(0, reader.size) == data, path


def told_by(nameserver: Daemon) -> pb.StatisticsReply:
    with Client(nameserver.address) as client:
        return client.statistics()


@pytest.fixture
def filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Filled]:
    monkeypatch.setenv(OWNERS_VARIABLE, "3")
    with ExitStack() as stack:
        cluster = stack.enter_context(LocalCluster(
            tmp_path / "cluster", dataservers=3, replication=2, nameserver_arguments=("--deletion-grace", "600")))
        assert isinstance(cluster.nameserver, OwnerDaemons)
        mounts = [Mounted(tmp_path / name, cluster.nameserver.address) for name in ("here", "there")]
        for mount in mounts:
            stack.callback(mount.clean_up)
        here, there = (mount.path for mount in mounts)
        filled = Filled(cluster, cluster.nameserver, {}, [])
        for number in range(DIRECTORIES):
            (here / f"d{number}" / "below").mkdir(parents=True)
        owner_of = filled.owners.owners()
        assert {owner_of[slots.block_of(path.stat().st_ino)] for path in here.iterdir()} == set(owner_of)
        for number in range(DIRECTORIES):
            directory, second = f"d{number}", f"d{(number + 5) % DIRECTORIES}/below/second"
            data = os.urandom(3000 + number)
            filled.contents |= {f"/{directory}/file": data, f"/{second}": data}
            (here / directory / "file").write_bytes(data)
            (here / second).hardlink_to(here / directory / "file")
            (here / directory / "link").symlink_to("file")
            for name, remover in (("opened", here), ("removed", there)):
                path = here / directory / name
                path.write_bytes(data[:1000])
                filled.opened.append((stack.enter_context(path.open("rb", buffering=0)), data[:1000]))
                (remover / directory / name).unlink()
        with cluster.client() as client:
            client.metadata.trash.keep("/d2", KEEP_NS)
        for number in (2, 3):
            (here / f"d{number}/kept").write_bytes(b"in the trash of one of them")
            (here / f"d{number}/kept").unlink()
        cluster.set_quota("/d4", max_bytes=1 << 30, max_files=20)
        yield filled


def test_fsck_looks_at_all_files_and_repairs_them_whoever_owns_them(filled: Filled) -> None:
    checked = filled.json("fsck", "--verify")
    # one that its own mount removed is a file still, one that another removed is not
    assert checked["clean"] and checked["files"] == DIRECTORIES * 2 + 1, checked
    with filled.cluster.client() as client:
        for number in range(DIRECTORIES):
            attributes = client.lookup(f"/d{number}/file")
            stored = filled.cluster.stored(attributes.replicas[0].dataserver_id, attributes.file_id)
            data = bytearray(stored.read_bytes())
            data[-1] ^= 1
            stored.write_bytes(data)
    broken = filled.json("fsck", "--verify")
    names = {path.lstrip("/") for path in filled.contents}
    assert broken["counts"]["corrupt"] == broken["counts"]["under-replicated"] == DIRECTORIES
    assert {problem["path"].lstrip("/") for problem in broken["problems"]} <= names
    repaired = filled.json("fsck", "--verify", "--repair")
    assert repaired["clean"] and {problem["inode"] for problem in repaired["found"]} == {
        problem["inode"] for problem in broken["problems"]}
    filled.require_all()
    for file, data in filled.opened:
        assert os.pread(file.fileno(), 2000, 0) == data


def test_a_dump_brings_all_back_into_an_etcd_that_lost_it_with_all_mirrors(filled: Filled, tmp_path: Path) -> None:
    dump = tmp_path / "names"
    dumped = filled.speedwell("dump", dump)
    assert dumped.returncode == 0, dumped.stderr
    before = filled.names()
    records = [json.loads(line) for line in dump.read_text().splitlines()[1:-1]]
    assert sum("entry" in record for record in records) == len(before)
    assert sum("inode" in record for record in records) == len(before) - DIRECTORIES + 1    # second names; the root
    filled.owners.kill()
    filled.owners.etcd.lose_everything()
    shutil.rmtree(tmp_path / "cluster" / "nameserver")
    filled.owners.launch()
    filled.owners.wait_ready()
    loaded = filled.speedwell("load", dump)
    assert loaded.returncode == 0, loaded.stderr
    for member in filled.owners.members:
        wait_until(lambda member=member: len(told_by(member).warnings) == len(filled.cluster.dataservers), 30,
                   "an owner does not say that dataservers are of another namespace")
    for daemon in filled.cluster.dataservers:
        assert filled.speedwell("node", "adopt", daemon.name).returncode == 0
    filled.cluster.wait_alive({daemon.name for daemon in filled.cluster.dataservers})
    assert filled.names() == before
    for member in filled.owners.members:
        wait_until(lambda member=member: not told_by(member).awaited_inventories, 30,
                   "an owner does not say that all dataservers have said what they have")
        assert not told_by(member).warnings
    checked = filled.json("fsck")
    # two replicas of each content that a dump has not: open ones, the one in the trash, and one that waited to go
    assert {kind: count for kind, count in checked["counts"].items() if count} == {
        "orphaned": (DIRECTORIES * 2 + 2) * 2}, checked
    assert filled.speedwell("fsck", "--repair").returncode == 1
    filled.require_all()
    with filled.cluster.client() as client:
        assert [(quota.path, quota.max_files) for quota in client.metadata.quotas()] == [(b"/d4", 20)]
        assert list(client.metadata.trash.entries()) == []
