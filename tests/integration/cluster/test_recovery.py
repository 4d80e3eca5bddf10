"""Dataservers that stay away, come back, lose files, are drained: every file gets its replicas back."""

import json
import random
import shutil
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from speedwell.cluster.fsck import check
from speedwell.fs.client import Changes, Client
from speedwell.fs.proto.speedwell_pb2 import Attributes
from tests.local_cluster import SCRIPTS, LocalCluster
from tests.waiting import wait_until

FILES = 6
SPARSE_BYTES = 128 << 20


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path, dataservers=4, chunk_size=1 << 20, deletion_grace_seconds=1,
                      nameserver_arguments=("--recovery-grace", "1")) as cluster:
        yield cluster


def fill(client: Client, count: int = FILES) -> dict[str, bytes]:
    contents = {}
    for number in range(count):
        data = contents[f"/f{number}"] = random.Random(number).randbytes(300_000 * number)
        with client.open_append(f"/f{number}", client.create(f"/f{number}")) as appender:
            appender.write(data)
    return contents


def names(attributes: Attributes) -> set[str]:
    return {replica.dataserver_id for replica in attributes.replicas}


def all_on(cluster: LocalCluster, client: Client, contents: dict[str, bytes], servers: set[str]) -> bool:
    """Whether every file has three replicas among `servers`, each with all its bytes."""
    for path, data in contents.items():
        attributes = client.lookup(path, fresh=True)
        if len(attributes.replicas) != 3 or not names(attributes) <= servers:
            return False
        if data and any(cluster.stored_bytes(name, attributes.file_id) != data for name in names(attributes)):
            return False
    return True


def read_all(client: Client, contents: dict[str, bytes]) -> None:
    for path, data in contents.items():
        with client.open_read(path) as reader:
            assert reader.read(0, len(data) + 1) == data


def speedwell(cluster: LocalCluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(SCRIPTS / "speedwell"), *arguments, "--nameserver", cluster.nameserver.address],
                          capture_output=True, text=True, timeout=60, check=False)


def test_the_replicas_of_a_dead_dataserver_are_made_again_and_it_comes_back_empty(cluster: LocalCluster) -> None:
    client = cluster.client()
    contents = fill(client)
    dead = client.lookup("/f5").replicas[0].dataserver_id
    others = {"d0", "d1", "d2", "d3"} - {dead}
    cluster.dataserver(dead).kill()
    wait_until(lambda: all_on(cluster, client, contents, others), 30, "replicas are missing")
    for path in contents:
        client.append(path, b"more")
        contents[path] += b"more"
    cluster.revive()
    wait_until(lambda: (found := check(client.metadata)).clean and not found.waiting, 30,
               lambda: str(check(client.metadata).document()))
    assert not any(cluster.stored(dead, client.lookup(path).file_id).exists() for path in contents)
    read_all(client, contents)


def test_a_dataserver_that_is_back_in_time_keeps_its_replicas(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, dataservers=4) as cluster:
        client = cluster.client()
        contents = fill(client, 3)
        before = {path: names(client.lookup(path, fresh=True)) for path in contents}
        cluster.dataserver("d1").kill()
        cluster.wait_alive({"d0", "d2", "d3"})
        cluster.revive()
        assert check(client.metadata).clean
        assert {path: names(client.lookup(path, fresh=True)) for path in contents} == before


def test_a_file_that_grows_meanwhile_is_copied_whole(cluster: LocalCluster) -> None:
    client = cluster.client()
    contents = fill(client, 3)
    dead = client.lookup("/f2").replicas[1].dataserver_id
    cluster.dataserver(dead).kill()
    with client.open_append("/f2") as appender:
        def grown() -> bool:
            appender.append_record(b"x" * 1000)
            contents["/f2"] += b"x" * 1000
            return len(client.lookup("/f2", fresh=True).replicas) == 3 and dead not in names(client.lookup("/f2"))
        wait_until(grown, 30, "no third replica")
    wait_until(lambda: all_on(cluster, client, contents, {"d0", "d1", "d2", "d3"} - {dead}), 30, "not whole")


def test_a_dataserver_whose_disk_was_replaced_gets_its_files_again(cluster: LocalCluster) -> None:
    client = cluster.client()
    contents = fill(client)
    victim = cluster.dataserver(client.lookup("/f5").replicas[0].dataserver_id)
    victim.kill()
    shutil.rmtree(cluster.data_directory(victim.name))
    victim.start()
    wait_until(lambda: all_on(cluster, client, contents, {"d0", "d1", "d2", "d3"}), 40, "replicas are missing")
    read_all(client, contents)


def test_draining_moves_every_replica_and_undraining_lets_the_server_be_used_again(cluster: LocalCluster) -> None:
    client = cluster.client()
    contents = fill(client)
    client.create("/sparse", replicas=("d2", "d0", "d1"))
    client.change("/sparse", Changes(size=SPARSE_BYTES))
    drained = speedwell(cluster, "node", "drain", "d2", "--wait", "40")
    assert (drained.returncode, drained.stderr) == (0, "")
    *moved, last = drained.stdout.splitlines()
    assert last == "d2 holds no replicas any more"
    assert moved and all(line.startswith("draining d2: ") and line.endswith(" replicas moved") for line in moved)
    assert all_on(cluster, client, contents, {"d0", "d1", "d3"})
    assert client.lookup("/sparse").size == SPARSE_BYTES
    for replica in client.lookup("/sparse").replicas:
        stored = cluster.stored(replica.dataserver_id, client.lookup("/sparse").file_id)
        assert sum(path.stat().st_blocks * 512 for path in stored.iterdir()) < SPARSE_BYTES // 8
    client.create("/new")
    assert "d2" not in names(client.lookup("/new"))
    listed = json.loads(speedwell(cluster, "node", "list", "--json").stdout)
    assert {row["name"]: row["state"] for row in listed} == {
        "d0": "alive", "d1": "alive", "d2": "draining", "d3": "alive"}
    cluster.nameserver.kill()
    cluster.nameserver.start()
    assert json.loads(speedwell(cluster, "node", "list", "--json").stdout)[2]["state"] == "draining"
    assert speedwell(cluster, "node", "undrain", "d2").returncode == 0
    assert speedwell(cluster, "node", "drain", "never-seen").returncode == 1
    assert speedwell(cluster, "node", "drain", "d3", "--wait", "40").returncode == 0
    impossible = speedwell(cluster, "node", "drain", "d0")
    assert impossible.returncode == 1
    assert "to have up to 3 replicas, and only 2 other dataservers in use" in impossible.stderr
    assert speedwell(cluster, "node", "undrain", "d0").returncode == 0
    read_all(client, contents)


def test_a_dataserver_that_never_comes_back_is_removed_and_what_only_it_had_is_named(cluster: LocalCluster) -> None:
    client = cluster.client()
    contents = fill(client)
    alive = speedwell(cluster, "node", "remove", "d1")
    assert alive.returncode == 1 and "d1 is alive" in alive.stderr
    cluster.dataserver("d1").kill()
    cluster.wait_alive({"d0", "d2", "d3"})
    removed = speedwell(cluster, "node", "remove", "d1")
    assert (removed.returncode, removed.stderr) == (0, "")
    wait_until(lambda: all_on(cluster, client, contents, {"d0", "d2", "d3"}), 60, "replicas are missing")
    listed = json.loads(speedwell(cluster, "node", "list", "--json").stdout)
    assert [row["name"] for row in listed] == ["d0", "d2", "d3"]
    wait_until(lambda: check(client.metadata).clean, 60, "fsck still finds something")

    client.create("/only here", replicas=("d2",))
    client.append("/only here", b"x" * 1000)
    cluster.dataserver("d2").kill()
    cluster.wait_alive({"d0", "d3"})
    refused = speedwell(cluster, "node", "remove", "d2")
    assert refused.returncode == 1 and "d2 has the last replica of 1 file, 1000 B (inode" in refused.stderr
    forced = speedwell(cluster, "node", "remove", "d2", "--force")
    assert forced.returncode == 0 and "  /only here\n" in forced.stdout
    assert ("missing", "/only here") in {(problem.kind, problem.path) for problem in check(client.metadata).problems}
    cluster.dataserver("d2").start()
    cluster.wait_alive({"d0", "d2", "d3"})
    with client.open_read("/only here") as reader:      # nothing was deleted
        assert reader.read(0, 1000) == b"x" * 1000


def test_after_a_drain_fsck_calls_what_waits_for_its_deletion_normal_also_of_files_that_are_removed(
        tmp_path: Path) -> None:
    with LocalCluster(tmp_path, dataservers=4, deletion_grace_seconds=3600) as cluster:
        client = cluster.client()
        contents = fill(client)
        drained = next(iter(names(client.lookup("/f5"))))
        assert speedwell(cluster, "node", "drain", drained, "--wait", "40").returncode == 0
        after_drain = speedwell(cluster, "fsck")
        assert (after_drain.returncode, after_drain.stdout.split()[0]) == (0, "normal:"), after_drain.stdout
        client.remove("/f5")
        del contents["/f5"]
        after_removal = speedwell(cluster, "fsck")
        assert after_removal.returncode == 0 and after_removal.stdout.endswith("clean\n"), after_removal.stdout
        read_all(client, contents)


def test_fsck_finds_what_is_wrong_and_repairs_it(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, dataservers=4, deletion_grace_seconds=3600) as cluster:
        client = cluster.client()
        contents = fill(client, 4)
        clean = speedwell(cluster, "fsck")
        assert (clean.returncode, clean.stdout.strip()[-5:]) == (0, "clean")
        attributes = client.lookup("/f3")
        victim = cluster.dataserver(attributes.replicas[1].dataserver_id)
        victim.kill()
        shutil.rmtree(cluster.stored(victim.name, attributes.file_id))
        orphan = "0123abcd-0000-4000-8000-00000000000a"
        shutil.copytree(cluster.stored(victim.name, client.lookup("/f2").file_id)
                        if victim.name in names(client.lookup("/f2")) else
                        cluster.stored(attributes.replicas[0].dataserver_id, attributes.file_id),
                        cluster.stored(victim.name, orphan))
        victim.start()
        found = speedwell(cluster, "fsck", "--json")
        kinds = {problem["kind"] for problem in json.loads(found.stdout)["problems"]}
        assert found.returncode == 4 and kinds <= {"lost-replica", "under-replicated", "orphaned"} \
            and "orphaned" in kinds
        repaired = speedwell(cluster, "fsck", "--repair", "--timeout", "40")
        assert (repaired.returncode, repaired.stderr) == (1, ""), repaired.stdout
        assert speedwell(cluster, "fsck").returncode == 0
        assert not cluster.stored(victim.name, orphan).exists()
        read_all(client, contents)


@pytest.mark.parametrize("pause_seconds", [0.0, 0.2])
def test_a_file_that_is_changed_all_the_time_gets_its_missing_replica_meanwhile(cluster: LocalCluster,
                                                                               pause_seconds: float) -> None:
    client = cluster.client()
    content = random.Random(7).randbytes(3 << 20)
    client.create("/hot")
    client.append("/hot", content)
    done: list[bytes] = []
    stopping = threading.Event()

    def change() -> None:
        while not stopping.wait(pause_seconds):
            data = [random.Random(len(done)).randbytes(20_000)]
            client.change("/hot", Changes([(70_000, 90_000)], lambda channel, data=data: channel.send_bytes(data)))
            done.extend(data)

    with ThreadPoolExecutor(1) as pool:
        changing = pool.submit(change)

        def goes_on(count: int) -> None:
            before = len(done)
            wait_until(lambda: changing.done() or len(done) >= before + count, 30, "the changes stand still")
            assert not changing.done(), changing.result()

        try:
            goes_on(3)
            dead = client.lookup("/hot", fresh=True).replicas[-1].dataserver_id
            cluster.dataserver(dead).kill()
            others = {"d0", "d1", "d2", "d3"} - {dead}
            wait_until(lambda: changing.done() or names(client.lookup("/hot", fresh=True)) == others, 30,
                       "its replica is missing as long as it is changed")
            goes_on(5)
            assert names(client.lookup("/hot", fresh=True)) == others
        finally:
            stopping.set()
    changing.result()
    found = client.lookup("/hot", fresh=True)
    for replica in list(found.replicas):
        del found.replicas[:]
        found.replicas.append(replica)
        with client.open_read("/hot", found) as reader:
            assert reader.read(0, len(content) + 1) == content[:70_000] + done[-1] + content[90_000:]
