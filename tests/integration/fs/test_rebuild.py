"""Real processes: a nameserver that lost its directory, or has it damaged, gets the namespace back by itself."""

import random
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from speedwell.fs.client import Client
from speedwell.fs.client.names import nameservers
from speedwell.fs.errors import NamespaceRebuilding
from speedwell.fs.nameserver.backup.copy_holders import FORCE_FLAG
from tests.local_cluster import LocalCluster
from tests.waiting import wait_until


def tree(client: Client, path: str = "/") -> dict[str, Any]:
    """Everything that can be seen of the namespace, by path."""
    found: dict[str, Any] = {}
    for entry in client.metadata.list(path):
        child = path.rstrip("/") + "/" + entry.name.decode()
        attributes = client.metadata.lookup(child, fresh=True)
        for replica in attributes.replicas:
            replica.alive = True
        attributes.ClearField("token")
        found[child] = (attributes.SerializeToString(deterministic=True),
                        client.metadata.posix.list_extended_attributes(child))
        if attributes.type == 2:
            found.update(tree(client, child))
    return found


def level(cluster: LocalCluster, number: int) -> None:
    """Wait until so many copies of the namespace are level."""
    with Client(cluster.nameserver.address, metadata_cache_seconds=0) as client:
        def are() -> bool:
            mirrors = client.statistics().mirrors
            return sum(mirror.holder and not mirror.behind for mirror in mirrors) == number

        wait_until(are, 15, "the copies of the namespace do not become level")


def fill(client: Client, seed: int = 1) -> dict[str, bytes]:
    """A tree with all kinds of things in it; the contents of its files."""
    generator = random.Random(seed)
    names = client.metadata
    contents = {}
    names.mkdir("/empty")
    names.mkdir("/old name", mode=0o2750)
    names.mkdir("/old name/below")
    for number in range(12):
        path = f"/old name/below/{number}"
        client.create(path, mode=0o640)
        contents[path.replace("old name", "new name")] = generator.randbytes(generator.randrange(1, 40_000))
        client.append(path, contents[path.replace("old name", "new name")])
    names.set_attributes("/old name/below/3", uid=5, gid=6, mode=0o4755, mtime_ns=12345, atime_ns=54321)
    names.posix.link("/old name/below/4", "/second name")
    names.posix.make_symbolic_link("/link", b"/nowhere")
    names.posix.set_extended_attribute("/empty", b"user.x", b"\0value")
    names.rename("/old name", "/new name")
    names.rename("/new name/below/5", "/renamed")
    contents["/renamed"] = contents.pop("/new name/below/5")
    client.remove("/new name/below/6")
    del contents["/new name/below/6"]
    return contents


def read_all(client: Client, contents: dict[str, bytes]) -> None:
    for path, data in contents.items():
        with client.open_read(path) as reader:
            assert reader.read(0, reader.size) == data, path


def test_a_lost_directory_is_rebuilt_also_after_kill_9_in_the_middle(tmp_path: Path,
                                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    with LocalCluster(tmp_path, dataservers=4) as cluster:
        client = cluster.client(metadata_cache_seconds=0)
        contents = fill(client)
        level(cluster, 3)
        expected = tree(client)
        statistics = client.statistics()
        cluster.nameserver.kill()
        shutil.rmtree(tmp_path / "nameserver")
        for _ in range(2):
            cluster.nameserver.start()
            with Client(cluster.nameserver.address) as impatient, monkeypatch.context() as patch:
                patch.setattr(nameservers, "REBUILDING_PATIENCE", 0)
                with pytest.raises(NamespaceRebuilding, match="gets its namespace back"):
                    impatient.lookup("/empty")
            cluster.nameserver.kill()
        cluster.nameserver.start()
        assert tree(client) == expected
        after = client.statistics()
        assert (after.files, after.directories) == (statistics.files, statistics.directories)
        read_all(client, contents)
        client.create("/new")
        assert client.lookup("/new").inode > max(client.lookup(path).inode for path in contents)
        assert client.append("/renamed", b"more") == len(contents["/renamed"])


def test_a_holder_that_is_away_is_waited_for_or_given_up_by_the_operator(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, dataservers=3) as cluster:
        client = cluster.client(metadata_cache_seconds=0)
        fill(client)
        level(cluster, 3)
        expected = tree(client)
        cluster.dataserver("d1").kill()
        cluster.nameserver.kill()
        shutil.rmtree(tmp_path / "nameserver")
        cluster.nameserver.start()
        log = cluster.nameserver.log
        wait_until(lambda: "rebuilding: d1, which may have the newest copy" in log.read_text(), 10, "d1 is not named")
        cluster.dataserver("d1").start()
        assert tree(client) == expected
        level(cluster, 3)
        cluster.dataserver("d2").kill()
        cluster.nameserver.kill()
        shutil.rmtree(tmp_path / "nameserver")
        cluster.nameserver.launch(FORCE_FLAG)
        cluster.nameserver.wait_ready()
        assert set(tree(client)) == set(expected)
        cluster.dataserver("d2").start()
        level(cluster, 3)


def test_damage_that_shows_while_it_serves_is_repaired_and_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, dataservers=3) as cluster:
        client = cluster.client(metadata_cache_seconds=0)
        fill(client)
        cluster.nameserver.stop()
        cluster.nameserver.start()
        level(cluster, 3)
        table = max((tmp_path / "nameserver" / "namespace").glob("*.ldb"))
        data = bytearray(table.read_bytes())
        data[200] ^= 4
        cluster.nameserver.stop()
        table.write_bytes(data)
        cluster.nameserver.start()
        made = []
        for number in range(60):   # while the damage is found
            client.metadata.mkdir(f"/made-{number}")
            made.append(f"/made-{number}")
        log = cluster.nameserver.log
        wait_until(lambda: "rebuilding: done" in log.read_text(), 15, "the damage is not found")
        names = {entry.name.decode() for entry in client.metadata.list("/")}
        assert names == {"empty", "new name", "second name", "link", "renamed", *(name[1:] for name in made)}


def test_a_dataserver_that_was_used_in_another_installation_is_refused(tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "one", dataservers=1) as one, LocalCluster(tmp_path / "two", dataservers=1) as two:
        level(one, 1)
        level(two, 1)
        foreign = two.dataserver("d0")
        foreign.stop()
        two.nameserver.stop(signal.SIGKILL)
        shutil.rmtree(tmp_path / "two" / "nameserver")
        two.nameserver.launch("--new")
        two.nameserver.wait_ready()
        foreign.start()
        wait_until(lambda: "belongs to the namespace" in foreign.log.read_text(), 10, "it is not refused")
        assert not two.client().statistics().dataservers


@pytest.mark.full
@pytest.mark.parametrize("seed", range(6))
def test_bits_flipped_anywhere_in_the_servers_databases(tmp_path: Path, seed: int) -> None:
    """In the nameserver's directory and in one copy at once, round after round."""
    generator = random.Random(seed)
    with LocalCluster(tmp_path, dataservers=4) as cluster:
        client = cluster.client(metadata_cache_seconds=0)
        contents = fill(client, seed)
        for round_ in range(4):
            client.metadata.mkdir(f"/round-{round_}")
            level(cluster, 3)
            expected = tree(client)
            victim = generator.choice([daemon.name for daemon in cluster.dataservers])
            cluster.dataserver(victim).kill()
            cluster.nameserver.kill()
            for directory in (tmp_path / "nameserver", cluster.data_directory(victim) / "mirror"):
                files = [path for path in sorted(directory.rglob("*"))
                         if path.is_file() and path.stat().st_size and not path.name.startswith(("LOG", "lock"))]
                for path in generator.sample(files, min(2, len(files))):
                    data = bytearray(path.read_bytes())
                    data[generator.randrange(len(data.rstrip(b"\0")) or 1)] ^= 1 << generator.randrange(8)
                    path.write_bytes(data)
            cluster.dataserver(victim).launch()
            cluster.nameserver.start()
            cluster.dataserver(victim).wait_ready()
            assert tree(client) == expected
            read_all(client, contents)
