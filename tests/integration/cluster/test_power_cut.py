"""A power cut after which every replica has kept less than the namespace says."""

import json
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from speedwell.fs.errors import AppendFailed, ReadFailed
from tests.local_cluster import SCRIPTS, LocalCluster

KEPT, LOST = random.Random(1).randbytes(700_000), random.Random(2).randbytes(500_000)


def speedwell(cluster: LocalCluster, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([str(SCRIPTS / "speedwell"), *arguments, "--nameserver", cluster.nameserver.address],
                          capture_output=True, check=False, timeout=60)


def cut_the_power(cluster: LocalCluster, saved: Path) -> None:
    """Every dataserver comes back with what it had when its directory was `saved`."""
    for daemon in cluster.dataservers:
        daemon.kill()
        shutil.rmtree(cluster.data_directory(daemon.name))
        shutil.copytree(saved / daemon.name, cluster.data_directory(daemon.name))
    cluster.revive()


@pytest.mark.parametrize("kept", [KEPT[:3000], KEPT], ids=["small", "large"])
def test_what_is_there_is_read_and_after_a_repair_the_file_is_an_ordinary_one(tmp_path: Path, kept: bytes) -> None:
    with LocalCluster(tmp_path, dataservers=3, chunk_size=1 << 18) as cluster:
        client = cluster.client(metadata_cache_seconds=0)
        client.create("/f")
        client.append("/f", kept)
        cluster.save_data(tmp_path / "saved")
        client.append("/f", LOST)
        cut_the_power(cluster, tmp_path / "saved")

        assert client.lookup("/f", fresh=True).size == len(kept) + len(LOST)
        with client.open_read("/f") as reader:
            pieces = [reader.read(offset, 1000) for offset in range(0, len(kept) - 999, 1000)]
            assert b"".join(pieces) == kept[:len(kept) // 1000 * 1000]
            with pytest.raises(ReadFailed, match=f"has only {len(kept)} bytes"):
                reader.read(len(kept) - 10, 1000)
            assert reader.read(len(kept) - 10, 10) == kept[-10:]
        assert speedwell(cluster, "cat", "/f").stdout == kept
        with pytest.raises(AppendFailed):
            client.append("/f", b"more")

        found = json.loads(speedwell(cluster, "fsck", "--json").stdout)["problems"]
        assert [problem["left"] for problem in found if problem["kind"] == "lost-tail"] == [len(kept)]
        repaired = speedwell(cluster, "fsck", "--repair")
        assert (repaired.returncode, repaired.stderr) == (1, b"")
        assert client.lookup("/f", fresh=True).size == len(kept)
        assert client.append("/f", b"more") == len(kept)
        with client.open_read("/f") as reader:
            assert reader.read(0, len(kept) + 5) == kept + b"more"
