"""A nameserver that comes back with another namespace, or with an old copy: what dataservers hold stays."""

import json
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from speedwell.fs.client import Client
from speedwell.fs.errors import NamespaceRolledBack
from tests.local_cluster import SCRIPTS, LocalCluster
from tests.waiting import wait_until

DELETES_AFTER_SECONDS = 6.0
"""Longer than the graces below and the heartbeats in which an orphan was reported and deleted."""

DATA = {f"/f{number}": bytes([number]) * (200_000 * number + 10) for number in range(4)}


def start(directory: Path, *nameserver_arguments: str) -> LocalCluster:
    return LocalCluster(directory, dataservers=3, deletion_grace_seconds=1,
                        nameserver_arguments=("--recovery-grace", "1", *nameserver_arguments))


def speedwell(cluster: LocalCluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(SCRIPTS / "speedwell"), *arguments, "--nameserver", cluster.nameserver.address],
                          capture_output=True, text=True, check=False, timeout=60)


def quarantined(cluster: LocalCluster) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(speedwell(cluster, "quarantine", "list", "--json").stdout)
    return found


def fill(client: Client, contents: dict[str, bytes]) -> None:
    for path, data in contents.items():
        with client.open_append(path, client.create(path)) as appender:
            appender.write(data)


def all_there(client: Client, contents: dict[str, bytes]) -> bool:
    for path, data in contents.items():
        with client.open_read(path) as reader:
            assert reader.read(0, len(data) + 1) == data
    return True


def swap(cluster: LocalCluster, directory: Path | None, *arguments: str) -> None:
    """Have the nameserver served from `directory` (None: an empty one)."""
    place = cluster.directory / "nameserver"
    cluster.nameserver.stop()
    place.rename(cluster.directory / f"before-{time.monotonic_ns()}")
    if directory is not None:
        shutil.copytree(directory, place)
    cluster.nameserver.launch(*arguments)
    cluster.nameserver.wait_ready()


def test_an_empty_namespace_behind_the_nameserver_deletes_nothing_and_is_told(tmp_path: Path) -> None:
    with start(tmp_path) as cluster:
        client = cluster.client(metadata_cache_seconds=0)
        fill(client, DATA)
        right = tmp_path / "right"
        cluster.nameserver.stop()
        shutil.copytree(tmp_path / "nameserver", right)
        cluster.nameserver.launch()
        cluster.nameserver.wait_ready()
        swap(cluster, None, "--new")
        wait_until(lambda: speedwell(cluster, "fsck").stdout.count("to decide:") == 3, 10, "fsck says nothing")
        state = speedwell(cluster, "status")
        assert state.returncode == 1
        assert "speedwell node adopt d0" in state.stderr
        time.sleep(DELETES_AFTER_SECONDS)
        swap(cluster, right)
        cluster.wait_alive({"d0", "d1", "d2"})
        assert all_there(client, DATA)
        wait_until(lambda: speedwell(cluster, "fsck").returncode == 0, 20, "it is not clean")


def test_an_old_copy_is_only_read_and_what_it_lacks_goes_to_quarantine_and_comes_back(tmp_path: Path) -> None:
    with start(tmp_path, "--mirrors", "0") as cluster:
        client = cluster.client(metadata_cache_seconds=0)
        fill(client, {"/old": b"old"})
        cluster.nameserver.stop()
        shutil.copytree(tmp_path / "nameserver", tmp_path / "snapshot")
        cluster.nameserver.launch()
        cluster.nameserver.wait_ready()
        cluster.wait_alive({"d0", "d1", "d2"})
        fill(client, DATA)
        swap(cluster, tmp_path / "snapshot")
        wait_until(lambda: "old copy" in speedwell(cluster, "fsck").stdout, 10, "nobody notices")
        assert all_there(client, {"/old": b"old"})
        with pytest.raises(NamespaceRolledBack, match="fsck --accept-roll-back"):
            client.create("/new")
        time.sleep(DELETES_AFTER_SECONDS)
        assert quarantined(cluster) == []

        speedwell(cluster, "fsck", "--accept-roll-back")
        client.create("/new")
        kept: list[dict[str, object]] = []

        def everything_is_aside() -> bool:
            kept[:] = quarantined(cluster)
            return len(kept) == 3 * len(DATA)

        wait_until(everything_is_aside, 40, f"what no file has is not moved aside: {kept}")
        assert {copy["path"] for copy in kept} == set(DATA)
        assert all(6.9 * 86400 < float(str(copy["seconds_left"])) <= 7 * 86400 for copy in kept)
        assert "in quarantine: 12 contents" in speedwell(cluster, "fsck").stdout
        for path in DATA:
            content = next(str(copy["content"]) for copy in kept if copy["path"] == path)
            done = speedwell(cluster, "quarantine", "restore", content)
            assert (done.returncode, done.stderr) == (0, "")
        assert all_there(client, DATA)


def test_the_newest_store_gets_its_contents_back_out_of_quarantine(tmp_path: Path) -> None:
    with start(tmp_path, "--mirrors", "0") as cluster:
        client = cluster.client(metadata_cache_seconds=0)
        cluster.nameserver.stop()
        shutil.copytree(tmp_path / "nameserver", tmp_path / "snapshot")
        cluster.nameserver.launch()
        cluster.nameserver.wait_ready()
        cluster.wait_alive({"d0", "d1", "d2"})
        fill(client, DATA)
        cluster.nameserver.stop()
        shutil.copytree(tmp_path / "nameserver", tmp_path / "newest")
        cluster.nameserver.launch()
        cluster.nameserver.wait_ready()
        swap(cluster, tmp_path / "snapshot")
        wait_until(lambda: "old copy" in speedwell(cluster, "fsck").stdout, 10, "nobody notices")
        speedwell(cluster, "fsck", "--accept-roll-back")
        wait_until(lambda: len(quarantined(cluster)) == 3 * len(DATA), 40, "what no file has is not moved aside")
        swap(cluster, tmp_path / "newest")
        wait_until(lambda: quarantined(cluster) == []
                   and speedwell(cluster, "fsck").returncode == 0, 40, "it does not come back")
        assert all_there(client, DATA)


def test_a_dataserver_of_another_installation_is_adopted_on_an_operators_word(tmp_path: Path) -> None:
    with start(tmp_path / "one") as one, start(tmp_path / "two") as two:
        client = one.client(metadata_cache_seconds=0)
        fill(client, DATA)
        file_id = client.lookup("/f3").file_id
        foreign = two.dataserver("d1")
        foreign.stop()
        shutil.rmtree(two.data_directory("d1"))
        one.dataserver("d1").kill()
        shutil.copytree(one.data_directory("d1"), two.data_directory("d1"))
        foreign.start()
        wait_until(lambda: "is refused" in foreign.log.read_text(), 10, "it is not refused")
        assert speedwell(two, "node", "adopt", "d1").returncode == 0
        two.wait_alive({"d0", "d1", "d2"})
        wait_until(lambda: file_id in speedwell(two, "quarantine", "list", "--json").stdout, 30,
                   "what no file has is not moved aside")
        assert list((two.data_directory("d1") / "mirror").glob("of-*"))
