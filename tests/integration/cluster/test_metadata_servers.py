"""`speedwell up --metadata-servers 2`: two nameservers that both answer, below a mount."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from speedwell.fs import slots
from tests.etcd import requires_etcd
from tests.integration.cluster.executable import Speedwell, error_line, kill

pytestmark = [pytest.mark.root, requires_etcd]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Speedwell, Path, Path]]:
    """A running installation: the command, its directory, its mount point."""
    tmp_path = tmp_path_factory.mktemp("owners")
    speedwell, mountpoint = Speedwell(tmp_path / "state"), tmp_path / "m"
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        directory = Path(name) / "c"
        speedwell.ok("up", "--local", directory, "--metadata-servers", 2, "--mount", mountpoint)
        yield speedwell, directory, mountpoint
        speedwell.ok("down", "--local", directory, "--force")


def test_a_mount_works_within_and_across_owners_and_goes_on_when_one_is_killed(place):
    speedwell, directory, mountpoint = place
    directories = [mountpoint / f"d{number}" for number in range(8)]
    for each in directories:
        each.mkdir()
        (each / "f").write_text(each.name)
    assert len({slots.block_of(each.stat().st_ino) < slots.BLOCKS // 2 for each in directories}) == 2
    for old, new in zip(directories, [*directories[1:], directories[0]], strict=True):
        (old / "f").rename(new / "moved")
        os.link(new / "moved", old / "again")
    kill(directory, "nameserver-0")     # the supervisor starts it again
    for number, each in enumerate(directories):
        came_from = directories[number - 1].name
        with (each / "moved").open("a") as file:
            file.write("+")
        assert (each / "moved").read_text() == (directories[number - 1] / "again").read_text() == came_from + "+"
        assert (each / "moved").stat().st_nlink == 2
        assert sorted(path.name for path in each.iterdir()) == ["again", "moved"]
    with (directories[0] / "moved").open() as file:
        (directories[0] / "moved").unlink()
        assert file.read() == directories[-1].name + "+"
    for each in directories[1:]:
        (each / "moved").unlink()
    for each in directories:
        (each / "again").unlink()
        each.rmdir()
    assert list(mountpoint.iterdir()) == []
    assert "clean" in speedwell.ok("fsck")


def test_up_again_changes_nothing_and_what_takes_the_whole_namespace_is_refused(place):
    speedwell, directory, _ = place
    speedwell.ok("up", "--local", directory, "--metadata-servers", 2)
    assert "several nameservers own" in error_line(speedwell.run("dump", directory.parent / "names"))
