"""A mount of a filesystem that keeps what is removed: no program sees a difference."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from speedwell.fs.client import Client
from tests.local_cluster import LocalCluster
from tests.waiting import wait_until

pytestmark = pytest.mark.root


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[Client]:
    with Client(cluster.nameserver.address) as made:
        yield made


def kept(client: Client, directory: Path) -> list[bytes]:
    """Names of what was removed in `directory` and is kept."""
    prefix = f"/{directory.name}/".encode()
    return sorted(entry.path.removeprefix(prefix) for entry in client.metadata.trash.entries()
                  if entry.path.startswith(prefix))


def test_removed_files_are_gone_open_ones_go_on_and_all_come_back(here: Path, there: Path, client: Client) -> None:
    client.metadata.trash.keep(f"/{here.name}", 3600 * 10**9)
    (here / "d").mkdir()
    (here / "d" / "a").write_bytes(b"a" * 1000)
    (here / "open").write_bytes(b"before ")
    with pytest.raises(OSError, match="not empty"):
        (here / "d").rmdir()
    with (here / "open").open("ab+") as stream:
        (here / "open").unlink()
        stream.write(b"and after")
        stream.flush()
        assert os.fstat(stream.fileno()).st_nlink == 0
        stream.seek(0)
        assert stream.read() == b"before and after"
        assert kept(client, here) == []
    shutil.rmtree(here / "d")
    assert list(there.iterdir()) == []
    wait_until(lambda: kept(client, here) == [b"d", b"d/a", b"open"], 15, "the trash has something else")
    for entry in sorted(client.metadata.trash.entries(), key=lambda entry: entry.path):
        client.metadata.trash.restore(entry, entry.path)
    assert (there / "open").read_bytes() == b"before and after"
    assert (there / "d" / "a").read_bytes() == b"a" * 1000


def test_who_has_a_file_open_that_another_mount_removed_changes_nothing_of_what_is_kept(
        here: Path, there: Path, client: Client) -> None:
    client.metadata.trash.keep(f"/{here.name}", 3600 * 10**9)
    for name in ("cut", "emptied", "written"):
        (here / name).write_bytes(b"as it was")
        with (here / name).open("rb+", buffering=0) as stream:
            (there / name).unlink()
            if name == "written":
                assert stream.write(b"otherwise") == 9
                expected = b"otherwise"
            else:
                expected = b"as" if name == "cut" else b""
                os.ftruncate(stream.fileno(), len(expected))
            os.fsync(stream.fileno())
            assert os.pread(stream.fileno(), 100, 0) == expected
            assert os.fstat(stream.fileno()).st_size == len(expected)
    for entry in list(client.metadata.trash.entries()):
        if entry.path.startswith(f"/{here.name}/".encode()):
            client.metadata.trash.restore(entry, entry.path)
    for name in ("cut", "emptied", "written"):
        assert (there / name).read_bytes() == b"as it was"


def test_what_is_kept_survives_the_end_of_the_nameserver_and_goes_when_its_time_is_over(
        here: Path, cluster: LocalCluster, client: Client) -> None:
    client.metadata.trash.keep(f"/{here.name}", 10**6)
    (here / "short").write_bytes(b"x")
    (here / "short").unlink()
    client.metadata.trash.keep(f"/{here.name}", 3600 * 10**9)
    (here / "long").write_bytes(b"y")
    (here / "long").unlink()
    cluster.nameserver.kill()
    cluster.nameserver.start()
    wait_until(lambda: kept(client, here) == [b"long"], 10, "the trash has something else")
