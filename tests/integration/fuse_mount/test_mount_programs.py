"""Ordinary programs at work on a mount."""

# ruff: noqa: PTH208 (the names as the system call lists them)

import filecmp
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.integration.fuse_mount.mounting import run

pytestmark = pytest.mark.root

TREE = Path("/usr/lib/python3.11/email")
VIM = shutil.which("vim.tiny") or shutil.which("vim")


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


# ------------------------------------------------------------------ programs that write anywhere


def test_sqlite_keeps_its_promises_with_a_rollback_journal_and_with_a_log(here: Path, there: Path) -> None:
    for mode in ("delete", "wal"):
        path = here / f"{mode}.db"
        with closing(sqlite3.connect(path, isolation_level=None)) as database, \
                closing(sqlite3.connect(path, isolation_level=None)) as other:
            assert database.execute(f"pragma journal_mode={mode}").fetchone() == (mode,)
            database.execute("create table t (n integer primary key, text)")
            for number in range(20):
                database.execute("insert into t values (?, ?)", (number, "x" * 3000))
                assert other.execute("select count(*) from t").fetchone() == (number + 1,)
            database.execute("begin")
            database.execute("update t set text = 'lost'")
            database.execute("rollback")
            other.execute("delete from t where n % 2")
            other.execute("vacuum")
            assert database.execute("pragma integrity_check").fetchone() == ("ok",)
        with closing(sqlite3.connect(there / f"{mode}.db")) as elsewhere:
            assert elsewhere.execute("select count(*), max(length(text)) from t").fetchone() == (10, 3000)
            assert elsewhere.execute("pragma integrity_check").fetchone() == ("ok",)


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_git_clones_commits_and_collects_garbage(here: Path, there: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(TREE, source, ignore=shutil.ignore_patterns("__pycache__"))
    git = ["git", "-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "init.defaultBranch=main"]
    run(*git, "-C", source, "init", "-q")
    run(*git, "-C", source, "add", ".")
    run(*git, "-C", source, "commit", "-q", "-m", "first")
    run(*git, "clone", "-q", source, here / "clone")
    for number in range(3):
        (here / "clone" / "new").write_text(str(number))
        run(*git, "-C", here / "clone", "add", ".")
        run(*git, "-C", here / "clone", "commit", "-q", "-m", str(number))
    run(*git, "-C", here / "clone", "gc", "-q", "--prune=now")
    run(*git, "-C", there / "clone", "-c", f"safe.directory={there / 'clone'}", "fsck", "--full")
    assert run(*git, "-C", here / "clone", "status", "--porcelain") == ""
    assert run(*git, "-C", here / "clone", "log", "--format=%s").split() == ["2", "1", "0", "first"]


@pytest.mark.skipif(shutil.which("make") is None or shutil.which("cc") is None, reason="no make or C compiler")
def test_make_builds_a_program_and_again_only_what_changed(here: Path) -> None:
    for number in range(5):
        (here / f"part{number}.c").write_text(f"int part{number}(void) {{ return {number}; }}\n")
    calls = " + ".join(f"part{number}()" for number in range(5))
    declarations = "".join(f"int part{number}(void); " for number in range(5))
    (here / "main.c").write_text(f"{declarations}\nint main(void) {{ return {calls} - 10; }}\n")
    (here / "Makefile").write_text("objects = main.o part0.o part1.o part2.o part3.o part4.o\n"
                                   "all: lib.a program\nprogram: $(objects)\n\tcc -o $@ $(objects)\n"
                                   "lib.a: $(objects)\n\tar rcs $@ $(objects)\n")
    run("make", "-C", here)
    run(here / "program")
    assert "Nothing to be done" in run("make", "-C", here)
    os.utime(here / "part3.c")
    assert run("make", "-C", here).count("part3.c") == 1
    run(here / "program")


def test_rsync_in_place_sends_what_changed(tree: Path, here: Path, there: Path) -> None:
    run("rsync", "-a", "--inplace", f"{tree}/", here / "copy")
    with (tree / "sub" / "deeper" / "large").open("r+b") as file:
        file.seek(1_000_000)
        file.write(b"changed" * 1000)
    run("rsync", "-a", "--inplace", "--no-whole-file", "--ignore-times", f"{tree}/", here / "copy")
    require_same_tree(tree, here / "copy")
    require_same_tree(tree, there / "copy")


def test_dd_changes_the_middle_of_a_file(here: Path, there: Path) -> None:
    (here / "file").write_bytes(b"a" * 500_000)
    run("sh", "-c", f"printf bbb | dd of={here}/file bs=1 seek=250000 conv=notrunc,fsync status=none")
    run("dd", "if=/dev/zero", f"of={here}/file", "bs=64k", "seek=9", "count=1", "conv=notrunc", "status=none")
    expected = b"a" * 250_000 + b"bbb" + b"a" * 249_997 + bytes(9 * 65536 + 65536 - 500_000)
    assert (there / "file").read_bytes() == expected == (here / "file").read_bytes()


def test_editors_save_by_replacing_and_in_place(here: Path, there: Path) -> None:
    path = here / "text"
    path.write_text("one\ntwo\n")
    run("sed", "-i", "s/one/1/", path)
    assert (there / "text").read_text() == "1\ntwo\n"
    with path.open("r+") as file:
        lines = file.read().replace("two", "2 and more")
        file.seek(0)
        file.write(lines)
        file.truncate()
        os.fsync(file.fileno())
    assert (there / "text").read_text() == "1\n2 and more\n"
    run("perl", "-pi", "-e", "s/more/less/", path)
    assert (there / "text").read_text() == "1\n2 and less\n"


def saved_by_vim(directory: Path, seen: Path, way: str) -> tuple[dict[str, str], bool, int, str]:
    """What `seen`, the same directory, has after two saves: the files, whether the file is the same inode still, its
    mode, and what someone reads who had it open before. `way` is vim's backupcopy."""
    path = directory / "text"
    path.write_text("one\ntwo\n")
    path.chmod(0o640)
    inode = path.stat().st_ino
    with path.open() as here_before, (seen / "text").open() as seen_before:
        for replacement in ("1", "one again"):
            # by default vim keeps no backup of what lies below /tmp
            run(VIM, "-es", "-u", "NONE", "-i", "NONE",
                "-c", f"set swapfile backup writebackup backupskip= backupcopy={way}",
                "-c", f"1s/.*/{replacement}/", "-c", r"$s/$/\rmore/", "-c", "wq", path)
        before = "" if way == "yes" else here_before.read() + seen_before.read()
    with (seen / "text").open() as text:    # an open asks anew, a stat may be answered from the cache
        status = os.fstat(text.fileno())
    files = {name: (seen / name).read_text() for name in sorted(os.listdir(seen))}
    return files, status.st_ino == inode, status.st_mode & 0o7777, before


@pytest.mark.skipif(VIM is None, reason="vim is not installed")
@pytest.mark.parametrize("way", ["no", "yes"], ids=["by renaming a backup", "in place"])
def test_vim_saves_a_file_that_others_have_open_as_on_a_local_directory(here: Path, there: Path, tmp_path: Path,
                                                                        way: str) -> None:
    saved = saved_by_vim(here, there, way)
    assert saved == saved_by_vim(tmp_path, tmp_path, way)
    assert saved == ({"text": "one again\ntwo\nmore\nmore\n", "text~": "1\ntwo\nmore\n"}, way == "yes", 0o640,
                     2 * "one\ntwo\n" if way == "no" else "")
    assert sorted(os.listdir(here)) == ["text", "text~"]


def test_truncate_cuts_extends_and_rounds(here: Path, there: Path) -> None:
    path, data = here / "file", os.urandom(3_000_000)
    path.write_bytes(data)
    for size, expected in [("2500000", data[:2_500_000]), ("+500000", data[:2_500_000] + bytes(500_000)),
                           ("-600000", data[:2_400_000]), ("%4096", data[:2_400_000] + bytes(256)),
                           ("<10", data[:10]), ("0", b""), ("1M", bytes(1 << 20))]:
        run("truncate", f"--size={size}", path)
        assert path.stat().st_size == len(expected)
        assert (there / "file").read_bytes() == path.read_bytes() == expected
    run("truncate", "--no-create", "--size=5", here / "absent")
    run("truncate", "--size=5", here / "new")
    run("truncate", f"--reference={path}", here / "new")
    assert (there / "new").stat().st_size == 1 << 20
    assert sorted(os.listdir(there)) == ["file", "new"]


def test_cp_sparse_copies_files_with_holes(here: Path, there: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    with source.open("wb") as file:
        for offset in (0, 3_333_333, 70 << 20):
            file.seek(offset)
            file.write(os.urandom(100_000))
        file.truncate(80 << 20)
    for way in ("auto", "always", "never"):
        run("cp", f"--sparse={way}", source, here / way)
        assert filecmp.cmp(source, there / way, shallow=False)
        run("cp", f"--sparse={way}", there / way, tmp_path / way)
        assert filecmp.cmp(source, tmp_path / way, shallow=False)


@pytest.mark.full
def test_pip_installs_into_a_directory(here: Path, there: Path) -> None:
    run(sys.executable, "-m", "pip", "install", "-q", "--no-cache-dir", "--target", here / "packages", "click",
        "rich")
    run(sys.executable, "-c", f"import sys; sys.path.insert(0, {str(there / 'packages')!r}); import rich.table; "
        f"assert rich.__file__.startswith({str(there)!r})")
