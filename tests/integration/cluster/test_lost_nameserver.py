"""A local installation whose nameserver is killed and loses its directory: `speedwell up` and all is as it was."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from speedwell.cluster.identities import of_operator
from speedwell.cluster.processes import Processes
from speedwell.fs.client import Client
from tests.integration.cluster.executable import Speedwell, kill
from tests.waiting import wait_until

pytestmark = pytest.mark.root


def seen(root: Path) -> dict[str, object]:
    """What a program sees of a tree: status, extended attributes, targets and contents by path."""
    found: dict[str, object] = {}
    for path in sorted(root.rglob("*")):
        status = path.lstat()
        content: object = path.readlink() if path.is_symlink() else path.read_bytes() if path.is_file() else None
        attributes = {name: os.getxattr(path, name, follow_symlinks=False)
                      for name in os.listxattr(path, follow_symlinks=False)}
        found[str(path.relative_to(root))] = (
            status.st_ino, status.st_mode, status.st_nlink, status.st_uid, status.st_gid, status.st_size,
            status.st_mtime_ns, status.st_ctime_ns, attributes, content)
    return found


def write_tree(root: Path) -> None:
    source = Path(__file__).parents[3] / "fs"
    subprocess.run(["cp", "-a", str(source), str(root / "tree")], check=True)
    (root / "tree").rename(root / "moved")
    (root / "empty").mkdir(mode=0o700)
    (root / "moved" / "paths.py").rename(root / "renamed.py")
    os.link(root / "renamed.py", root / "empty" / "second name")
    (root / "link").symlink_to("renamed.py")
    os.setxattr(root / "renamed.py", "user.note", b"kept")
    os.chown(root / "moved" / "store", 12, 34)
    os.utime(root / "moved" / "wire" / "channel.py", ns=(1, 2))
    shutil.rmtree(root / "moved" / "client")


def test_up_brings_back_a_nameserver_that_was_killed_and_lost_its_directory(tmp_path: Path) -> None:
    speedwell, directory, mountpoint = Speedwell(tmp_path / "state"), tmp_path / "c", tmp_path / "m"
    speedwell.ok("up", "--local", directory, "--mount", mountpoint)
    try:
        write_tree(mountpoint)
        expected = seen(mountpoint)
        processes = Processes(directory)
        with Client(processes.settings["addresses"]["nameserver"], identity=of_operator(directory)) as client:
            wait_until(lambda: [mirror.holder and not mirror.behind for mirror in client.statistics().mirrors] ==
                       [True] * 3, 15, "the copies of the namespace do not become level")
        kill(directory, "supervisor", "nameserver")    # a nameserver that comes back at once would lose it twice
        shutil.rmtree(directory / "nameserver")
        speedwell.ok("up", "--local", directory)
        assert seen(mountpoint) == expected
        (mountpoint / "empty" / "new").write_bytes(b"and on it goes")
        assert "clean" in speedwell.ok("fsck")
        speedwell.ok("down")
        shutil.rmtree(directory / "nameserver")    # and once more, with everything stopped
        speedwell.ok("up", "--local", directory)
        assert {path: value for path, value in seen(mountpoint).items() if path != "empty/new"}.keys() == \
            expected.keys()
        assert (mountpoint / "empty" / "new").read_bytes() == b"and on it goes"
    finally:
        speedwell.ok("down", "--local", directory, "--force")
