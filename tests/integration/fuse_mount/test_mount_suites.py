"""Suites that others wrote to find what is wrong with a filesystem: fsx and fio.

`scripts/install-suites` installs them. A few thousand operations always run; 100,000 with several seeds are
marked `full`.
"""

import mmap
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import pytest

from tests.integration.fuse_mount.mounting import HAS_CARGO, PROGRAMS, Mounted
from tests.local_cluster import LocalCluster

pytestmark = pytest.mark.root

FSX = shutil.which("fsx", path=PROGRAMS)
NO_FSX = "fsx is not installed (scripts/install-suites does it)" if HAS_CARGO else "fsx needs cargo"
FIO = shutil.which("fio")

MAPPED = """
nomsyncafterwrite = {no_msync}
[weights]
close_open = 0.3
invalidate = 0.2
fsync = 0.3
fdatasync = 0.1
posix_fallocate = 0.5
punch_hole = 0.5
sendfile = 0.5
posix_fadvise = 0.2
copy_file_range = 0.5
{more}
"""
UNMAPPED = MAPPED.replace("{more}", "mapread = 0\nmapwrite = 0")


def fsx(directory: Path, place: Path, configuration: str, seed: int, operations: int, *,
        no_msync: bool = True, name: str = "") -> None:
    """Raises AssertionError with what fsx says."""
    config = place / "fsx.toml"
    config.write_text(configuration.format(no_msync=str(no_msync).lower(), more=""))
    done = subprocess.run([FSX, "-f", config, "-S", str(seed), "-N", str(operations), "-P", place,
                           directory / (name or f"fsx{seed}")], capture_output=True, text=True, timeout=1500,
                          check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


needs_fsx = pytest.mark.skipif(FSX is None, reason=NO_FSX)
needs_fio = pytest.mark.skipif(FIO is None, reason="fio is not installed (scripts/install-suites does it)")


@needs_fsx
def test_fsx_finds_nothing_in_a_few_operations(here: Path, tmp_path: Path) -> None:
    fsx(here, tmp_path, MAPPED, seed=1, operations=1500)


@needs_fsx
def test_fsx_finds_nothing_without_mappings_in_a_few_operations(here: Path, tmp_path: Path) -> None:
    fsx(here, tmp_path, UNMAPPED, seed=2, operations=1500)


@pytest.fixture(scope="module")
def strong_mount(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mounted]:
    mount = Mounted(tmp_path_factory.mktemp("strong") / "mount", cluster.nameserver.address, "--strong")
    try:
        yield mount
    finally:
        mount.clean_up()


@pytest.fixture(params=["close-to-open", "strong"])
def verifier(request: pytest.FixtureRequest, here: Path, there: Path) -> Path:
    """The directory `here`, seen through another mount."""
    if request.param == "close-to-open":
        return there
    mount: Mounted = request.getfixturevalue("strong_mount")
    return mount.path / here.name


@needs_fsx
def test_what_fsx_makes_of_a_file_is_read_on_another_mount_as_from_a_local_disk(here: Path, verifier: Path,
                                                                                tmp_path: Path) -> None:
    seen = set()
    for seed in (21, 22, 23):
        for directory in (here, tmp_path):
            fsx(directory, tmp_path, MAPPED, seed, operations=400, name="file")
        seen.add((tmp_path / "file").read_bytes())
        assert (verifier / "file").read_bytes() == (tmp_path / "file").read_bytes()
    assert len(seen) == 3


@needs_fsx
@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [11, 12, 13])
@pytest.mark.parametrize("configuration", [MAPPED, UNMAPPED], ids=["mapped", "unmapped"])
def test_fsx_finds_nothing_in_100000_operations(here: Path, tmp_path: Path, configuration: str, seed: int) -> None:
    fsx(here, tmp_path, configuration, seed, 100_000, no_msync=seed % 2 == 0)


def fio(directory: Path, *arguments: str) -> None:
    done = subprocess.run([FIO, f"--directory={directory}", "--verify_fatal=1", "--verify=crc32c", "--do_verify=1",
                           "--verify_dump=0", "--output-format=terse", *arguments], cwd=directory,
                          capture_output=True, text=True, timeout=1500, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@needs_fio
def test_fio_reads_back_what_it_wrote_at_random(here: Path) -> None:
    fio(here, "--name=random", "--rw=randwrite", "--size=4m", "--bs=4k-64k", "--fsync=20", "--ioengine=psync")


def patterns(directory: Path, rw: str, pattern: str) -> int:
    """fio's exit status; each block of what it writes or reads begins with its offset, then `pattern`."""
    return subprocess.run([FIO, f"--directory={directory}", "--name=two", "--filename=file", f"--rw={rw}",
                           "--size=2m", "--bs=16k", "--verify=pattern", f'--verify_pattern=%o"{pattern}"',
                           "--verify_fatal=1", "--verify_dump=0", "--do_verify=0"], cwd=directory,
                          capture_output=True, timeout=300, check=False).returncode


@needs_fio
def test_fio_verifies_on_another_mount_what_it_wrote_on_this_one(here: Path, verifier: Path) -> None:
    for pattern in ("one", "two"):
        assert patterns(here, "randwrite", pattern) == 0
        assert patterns(verifier, "randread", pattern) == 0
    assert patterns(verifier, "randread", "one") != 0
    with (here / "file").open("r+b") as file:
        file.seek(700_001)
        file.write(b"?")
    assert patterns(verifier, "randread", "two") != 0


@contextmanager
def read_again_and_again(path: Path, size_bytes: int) -> Iterator[None]:
    """Through the page cache, by two threads."""
    ended = Event()

    def read() -> None:
        with path.open("rb", buffering=0) as file:
            while not ended.is_set():
                os.pread(file.fileno(), size_bytes, 0)

    readers = [Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    try:
        yield
    finally:
        ended.set()
        for reader in readers:
            reader.join()


@needs_fio
def test_the_page_cache_keeps_nothing_that_was_read_while_it_was_written_directly(here: Path) -> None:
    """As generic/451 of xfstests: asynchronous direct writes, and reads that go on meanwhile."""
    path, size_bytes = here / "file", 640 << 10
    path.write_bytes(bytes(size_bytes))
    memory = mmap.mmap(-1, size_bytes)
    for seed in range(8):
        with read_again_and_again(path, size_bytes):
            fio(here, "--name=direct", f"--filename={path.name}", "--rw=randwrite", "--bs=64k", "--ioengine=libaio",
                "--direct=1", "--iodepth=8", f"--size={size_bytes}", "--loops=10", f"--randseed={seed}", "--verify=0",
                "--invalidate=0", "--refill_buffers")
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
        os.preadv(descriptor, [memory], 0)
        os.close(descriptor)
        assert path.read_bytes() == memory[:]


@needs_fio
@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("rw", ["randwrite", "write", "randrw"])
@pytest.mark.parametrize("engine", ["psync", "mmap"])
def test_fio_reads_back_what_several_jobs_wrote(here: Path, rw: str, engine: str) -> None:
    fio(here, "--name=jobs", f"--rw={rw}", "--size=64m", "--bs=4k-256k", "--numjobs=3", "--fsync=500",
        f"--ioengine={engine}", "--end_fsync=1")
