"""The mount's read cache on the local disk."""

import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from speedwell.fs.client import Client
from speedwell.fs.client.read.disk_cache import BLOCK_BYTES
from tests.integration.fuse_mount.mounting import Mounted
from tests.local_cluster import LocalCluster

pytestmark = pytest.mark.root
CONTENT = random.Random(5).randbytes(5 * BLOCK_BYTES + 1234)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def mounted(cluster: LocalCluster, tmp_path: Path, cache: Path) -> Iterator[Mounted]:
    mounted = Mounted(tmp_path / "mount", cluster.nameserver.address, "--cache-directory", str(cache),
                      "--cache-size", "64MiB")
    try:
        yield mounted
    finally:
        mounted.clean_up()


def drop_pages() -> None:
    Path("/proc/sys/vm/drop_caches").write_text("1\n")


def cached(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file()]


def test_a_second_read_needs_no_dataserver_also_after_the_mount_was_killed(tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "cluster", dataservers=1, replication=1) as cluster:
        options = ("--cache-directory", str(tmp_path / "cache"))
        first = Mounted(tmp_path / "mount", cluster.nameserver.address, *options)
        try:
            (first.path / "f").write_bytes(CONTENT)
            assert (first.path / "f").read_bytes() == CONTENT
            drop_pages()
            cluster.dataserver("d0").kill()
            assert (first.path / "f").read_bytes() == CONTENT
            first.kill()
            second = Mounted(tmp_path / "mount", cluster.nameserver.address, *options)
            try:
                assert (second.path / "f").read_bytes() == CONTENT
            finally:
                second.clean_up()
        finally:
            first.clean_up()


def test_what_was_altered_on_the_disk_is_fetched_again(mounted: Mounted, cache: Path) -> None:
    path = mounted.path / "altered"
    path.write_bytes(CONTENT)
    assert path.read_bytes() == CONTENT
    drop_pages()
    blocks = cached(cache)
    assert len(blocks) == 6
    for block in blocks:
        with block.open("r+b") as file:
            file.seek(1000)
            file.write(b"altered")
    assert path.read_bytes() == CONTENT
    assert mounted.log.read_text().count("has other bytes than were stored") == 6


def test_changes_by_another_mount_are_seen_as_without_a_cache(cluster: LocalCluster, mounted: Mounted,
                                                              here: Path) -> None:
    other, path = here / "f", mounted.path / here.name / "f"
    for content in (CONTENT, CONTENT + b"appended", b"replaced" + CONTENT[8:], b"short"):
        if content.startswith(CONTENT) and other.exists():
            with other.open("ab") as file:
                file.write(b"appended")
        elif other.exists() and len(content) == len(CONTENT):
            with other.open("r+b") as file:
                file.write(b"replaced")
                file.truncate(len(CONTENT))
        else:
            other.write_bytes(content)
        for _ in range(2):
            assert path.read_bytes() == content
            drop_pages()


def test_a_second_mount_is_refused_the_directory(cluster: LocalCluster, mounted: Mounted, cache: Path,
                                                 tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    done = subprocess.run([*mounted.process.args[:1], tmp_path / "other", "--nameserver",  # type: ignore[index]
                           cluster.nameserver.address, "--foreground", "--cache-directory", cache],
                          capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 1
    assert "is in use by another mount; each needs its own" in done.stderr


def test_a_full_disk_goes_unnoticed_by_programs(cluster: LocalCluster, tmp_path: Path, here: Path) -> None:
    full = tmp_path / "full"
    full.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=600k,mode=700", "cache", full], check=True)
    try:
        mounted = Mounted(tmp_path / "mount", cluster.nameserver.address, "--cache-directory", str(full))
        try:
            (here / "f").write_bytes(CONTENT)
            for _ in range(2):
                assert (mounted.path / here.name / "f").read_bytes() == CONTENT
                drop_pages()
            assert cached(full)
            assert "No space left on device" in mounted.log.read_text()
        finally:
            mounted.clean_up()
    finally:
        subprocess.run(["umount", "--lazy", full], check=True)


reads = st.lists(st.tuples(st.integers(0, 6 * BLOCK_BYTES), st.integers(0, 3 * BLOCK_BYTES)), max_size=8)
steps = st.lists(st.tuples(st.sampled_from(["append", "write", "truncate"]), st.integers(0, 4 * BLOCK_BYTES),
                           st.integers(1, 2 * BLOCK_BYTES), reads), max_size=4)


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck),
          phases=(Phase.generate, Phase.shrink))
@given(steps=steps, before=reads)
def test_any_range_reads_as_without_a_cache(cluster: LocalCluster, tmp_path: Path, here: Path, before: list[
        tuple[int, int]], steps: list[tuple[str, int, int, list[tuple[int, int]]]]) -> None:
    path, content = here / "f", bytearray(CONTENT)
    path.write_bytes(content)
    name = f"/{here.name}/f"
    with Client(cluster.nameserver.address, cache_directory=tmp_path / "own", cache_bytes=2 << 20) as client:
        for action, offset, length, ranges in [("", 0, 0, before), *steps]:
            data = os.urandom(length)
            with path.open("r+b") as file:
                if action == "append":
                    offset = len(content)
                if action == "truncate":
                    del content[offset:]
                    file.truncate(offset)
                    content.extend(bytes(offset - len(content)))
                else:
                    content.extend(bytes(max(0, offset - len(content))))
                    content[offset:offset + length] = data
                    file.seek(offset)
                    file.write(data)
            with client.open_read(name) as reader:
                for start, size in ranges:
                    assert reader.read(start, size) == content[start:start + size]
        kept = sum(block.stat().st_blocks * 512 for block in cached(tmp_path / "own"))
        assert kept <= 2 << 20
