"""What a program on a mount sees of a directory's quota."""

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from speedwell.fs.client import Client
from tests.local_cluster import LocalCluster
from tests.waiting import wait_until

pytestmark = pytest.mark.root

LIMIT_BYTES = 3 << 20


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[Client]:
    with Client(cluster.nameserver.address) as made:
        yield made


@pytest.fixture
def limited(here: Path, cluster: LocalCluster) -> Path:
    """A directory that may hold 3 MiB in 5 files and directories, itself among them."""
    cluster.set_quota(f"/{here.name}", max_bytes=LIMIT_BYTES, max_files=5)
    return here


def used_bytes(client: Client, directory: Path) -> int:
    return client.metadata.quotas(f"/{directory.name}")[0].used_bytes


def write_all(path: Path, size_bytes: int, flags: int = 0) -> int | None:
    """The errno with which writing, flushing or closing fails; None if nothing does."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | flags, 0o644)
    failure = None
    try:
        for _ in range(size_bytes // (256 << 10)):
            os.write(descriptor, bytes(256 << 10))
        os.fsync(descriptor)
    except OSError as error:
        failure = error.errno
    try:
        os.close(descriptor)
    except OSError as error:
        failure = failure or error.errno
    return failure


def test_more_names_than_a_quota_allows_are_edquot(limited: Path, client: Client) -> None:
    for number in range(4):
        (limited / str(number)).touch()
    for make in ((limited / "d").mkdir, (limited / "f").touch, lambda: (limited / "l").symlink_to("0")):
        with pytest.raises(OSError) as caught:
            make()
        assert caught.value.errno == errno.EDQUOT
    (limited / "0").unlink()
    (limited / "f").touch()


@pytest.mark.parametrize("flags", [0, os.O_APPEND])
def test_writing_more_than_a_quota_allows_is_edquot_and_room_is_there_again_after_removing(
        limited: Path, client: Client, flags: int) -> None:
    assert write_all(limited / "fits", 2 << 20, flags) is None
    assert used_bytes(client, limited) == 2 << 20
    assert write_all(limited / "does not", 2 << 20, flags) == errno.EDQUOT
    assert used_bytes(client, limited) <= LIMIT_BYTES
    (limited / "fits").unlink()
    (limited / "does not").unlink()
    wait_until(lambda: used_bytes(client, limited) == 0, 15, "what was removed still counts")
    assert write_all(limited / "fits now", 3 << 20, flags) is None


def test_a_change_in_the_middle_that_makes_a_file_too_long_is_edquot_and_the_old_content_stays(limited: Path) -> None:
    path = limited / "file"
    path.write_bytes(b"old" * 1000)
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.pwrite(descriptor, b"new", 0)
        with pytest.raises(OSError) as caught:
            os.ftruncate(descriptor, 5 << 20)
            os.fsync(descriptor)
        assert caught.value.errno == errno.EDQUOT
    finally:
        try:
            os.close(descriptor)
        except OSError as error:
            assert error.errno == errno.EDQUOT
    wait_until(lambda: path.read_bytes() == b"old" * 1000, 15, "what could not be published is still shown")


def test_moving_into_a_full_quota_is_edquot_and_a_hard_link_across_is_exdev(limited: Path, there: Path) -> None:
    outside = limited.parent / f"{limited.name}-outside"
    outside.write_bytes(bytes(4 << 20))
    with pytest.raises(OSError) as caught:
        outside.rename(limited / "inside")
    assert caught.value.errno == errno.EDQUOT
    with pytest.raises(OSError) as caught:
        (limited / "link").hardlink_to(outside)
    assert caught.value.errno == errno.EXDEV
    os.truncate(outside, 1 << 20)
    outside.rename(limited / "inside")
    assert (there / "inside").stat().st_size == 1 << 20
    shutil.move(limited / "inside", outside)
    outside.unlink()


def test_two_writers_overshoot_by_no_more_than_is_documented(limited: Path, there: Path, client: Client) -> None:
    """They learn the room when they open the file, and again when that is used up."""
    first = os.open(limited / "a", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    second = os.open(there / "b", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    failed = 0
    for descriptor in (first, second):
        try:
            for _ in range(16):
                os.write(descriptor, bytes(256 << 10))
                os.fsync(descriptor)
        except OSError as error:
            assert error.errno == errno.EDQUOT
            failed += 1
        finally:
            try:
                os.close(descriptor)
            except OSError as error:
                assert error.errno == errno.EDQUOT
    assert failed == 2
    assert used_bytes(client, limited) <= 2 * LIMIT_BYTES


def test_a_quota_on_the_root_is_what_df_shows(here: Path, client: Client, cluster: LocalCluster) -> None:
    cluster.set_quota("/", max_bytes=64 << 20, max_files=10**6)
    try:
        shown = os.statvfs(here)
        assert shown.f_blocks * shown.f_frsize == 64 << 20
        assert shown.f_files == 10**6
        assert shown.f_bavail <= shown.f_blocks
    finally:
        client.metadata.operator.set_quota("/")
    assert os.statvfs(here).f_files > 10**6


def test_a_program_can_ask_which_quota_holds(limited: Path, client: Client) -> None:
    (limited / "d").mkdir()
    (limited / "d" / "f").write_bytes(bytes(1 << 20))
    wait_until(lambda: used_bytes(client, limited) == 1 << 20, 20, "it is not counted")
    for path in (limited, limited / "d", limited / "d" / "f"):
        assert os.getxattr(path, "speedwell.quota").decode() == (
            f"/{limited.name}: 1.0 MiB of 3.0 MiB, 3 of 5 files and directories")
        assert "speedwell.quota" not in os.listxattr(path)
    with pytest.raises(OSError) as caught:
        os.getxattr(limited.parent, "speedwell.quota")
    assert caught.value.errno == errno.ENODATA
    with pytest.raises(OSError) as caught:
        os.setxattr(limited, "speedwell.quota", b"more")
    assert caught.value.errno == errno.EOPNOTSUPP
