"""Ordinary programs at work on a mount."""

# ruff: noqa: PTH208 (the names as the system call lists them)

import filecmp
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.integration.fuse_mount.mounting import run

pytestmark = pytest.mark.root

TREE = Path("/usr/lib/python3.11/email")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A directory tree of plain files: text, an empty one, a large one, odd names, modes and times."""
    root = tmp_path / "tree"
    shutil.copytree(TREE, root, ignore=shutil.ignore_patterns("__pycache__"))
    (root / "sub" / "deeper").mkdir(parents=True)
    (root / "sub" / "empty").touch()
    (root / "sub" / "a name with spaces, ümlaut").write_text("x\n")
    (root / "sub" / "deeper" / "large").write_bytes(os.urandom(5 << 20))
    (root / "sub" / "script").write_text("#!/bin/sh\n")
    (root / "sub" / "script").chmod(0o750)
    os.utime(root / "sub" / "script", ns=(10**18, 10**18 + 123456789))
    return root


def require_same_tree(one: Path, other: Path) -> None:
    run("diff", "-r", one, other)


def test_cp_r_copies_a_tree_and_both_mounts_have_every_byte(tree: Path, here: Path, there: Path) -> None:
    run("cp", "-r", tree, here / "copy")
    require_same_tree(tree, here / "copy")
    require_same_tree(tree, there / "copy")


def test_cp_a_keeps_modes_and_times(tree: Path, here: Path, there: Path) -> None:
    run("cp", "-a", tree, here / "copy")
    copied = (there / "copy" / "sub" / "script").stat()
    assert (copied.st_mode & 0o7777, copied.st_mtime_ns) == (0o750, 10**18 + 123456789)


def test_tar_unpacks_and_packs(tree: Path, here: Path, tmp_path: Path) -> None:
    run("tar", "-C", tree.parent, "-cf", tmp_path / "tree.tar", tree.name)
    run("tar", "-C", here, "-xf", tmp_path / "tree.tar")
    require_same_tree(tree, here / tree.name)
    assert (here / tree.name / "sub" / "script").stat().st_mtime_ns // 10**9 == 10**9
    run("tar", "-C", here, "-cf", here / "again.tar", tree.name)
    run("tar", "-df", here / "again.tar", "-C", tree.parent)


def test_rsync_a_copies_and_the_second_run_copies_nothing(tree: Path, here: Path) -> None:
    run("rsync", "-a", f"{tree}/", here / "copy")
    require_same_tree(tree, here / "copy")
    assert run("rsync", "-a", "--itemize-changes", f"{tree}/", here / "copy") == ""


def test_rsync_a_brings_over_what_changed_and_deletes(tree: Path, here: Path, there: Path) -> None:
    run("rsync", "-a", f"{tree}/", here / "copy")
    (tree / "sub" / "script").write_text("#!/bin/sh\nexit 1\n")
    (tree / "sub" / "empty").unlink()
    run("rsync", "-a", "--delete", f"{tree}/", here / "copy")
    require_same_tree(tree, here / "copy")
    require_same_tree(tree, there / "copy")


def test_shell_appends_with_cat(here: Path, there: Path) -> None:
    subprocess.run("echo one > log; for i in 2 3 4; do echo $i | cat >> log; done; cat log log >> twice", shell=True,
                   cwd=here, check=True)
    assert (there / "log").read_text() == "one\n2\n3\n4\n"
    assert (there / "twice").read_text() == 2 * "one\n2\n3\n4\n"


def test_mv_renames_replaces_and_moves_directories(here: Path, there: Path) -> None:
    (here / "a").write_text("a")
    (here / "b").write_text("b")
    run("mv", here / "a", here / "b")
    assert (there / "b").read_text() == "a"
    (here / "from" / "inner").mkdir(parents=True)
    (here / "from" / "inner" / "file").write_text("f")
    run("mv", here / "from", here / "to")
    run("mv", "-n", here / "b", here / "to" / "inner" / "file")
    assert (here / "to" / "inner" / "file").read_text() == "f"
    assert sorted(os.listdir(there)) == ["b", "to"]


def test_find_and_du_see_what_is_there(tree: Path, here: Path) -> None:
    run("cp", "-r", tree, here / "copy")
    expected = sorted(
        f"{path.relative_to(tree)} {'d' if path.is_dir() else 'f'}" for path in tree.rglob("*"))
    found = run("find", here / "copy", "-mindepth", "1", "-printf", r"%P %y\n")
    assert sorted(found.splitlines()) == expected
    total_bytes = sum(path.stat().st_size for path in tree.rglob("*") if path.is_file())
    used = int(run("du", "--apparent-size", "--block-size=1", "-s", here / "copy").split()[0])
    directories = sum(path.stat().st_size for path in [here / "copy", *(here / "copy").rglob("*")] if path.is_dir())
    assert used == total_bytes + directories
    assert int(run("du", "-sk", here / "copy").split()[0]) >= total_bytes // 1024


def test_dd_with_fsync_writes_and_reads_a_large_file(here: Path, there: Path, tmp_path: Path) -> None:
    source = tmp_path / "random"
    source.write_bytes(os.urandom(9 << 20))
    run("dd", f"if={source}", f"of={here / 'big'}", "bs=1M", "conv=fsync")
    run("dd", f"if={there / 'big'}", f"of={tmp_path / 'back'}", "bs=1M")
    assert filecmp.cmp(source, tmp_path / "back", shallow=False)


def test_touch_makes_a_file_and_sets_times(here: Path, there: Path) -> None:
    run("touch", here / "new")
    assert (there / "new").stat().st_size == 0
    run("touch", "-d", "2001-02-03 04:05:06.789012345Z", here / "new")
    assert (here / "new").stat().st_mtime_ns == 981173106789012345
    with (there / "new").open("rb") as new:  # an open asks anew, a stat may be answered from the cache
        assert os.fstat(new.fileno()).st_mtime_ns == 981173106789012345
    run("touch", "-a", "-d", "1999-01-01Z", here / "new")
    status = (here / "new").stat()
    assert (status.st_atime_ns, status.st_mtime_ns) == (915148800 * 10**9, 981173106789012345)


def test_chmod_chown_and_df(here: Path, there: Path) -> None:
    (here / "file").write_text("x")
    run("chmod", "640", here / "file")
    run("chown", "1234:2345", here / "file")
    run("chown", "1235", here / "file")
    status = (there / "file").stat()
    assert (status.st_mode & 0o7777, status.st_uid, status.st_gid) == (0o640, 1235, 2345)
    size, available = map(int, run("df", "--output=size,avail", here).splitlines()[1].split())
    assert size > available > 0


def test_rm_r_removes_a_tree(tree: Path, here: Path, there: Path) -> None:
    run("cp", "-r", tree, here / "copy")
    run("rm", "-r", here / "copy")
    assert os.listdir(there) == []


def test_links_are_refused_as_linux_filesystems_without_links_do(here: Path) -> None:
    (here / "file").write_text("x")
    with pytest.raises(PermissionError):
        (here / "link").symlink_to("file")
    with pytest.raises(PermissionError):
        (here / "link").hardlink_to(here / "file")


def test_several_programs_work_at_the_same_time(tree: Path, here: Path, there: Path) -> None:
    copies = [subprocess.Popen(["cp", "-r", tree, directory / f"copy{number}"])
              for number, directory in enumerate((here, here, there, there))]
    lists = [subprocess.Popen(["find", directory, "-ls"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
             for directory in (here, there)]
    assert [copy.wait(60) for copy in copies] == [0, 0, 0, 0]
    for process in lists:
        process.wait(60)
    for number in range(4):
        require_same_tree(tree, here / f"copy{number}")
        require_same_tree(tree, there / f"copy{number}")
