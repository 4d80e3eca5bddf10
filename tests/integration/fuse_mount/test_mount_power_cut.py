"""A power cut after which every replica has less than the file's length, as programs on a mount see it."""

import errno
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.fuse_mount.mounting import Mounted
from tests.local_cluster import LocalCluster

pytestmark = pytest.mark.root

PAGE_BYTES = 4096
KEPT, LOST = random.Random(1).randbytes(700_000), random.Random(2).randbytes(500_000)


def read_until_it_fails(path: Path, piece_bytes: int) -> tuple[bytes, int]:
    """What a program gets that reads in order, and the error that ends it."""
    descriptor = os.open(path, os.O_RDONLY)
    got = b""
    try:
        while piece := os.read(descriptor, piece_bytes):
            got += piece
        return got, 0
    except OSError as error:
        return got, error.errno or 0
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("piece_bytes", [PAGE_BYTES, 1 << 17, 1 << 22])
def test_a_program_reads_all_whole_pages_that_are_left_and_then_fails(tmp_path: Path, piece_bytes: int) -> None:
    with LocalCluster(tmp_path / "cluster", dataservers=3) as cluster:
        mount = Mounted(tmp_path / "mount", cluster.nameserver.address)
        path = mount.path / "file"
        try:
            path.write_bytes(KEPT)
            cluster.save_data(tmp_path / "saved")
            with path.open("ab") as file:
                file.write(LOST)
            for daemon in cluster.dataservers:
                daemon.kill()
                shutil.rmtree(cluster.data_directory(daemon.name))
                shutil.copytree(tmp_path / "saved" / daemon.name, cluster.data_directory(daemon.name))
            cluster.revive()
            Path("/proc/sys/vm/drop_caches").write_text("1")
            got, error = read_until_it_fails(path, piece_bytes)
            assert error == errno.EIO
            assert got == KEPT[:len(KEPT) // PAGE_BYTES * PAGE_BYTES]

            done = subprocess.run([Path(sys.executable).parent / "speedwell", "fsck", "--repair", "--nameserver",
                                   cluster.nameserver.address], check=False, capture_output=True, timeout=60)
            assert done.returncode == 1
            with path.open("ab") as file:
                file.write(b"more")
            assert path.read_bytes() == KEPT + b"more"
        finally:
            mount.clean_up()
