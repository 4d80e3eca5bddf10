"""Flipped bits in what a dataserver keeps: found, told by fsck, and repaired from good replicas."""

import json
import random
from pathlib import Path

import pytest

from speedwell.cluster import fsck
from speedwell.fs.client import Changes, Client
from tests.integration.cluster.test_recovery import fill, read_all, speedwell
from tests.local_cluster import LocalCluster
from tests.waiting import wait_until

KINDS = ("*/meta", "*/sums", "*/[1-9p]*", "*.small")


def flip(path: Path, generator: random.Random) -> None:
    data = bytearray(path.read_bytes())
    data[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
    path.write_bytes(data)


def test_fsck_tells_of_corrupt_blocks_and_repairs_them(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, dataservers=3, dataserver_arguments=("--scrub-rate", "0")) as cluster:
        client = cluster.client()
        contents = fill(client, 3)
        attributes = client.lookup("/f1")
        victim = attributes.replicas[1].dataserver_id
        chunk = cluster.stored(victim, attributes.file_id) / "1"
        data = bytearray(chunk.read_bytes())
        data[len(data) // 2] ^= 16
        chunk.write_bytes(data)
        assert speedwell(cluster, "fsck").returncode == 0
        found = speedwell(cluster, "fsck", "--verify", "--json")
        problems = json.loads(found.stdout)["problems"]
        assert found.returncode == 4
        assert {(problem["kind"], problem["dataserver_id"]) for problem in problems} == {
            ("corrupt", victim), ("under-replicated", "")}
        repaired = speedwell(cluster, "fsck", "--verify", "--repair")
        assert (repaired.returncode, repaired.stderr) == (1, ""), repaired.stdout
        assert speedwell(cluster, "fsck", "--verify").returncode == 0
        read_all(client, contents)


def test_damage_that_no_replica_can_repair_is_told_and_nothing_is_thrown_away(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, dataservers=2, replication=2, dataserver_arguments=("--scrub-rate", "0")) as cluster:
        client = cluster.client()
        fill(client, 2)
        attributes = client.lookup("/f1")
        for replica in attributes.replicas:
            chunk = cluster.stored(replica.dataserver_id, attributes.file_id) / "1"
            chunk.write_bytes(b"\xff" + chunk.read_bytes()[1:])
        done = speedwell(cluster, "fsck", "--verify", "--repair", "--timeout", "2", "--json")
        assert done.returncode == 4
        assert {problem["kind"] for problem in json.loads(done.stdout)["problems"]} == {"corrupt", "missing"}
        assert speedwell(cluster, "fsck").returncode == 4      # now the scrubbers know it
        assert len(client.lookup("/f1").replicas) == 2


def test_flipped_bits_in_a_dataservers_own_files_are_repaired_without_a_hand(tmp_path: Path) -> None:
    _flip_and_repair(tmp_path, seed=1, rounds=2)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(2, 8))
def test_flipped_bits_in_a_dataservers_own_files_round_after_round(tmp_path: Path, seed: int) -> None:
    _flip_and_repair(tmp_path, seed, rounds=4)


def _flip_and_repair(directory: Path, seed: int, rounds: int) -> None:
    generator = random.Random(seed)
    with LocalCluster(directory, dataservers=4, chunk_size=1 << 20, deletion_grace_seconds=1,
                      dataserver_arguments=("--scrub-rate", "50")) as cluster:
        client = cluster.client(metadata_cache_seconds=0)
        contents = fill(client, 6)
        for number in range(4):
            contents[f"/small{number}"] = generator.randbytes(1 + 40_000 * number)
            client.create(f"/small{number}")
            client.append(f"/small{number}", contents[f"/small{number}"])
        for path in ("/f1", "/f2"):     # versions made from others have a map
            client.change(path, Changes([(70_000, 70_007)], lambda channel: channel.send_bytes([b"patched"])))
            contents[path] = contents[path][:70_000] + b"patched" + contents[path][70_007:]
        read_all(client, contents)
        for _ in range(rounds):
            victim = generator.choice(cluster.dataservers)
            victim.kill()
            stored = cluster.data_directory(victim.name)
            for kind in KINDS:
                files = sorted(path for path in stored.glob(f"[0-9a-f][0-9a-f]/{kind}") if path.stat().st_size)
                if files:
                    flip(generator.choice(files), generator)
            flip(stored / "dataserver", generator)
            victim.start()
            read_all(client, contents)
            _wait_clean(client)
            read_all(client, contents)


def _wait_clean(client: Client) -> None:
    """Until every byte everywhere is what it should be; nobody asks for a repair."""
    last = []

    def clean() -> bool:
        last[:] = [(check := fsck.check(client.metadata, verify=True)).problems, check.unreachable]
        return check.clean

    try:
        wait_until(clean, 60, "the damage is not repaired", interval_seconds=1.0)
    except AssertionError as error:
        raise AssertionError(f"{error}: {last}") from None
